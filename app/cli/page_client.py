"""A reader of the page without a browser: `python -m app.cli.page_client ADDRESS`, in its own process.

It uses the page's protocol through gradio_client. Commands come as JSON lines on stdin, {"open": FILE} or
{"ask": TEXT}; one line on stdout answers each, once the page has sent its last update for it.
"""

import json
import sys

from gradio_client import Client, handle_file


def main(address: str) -> None:
    """Run commands until stdin ends. The first line of output is the session's id."""
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
