"""A reader of the page without a browser: `python -m app.cli.page_client ADDRESS`, a process of its own.

It speaks the page's own protocol through gradio_client. Orders come as JSON lines on stdin, {"open": FILE} or
{"ask": TEXT}; each is answered by one line on stdout once the page has sent its last update for it.
"""

import json
import sys

from gradio_client import Client, handle_file


def main(address: str) -> None:
    """Serve orders until stdin ends. The first line out is the session's id."""
    client = Client(address, verbose=False)
    session_id = str(client.predict("", api_name="/enter")[0])
    print(json.dumps({"session": session_id}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "open" in order:
            job = client.submit(session_id, [handle_file(order["open"])], api_name="/open")
        else:
            job = client.submit(session_id, order["ask"], api_name="/ask")
        print(json.dumps({"updates": sum(1 for _ in job)}), flush=True)
    client.close()


if __name__ == "__main__":
    main(sys.argv[1])
