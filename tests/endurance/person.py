"""Somebody at the page who does anything at any time, and remembers what was answered."""

import concurrent.futures
import contextlib
import itertools
import json
import random
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradio_client import Client, handle_file

from app.context.samples import load_samples

METHODS = ("triforce", "autoregressive")
HANG_SECONDS = 300.0  # no act takes that long, whatever others do
WORDS = ("harbour", "lantern", "kettle", "captain", "letter", "winter", "garden", "silver", "teapot", "morning")


@dataclass(slots=True)
class Ledger:
    """What a person was told, of all runs. Times by the monotonic clock."""

    answered: dict[str, float] = field(default_factory=dict)  # a question that is asked once: when its answer was whole
    acts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    hangs: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Person:
    """A client of the page. Every act is one event of it; `doing` names the present one."""

    def __init__(self, address: str, ledger: Ledger, rng: random.Random, folder: Path, name: str) -> None:
        self.ledger, self.rng, self.folder, self.name = ledger, rng, folder, name
        self.doing = "arriving"
        self._numbers = itertools.count()
        folder.mkdir(parents=True, exist_ok=True)
        self.client = Client(address, verbose=False)
        named = self.client.view_api(return_format="dict", print_info=False)["named_endpoints"]
        self._talk = next(name for name in named if name.startswith("/act"))
        self.session = ""
        self.reload()

    # -------------------- acts

    def act(self) -> None:
        """One act, drawn at random; questions above all."""
        acts: list[tuple[int, Callable[[], None]]] = [
            (3, self.open),
            (8, self.ask),
            (3, self.ask_and_stop),
            (2, self.ask_and_leave),
            (2, self.regenerate),
            (1, self.new_conversation),
            (1, self.clear),
            (2, self.race),
            (2, self.reload),
            (1, self.start_over),
            (1, self.stop_reading),
            (2, self.look_around),
            (2, self.wrong_input),
        ]
        chosen = self.rng.choices([act for _, act in acts], [weight for weight, _ in acts])[0]
        self.doing = chosen.__name__
        chosen()
        with self.ledger.lock:
            self.ledger.acts[self.doing] += 1

    def reload(self) -> None:
        """Come to the page, with the session it had."""
        shown = self._outcome(self.client.submit(self.session, "", api_name="/enter"))
        if shown:
            self.session = str(shown[-1][0])

    def open(self) -> None:
        """Drop one file, or some, good or bad."""
        files = [self._file() for _ in range(self.rng.choice((1, 1, 1, 2)))]
        self.events("/open", [handle_file(str(file)) for file in files])
        for file in files:
            file.unlink(missing_ok=True)

    def open_text(self) -> None:
        """Drop a small text: from here on there is something to ask about."""
        file = self._text(50)
        self.events("/open", [handle_file(str(file))])
        file.unlink(missing_ok=True)

    def ask(self) -> None:
        """Ask, and wait for the answer."""
        question = self._question()
        updates = self.events("/ask", question, self.rng.choice(METHODS), self.rng.choice((0.0, 0.8)), 1.0, 24)
        if updates and ("Answer complete" in str(updates[-1][0]) or "At the limit" in str(updates[-1][0])):
            with self.ledger.lock:
                self.ledger.answered[question] = time.monotonic()

    def ask_and_stop(self) -> None:
        """Ask, and stop the answer soon."""
        job = self._submit("/ask", self._question(), self.rng.choice(METHODS), 0.0, 1.0, 200)
        time.sleep(self.rng.random())
        self.events("/stop")
        self._outcome(job)

    def ask_and_leave(self) -> None:
        """Ask, and go away without a word."""
        job = self._submit("/ask", self._question(), "triforce", 0.0, 1.0, 200)
        time.sleep(self.rng.random())
        job.cancel()

    def regenerate(self) -> None:
        """Have the last question answered once more."""
        self.events("/regenerate", json.dumps({"act": "regenerate:"}), "triforce", 0.9, 1.0, 24)

    def new_conversation(self) -> None:
        """Leave the conversation as it is and begin another."""
        self.events(self._talk, json.dumps({"act": "new:"}))

    def clear(self) -> None:
        """The same by the chat's own button."""
        self.events("/clear")

    def race(self) -> None:
        """A race of two methods; sometimes it is stopped."""
        job = self._submit("/race", self._question(), ["autoregressive", "triforce"], 0, 16, 0.0)
        if self.rng.random() < 0.5:
            time.sleep(self.rng.random())
            self.events("/stop_race")
        self._outcome(job)

    def start_over(self) -> None:
        """Take everything out of the library."""
        self.events("/library", "start-over")

    def stop_reading(self) -> None:
        """Stop what is read, if anything is."""
        self.events("/stop_reading")

    def look_around(self) -> None:
        """The other tabs, and the search."""
        self.events("/search", self.rng.choice(WORDS))
        self.events("/system")
        self.events("/inside")

    def wrong_input(self) -> None:
        """What no page sends."""
        wrong: list[tuple[str, tuple[Any, ...]]] = [
            ("/ask", ("", "triforce", 0.0, 1.0, 16)),
            ("/ask", ("x" * 200_000, "triforce", 0.0, 1.0, 16)),
            ("/ask", ("Warm?", "triforce", -1.0, 9.0, 16)),
            ("/ask", ("Long?", "triforce", 0.0, 1.0, -5)),
            ("/library", ("choose:\ud800:9" if self.rng.random() < 0.1 else "choose:none:1-2",)),
            ("/library", ("preview:" + "0" * 64 + ":" + "9" * 30,)),
            ("/race", ("", ["triforce"], 0, 16, 0.0)),
            ("/regenerate", (json.dumps({"act": "regenerate:0"}), "triforce", 0.0, 1.0, 16)),
        ]
        api, inputs = self.rng.choice(wrong)
        self.events(api, *inputs)

    # -------------------- how

    def _question(self) -> str:
        return f"What of the {self.rng.choice(WORDS)}, {self.name} {next(self._numbers)} {self.rng.getrandbits(40):x}?"

    def _file(self) -> Path:
        number = next(self._numbers)
        kind = self.rng.random()
        if kind < 0.15:
            source = self.rng.choice(load_samples()).file
            file = self.folder / f"{number}-{source.name}"
            file.write_bytes(source.read_bytes()[: self.rng.choice((1000, 20_000, 10**9))])
            return file
        if kind < 0.3:
            file = self.folder / f"{number}.{self.rng.choice(('pdf', 'epub', 'docx', 'html', 'txt', 'exe'))}"
            file.write_bytes(self.rng.randbytes(self.rng.choice((0, 100, 100_000))))
            return file
        if kind < 0.35:
            file = self.folder / f"{number}.docx"
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bomb:
                bomb.writestr("word/document.xml", "<a>" * 1_000_000)
            return file
        return self._text(self.rng.choice((50, 300, 2000)))

    def _text(self, num_words: int) -> Path:
        number = next(self._numbers)
        file = self.folder / f"{number}.txt"
        words = (self.rng.choice(WORDS) for _ in range(num_words))
        file.write_text(f"Chapter {number}. {' '.join(words)}.", encoding="utf-8")
        return file

    def _submit(self, api: str, *inputs: Any) -> Any:
        return self.client.submit(self.session, *inputs, api_name=api)

    def events(self, api: str, *inputs: Any) -> list[Any]:
        """All updates of an event; what the page refuses is counted, not raised."""
        return self._outcome(self._submit(api, *inputs))

    def _outcome(self, job: Any) -> list[Any]:
        try:
            job.result(timeout=HANG_SECONDS)
            return list(job.outputs())
        except concurrent.futures.TimeoutError:
            with self.ledger.lock:
                self.ledger.hangs.append(f"{self.name}: {self.doing}")
            with contextlib.suppress(Exception):
                job.cancel()
        except concurrent.futures.CancelledError:
            pass
        except Exception as error:
            if type(error).__name__ in ("ConnectError", "ReadError", "RemoteProtocolError", "ConnectionError"):
                raise ConnectionError from error
            with self.ledger.lock:
                self.ledger.refused[type(error).__name__] += 1
        return []
