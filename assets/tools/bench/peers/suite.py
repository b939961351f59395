"""Runs the lanes in turns and compares them. A run is one process that reads a text and answers a question of each kind
about it, so that time to the first token and memory are its own, and one that is killed loses only itself."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from assets.tools.bench.checkpoint import Checkpoint
from assets.tools.bench.peers.environments import environment
from assets.tools.bench.peers.lanes import BASELINE, LANES, OURS, PROGRAMS, Lane, Program
from assets.tools.bench.peers.process import NotMeasured, ask
from core.errors import InvalidSetting

RUN_SECONDS = 3600.0  # a run that takes longer is ended and reported
CONVERT_SECONDS = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRow:
    """One lane at one context length, and one kind of answer. Medians are over the runs."""

    context: int  # wanted prompt tokens
    answer: str  # its kind
    program: str
    method: str  # the lane
    prompt_tokens: int
    new_tokens: int
    runs: int
    first_token_seconds: float  # median; of the first kind it includes reading the text
    ms_per_token: float | None  # median, of all tokens but those that came first; None: there was one
    ratio_to_ours: float | None  # to our plain decoding in the same turn, above 1: slower; median
    memory_gib: float  # most that the process held, the largest of the runs
    equal_tokens: int  # of the answer's first tokens, as many equal our plain decoding's
    same_tokens: bool  # all of them
    difference: str | None  # the first: our token and the lane's
    difference_logprob: float | None  # by which ours is likelier to our model; None: the lane's is not likely at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A lane that was not measured, and why; without a context: a program at all lengths."""

    context: int | None
    method: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The pair that all programs compute with."""

    target: Path
    draft: Path | None

    def digest(self) -> str:
        """Changes when one of the files does."""
        places = [place for place in (self.target, self.draft) if place]
        files = sorted(file for place in places for file in ([place] if place.is_file() else place.glob("*.*")))
        told = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


class Peers:
    """The suite.

    Raises (when made):
        InvalidSetting: there is no such program.
    """

    def __init__(
        self,
        weights: Weights,
        folder: Path,
        *,
        threads: int,
        only: Sequence[str] = (),
        parts: Sequence[str] = (),
        programs: Sequence[Program] = PROGRAMS,
        lanes: Sequence[Lane] = LANES,
        tell: Callable[[str], object] = lambda _: None,
    ) -> None:
        """`folder`: for environments and converted models. `only`: names of programs; ours always takes part.
        `parts`: of the lanes' names; those with one of them and our plain decoding take part."""
        known = [program.name for program in programs]
        for name in only:
            if name not in known:
                raise InvalidSetting(f"There is no peer {name!r}.", hint=f"Use some of: {', '.join(known)}.")
        self._weights, self._folder, self._threads, self._tell = weights, folder, threads, tell
        self._programs = {one.name: one for one in programs if not only or one.name in (*only, OURS)}
        self._lanes = [
            lane
            for lane in lanes
            if lane.program in self._programs
            and (not parts or lane.name == BASELINE or any(part in lane.name for part in parts))
        ]
        self._pythons: dict[str, Path | str] = {}
        self.skipped: list[Skipped] = []
        self.out_of_time = False

    def prepare(self, own_python: str, *, offline: bool = False) -> dict[str, str]:
        """Make environments and convert the model; the versions of the programs. What fails is skipped."""
        versions = dict[str, str]()
        for program in self._programs.values():
            place = self._folder / program.name
            try:
                if self._weights.target.is_file() and not program.reads_gguf:
                    raise NotMeasured("it does not compute with the weights of GGUF files as they are")
                if program.recipe is None:
                    self._pythons[program.name] = own_python
                    continue
                python = environment(program.recipe, place / "environment", self._tell, offline=offline)
                self._work(program).mkdir(parents=True, exist_ok=True)
                answer = self._ask(python, program, {"do": "prepare"}, CONVERT_SECONDS)
                self._pythons[program.name], versions[program.name] = python, answer["version"]
            except (NotMeasured, OSError) as error:
                self._skip(None, program.name, str(error))
        return versions

    def rows(
        self,
        contexts: Sequence[int],
        *,
        repeats: int,
        max_new_tokens: int,
        seed: int,
        checkpoint: Checkpoint,
        minutes: float | None = None,
        text: str = "",
    ) -> Iterator[PeerRow]:
        """Measure; the rows of a context come when its runs are done, or when the minutes are over.

        Args:
            text: what the questions are about; a generated book if it is empty.
        Raises:
            NotMeasured: this program's own worker failed to write the prompt.
        """
        end = None if minutes is None else time.monotonic() + 60 * minutes
        for context in contexts:
            asked = {"do": "prompt", "context": context, "seed": seed, "text": text}
            given = self._ask(self._pythons[OURS], self._programs[OURS], asked, RUN_SECONDS)
            given |= {"do": "run", "max_new_tokens": max_new_tokens}
            runs: list[dict[str, dict[str, Any]]] = [{} for _ in range(repeats)]
            for turn in range(repeats):
                for lane in self._turn(context, turn):
                    key = f"{context}/{lane.name}/{turn}"
                    found = checkpoint.get(key)
                    if found is None:
                        self.out_of_time = end is not None and time.monotonic() > end
                        if self.out_of_time:
                            break
                        found = self._run(context, lane, turn, given)
                        if found is None:
                            continue
                        checkpoint.put(key, found)
                    runs[turn][lane.name] = found
                if self.out_of_time:
                    break
            for kind, prompt in given["prompts"].items():
                of_kind = [{name: run[kind] for name, run in turn.items()} for turn in runs]
                yield from compare(context, kind, self._lanes, len(prompt), of_kind)
            if self.out_of_time:
                return

    def _turn(self, context: int, turn: int) -> list[Lane]:
        """The lanes that can run, forwards and backwards by turns, so that a drift of the machine affects all."""
        failed = {skipped.method for skipped in self.skipped if skipped.context in (None, context)}
        lanes = [lane for lane in self._lanes if not {lane.name, lane.program} & failed]
        return lanes[:: -1 if turn % 2 else 1]

    def _run(self, context: int, lane: Lane, turn: int, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """One run; None if it failed, which is told and noted."""
        self._tell(f"{context:,} tokens, turn {turn + 1}: {lane.name}")
        if lane.needs_draft and self._weights.draft is None:
            self._skip(context, lane.name, "there is no draft model")
            return None
        program = self._programs[lane.program]
        try:
            answer = self._ask(
                self._pythons[program.name], program, {**given, "options": dict(lane.options)}, RUN_SECONDS
            )
        except NotMeasured as error:
            self._skip(context, lane.name, str(error))
            return None
        return answer

    def _skip(self, context: int | None, name: str, reason: str) -> None:
        self.skipped.append(Skipped(context=context, method=name, reason=reason))
        self._tell(f"Not measured: {name}. {reason[:1].upper()}{reason[1:].rstrip('.')}.")

    def _work(self, program: Program) -> Path:
        return self._folder / program.name / f"model-{self._weights.digest()}"

    def _ask(self, python: Path | str, program: Program, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        draft = self._weights.draft
        folders = {"target": str(self._weights.target), "draft": str(draft) if draft else None}
        log = self._folder / f"{program.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        request = {**request, **folders, "work": str(self._work(program))}
        return ask(python, program.worker, request, threads=self._threads, log=log, seconds=seconds)


def compare(
    context: int, kind: str, lanes: Sequence[Lane], prompt_tokens: int, turns: Sequence[Mapping[str, dict[str, Any]]]
) -> Iterator[PeerRow]:
    """The rows of one kind of answer: each lane's runs beside our plain decoding's in the same turns."""
    plain: Mapping[str, Any] = next((turn[BASELINE] for turn in turns if BASELINE in turn), {})
    reference = plain.get("tokens")
    for lane in lanes:
        name = lane.name
        runs = [turn[name] for turn in turns if name in turn]
        if not runs:
            continue
        times = [run["ms_per_token"] for run in runs if run["ms_per_token"]]
        pairs = [
            (turn[name]["ms_per_token"], turn[BASELINE]["ms_per_token"])
            for turn in turns
            if {name, BASELINE} <= set(turn)
        ]
        ratios = [mine / ours for mine, ours in pairs if mine and ours]
        tokens, ours = runs[-1]["tokens"], reference or ()
        differ = [place for place, (a, b) in enumerate(zip(tokens, ours, strict=False)) if a != b]
        difference, logprob = _difference(plain, tokens, differ[0]) if differ else (None, None)
        yield PeerRow(
            context=context,
            answer=kind,
            program=lane.program,
            method=name,
            prompt_tokens=prompt_tokens,
            new_tokens=len(tokens),
            runs=len(runs),
            first_token_seconds=median(run["first_token_seconds"] for run in runs),
            ms_per_token=median(times) if times else None,
            ratio_to_ours=median(ratios) if ratios else None,
            memory_gib=max(run["peak_memory_bytes"] for run in runs) / 2**30,
            equal_tokens=differ[0] if differ else min(len(tokens), len(ours)),
            same_tokens=all(run["tokens"] == reference for run in runs),
            difference=difference,
            difference_logprob=logprob,
        )


def _difference(plain: Mapping[str, Any], tokens: Sequence[int], place: int) -> tuple[str, float | None]:
    """What stands at the first place where a lane's tokens are not our plain decoding's, and how near it was."""
    likely = {token: (text, logprob) for token, text, logprob in plain["likely"][place]}
    here, there = plain["tokens"][place], tokens[place]
    named = [repr(likely[token][0]) if token in likely else f"token {token}" for token in (here, there)]
    near = likely[here][1] - likely[there][1] if {here, there} <= set(likely) else None
    return f"{named[0]}, there {named[1]}", near
