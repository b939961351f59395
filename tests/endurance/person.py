"""Somebody at the page who does anything at any time, and remembers what was answered."""

import itertools
import random
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.context.samples import load_samples
from tests.app.ui.pages import MARK
from tests.endurance.tab import State, Tab, busy, exchanges, is_answered, is_over

METHODS = ("triforce", "autoregressive")
WORDS = ("harbour", "lantern", "kettle", "captain", "letter", "winter", "garden", "silver", "teapot", "morning")
TABS = ("library", "race", "inside", "system", "read")


@dataclass(slots=True)
class Ledger:
    """What people were told, of all runs. Times by the monotonic clock."""

    answered: dict[str, float] = field(default_factory=dict)  # a question that is asked once: when its answer was whole
    acts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)  # acts that hung, conversations that were others after a reload
    lock: threading.Lock = field(default_factory=threading.Lock)


class Person:
    """Somebody with one tab. `doing` names the present act."""

    def __init__(self, address: str, ledger: Ledger, rng: random.Random, folder: Path, name: str) -> None:
        self.address, self.ledger, self.rng, self.folder, self.name = address, ledger, rng, folder, name
        self.doing = "arriving"
        self._numbers = itertools.count()
        folder.mkdir(parents=True, exist_ok=True)
        self.tab = Tab(address)

    def __enter__(self) -> "Person":
        return self

    def __exit__(self, *_: object) -> None:
        self.tab.close()

    # -------------------- acts

    def act(self) -> None:
        """One act, drawn at random; questions above all."""
        acts: dict[Callable[[], None], int] = {
            self.open: 3,
            self.ask: 8,
            self.ask_and_stop: 3,
            self.ask_and_leave: 2,
            self.regenerate: 2,
            self.new_conversation: 2,
            self.race: 2,
            self.reload: 2,
            self.start_over: 1,
            self.stop_reading: 1,
            self.look_around: 2,
            self.wrong_input: 2,
        }
        (chosen,) = self.rng.choices([*acts], [*acts.values()])
        self.doing = chosen.__name__
        chosen()
        with self.ledger.lock:
            self.ledger.acts[self.doing] += 1

    def reload(self) -> None:
        """Come to the page again: it shows the conversation that it showed."""
        before = self.tab.settle()
        self._return(self.tab.session)
        shown = [exchanges(state) for state in (before, self.tab.state)]
        talks = [[(one["question"], MARK.sub("", one.get("text", ""))) for one in path] for path in shown]
        if talks[0] != talks[1] and "answering" not in before["flags"]:
            self._fault(f"a reload shows another conversation: {talks[0]} became {talks[1]}")

    def open(self) -> None:
        """Drop one file, or some, good or bad."""
        self.open_files(*(self._file() for _ in range(self.rng.choice((1, 1, 1, 2)))))

    def open_files(self, *files: Path) -> None:
        """Drop files, which are gone then, and wait until they are read."""
        self._counted(self.tab.open(*files), "open")
        for file in files:
            file.unlink(missing_ok=True)
        self._rest()

    def open_text(self) -> None:
        """Drop a small text: from here on there is something to ask about."""
        self.open_files(self._text(50))

    def ask(self) -> None:
        question = self._question()
        if self._asks(question, method=self.rng.choice(METHODS), temperature=self.rng.choice((0.0, 0.8))):
            state = self._until(lambda state: is_over(state, question))
            if is_answered(state, question):
                with self.ledger.lock:
                    self.ledger.answered[question] = time.monotonic()

    def ask_and_stop(self) -> None:
        question = self._question()
        if self._asks(question, method=self.rng.choice(METHODS), max_new_tokens=200):
            time.sleep(self.rng.random())
            self._does("stop")
            self._until(lambda state: is_over(state, question))

    def ask_and_leave(self) -> None:
        """Ask, and go away without a word; come back, or begin anew."""
        self._asks(self._question(), max_new_tokens=200)
        time.sleep(self.rng.random())
        self._return(self.tab.session if self.rng.random() < 0.5 else "")

    def regenerate(self) -> None:
        last = ["", *self.tab.settle()["chat"]["order"]][-1]
        self._does(f"again:{last}", settings={"method": "triforce", "temperature": 0.9, "max_new_tokens": 24})
        self._rest()

    def new_conversation(self) -> None:
        self._does("new")

    def race(self) -> None:
        self._does("race", question=self._question(), lanes=METHODS, limit=16)
        if self.rng.random() < 0.5:
            time.sleep(self.rng.random())
            self._does("stop-race")
        self._rest()

    def start_over(self) -> None:
        self._does("start-over")

    def stop_reading(self) -> None:
        self._does("stop-reading")

    def look_around(self) -> None:
        for tab in TABS:
            self.tab.show(tab)
            self._does(f"find:100::{self.rng.choice(WORDS)}")

    def wrong_input(self) -> None:
        usual = {"method": "triforce"}
        wrong: list[tuple[str, dict[str, Any]]] = [
            ("ask", {"question": "", "settings": usual}),
            ("ask", {"question": "x" * 200_000, "settings": usual}),
            ("ask", {"question": "Warm?", "settings": usual | {"temperature": -1.0, "top_p": 9.0}}),
            ("ask", {"question": "Long?", "settings": usual | {"max_new_tokens": -5}}),
            ("ask", {"question": "How?"}),
            ("choose:\ud800:9" if self.rng.random() < 0.1 else "choose:none:1-2", {}),
            ("preview:" + "0" * 64 + ":" + "9" * 30, {}),
            ("race", {"question": "", "lanes": ["triforce"]}),
            ("again:0", {"settings": usual}),
            ("open", {"files": ["../../conversations/x.json", "/etc/hostname"]}),
            ("nothing:", {}),
        ]
        act, values = self.rng.choice(wrong)
        self._does(act, **values)

    # -------------------- how

    def _question(self) -> str:
        return f"What of the {self.rng.choice(WORDS)}, {self.name} {next(self._numbers)} {self.rng.getrandbits(40):x}?"

    def _file(self) -> Path:
        number, kind = next(self._numbers), self.rng.random()
        if kind < 0.15:  # a sample, or a part of one
            source = self.rng.choice(load_samples()).file
            file = self.folder / f"{number}-{source.name}"
            file.write_bytes(source.read_bytes()[: self.rng.choice((1000, 20_000, 10**9))])
        elif kind < 0.3:  # noise
            file = self.folder / f"{number}.{self.rng.choice(('pdf', 'epub', 'docx', 'html', 'txt', 'exe'))}"
            file.write_bytes(self.rng.randbytes(self.rng.choice((0, 100, 100_000))))
        elif kind < 0.35:  # a bomb
            file = self.folder / f"{number}.docx"
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bomb:
                bomb.writestr("word/document.xml", "<a>" * 1_000_000)
        else:
            file = self._text(self.rng.choice((50, 300, 2000)))
        return file

    def _text(self, num_words: int) -> Path:
        number = next(self._numbers)
        file = self.folder / f"{number}.txt"
        words = (self.rng.choice(WORDS) for _ in range(num_words))
        file.write_text(f"Chapter {number}. {' '.join(words)}.", encoding="utf-8")
        return file

    def _does(self, act: str, **values: Any) -> bool:
        """Do an act, now and then sent twice; what the page refuses is counted."""
        done = self.tab.act(act, times=1 + (self.rng.random() < 0.2), **values)
        return self._counted(done, act)

    def _asks(self, question: str, **settings: Any) -> bool:
        return self._does("ask", question=question, settings={"method": "triforce", "max_new_tokens": 24, **settings})

    def _counted(self, done: bool, act: str) -> bool:
        if not done:
            with self.ledger.lock:
                self.ledger.refused[act.partition(":")[0]] += 1
        return done

    def _return(self, session: str) -> None:
        self.tab.close()
        self.tab = Tab(self.address, session)

    def _rest(self) -> None:
        self._until(lambda state: not busy(state), more=2)

    def _until(self, holds: Callable[[State], object], more: int = 0) -> State:
        try:
            return self.tab.until(holds, more)
        except TimeoutError:
            self._fault(f"hang: {self.doing}")
            return self.tab.state

    def _fault(self, told: str) -> None:
        with self.ledger.lock:
            self.ledger.faults.append(f"{self.name}: {told}")
