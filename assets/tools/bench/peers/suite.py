"""`bench --suite peers`: this program beside others, on the processor, in turns. A run is one process that reads a text
and answers a question of each kind about it, so that time to the first token and memory are its own, and one that is
killed loses only itself."""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from app.context.context_documents import Library
from app.documents.bundle import read_documents
from app.runtime.data_folder import data_dir
from assets.tools.bench.checkpoint import Checkpoint
from assets.tools.bench.peers.lanes import BASELINE, LANES, OURS, PROGRAMS, Lane, Program
from assets.tools.bench.peers.process import NotMeasured, ask, environment
from assets.tools.bench.report import BENCH_SEED, Measurement, commit, tell
from assets.tools.bench.speed import Row
from core.errors import InvalidSetting
from core.models.hub.catalog import BUNDLED
from core.models.hub.draft_selection import pair

DEFAULT_NEW_TOKENS = 256
BOOK_CONTEXTS, TEXT_CONTEXTS = (8192, 32768, 65536), (2000, 8000, 24000)
RUN_SECONDS = 3600.0  # a run that takes longer is ended and reported
CONVERT_SECONDS = 1800.0


def start(args: argparse.Namespace) -> Measurement:
    """Make environments and begin. Raises CoreError: settings or model."""
    if args.device == "cuda":
        raise InvalidSetting("Peers are measured on the processor.", hint="Leave out --device.")
    entry = pair(args.model or BUNDLED, args.draft or "auto")
    weights = Weights(target=entry.target, draft=entry.draft)
    text = Library.of(read_documents(args.text)).text if args.text else ""
    threads = psutil.cpu_count(logical=False) or 1
    shape = {
        "repeats": args.repeats,
        "max_new_tokens": args.max_new_tokens or DEFAULT_NEW_TOKENS,
        "seed": args.seed + BENCH_SEED,
    }
    about = {"suite": args.suite, "model": entry.name, "threads": threads, **shape}
    depends = {"weights": weights.digest(), "text": hashlib.sha256(text.encode()).hexdigest(), "commit": commit()}
    checkpoint = Checkpoint(args.checkpoint, about | depends)
    chosen = {"only": args.peers or (), "parts": args.parts or ()}
    peers = Peers(weights, data_dir(args.data_dir) / "peers", threads=threads, **chosen, tell=tell)
    programs = peers.prepare(sys.executable, offline=args.offline)
    contexts = args.contexts or (TEXT_CONTEXTS if text else BOOK_CONTEXTS)
    return Measurement(
        about | {"device": "cpu", "dtype": "float32"},
        peers.rows(contexts, **shape, checkpoint=checkpoint, text=text),
        lambda: {"skipped": peers.skipped, "programs": programs},
    )


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
        self.skipped: list[Row] = []  # lanes not measured; without a context: a program at all lengths

    def prepare(self, own_python: str, *, offline: bool = False) -> dict[str, str]:
        """Make environments and convert the model; the versions of the programs. What fails is skipped."""
        versions = dict[str, str]()
        for program in self._programs.values():
            self._pythons[program.name] = own_python
            try:
                if self._weights.target.is_file() and not program.reads_gguf:
                    raise NotMeasured("it does not compute with the weights of GGUF files as they are")
                if program.recipe:
                    place = self._folder / program.name / "environment"
                    python = environment(program.recipe, place, self._tell, offline=offline)
                    self._pythons[program.name] = python
                    answer = self._ask(program.name, {"do": "prepare"}, CONVERT_SECONDS)
                    versions[program.name] = answer["version"]
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
        text: str = "",
    ) -> Iterator[Row]:
        """Measure; the rows of a context come when its runs are done.

        Args:
            text: what the questions are about; a generated book if it is empty.
        Raises:
            InvalidSetting: this program's own worker failed to write the prompt.
        """
        for context in contexts:
            wanted = {"do": "prompt", "context": context, "seed": seed, "text": text}
            try:
                given = self._ask(OURS, wanted, RUN_SECONDS)
            except NotMeasured as error:
                raise InvalidSetting(
                    f"The prompt could not be written: {error}.", hint="Use other --contexts."
                ) from error
            given |= {"do": "run", "max_new_tokens": max_new_tokens}
            runs: list[dict[str, dict[str, Any]]] = [{} for _ in range(repeats)]
            for turn in range(repeats):
                for lane in self._turn(context, turn):
                    key = f"{context}/{lane.name}/{turn}"
                    found = checkpoint.get(key)
                    if found is None:
                        self._tell(f"{context:,} tokens, turn {turn + 1}: {lane.name}")
                        try:
                            if lane.needs_draft and self._weights.draft is None:
                                raise NotMeasured("there is no draft model")
                            found = self._ask(lane.program, {**given, "options": dict(lane.options)}, RUN_SECONDS)
                        except NotMeasured as error:
                            self._skip(context, lane.name, str(error))
                            continue
                        checkpoint.put(key, found)
                    runs[turn][lane.name] = found
            for kind, prompt in given["prompts"].items():
                of_kind = [{name: run[kind] for name, run in turn.items()} for turn in runs]
                yield from compare(context, kind, self._lanes, len(prompt), of_kind)

    def _turn(self, context: int, turn: int) -> list[Lane]:
        """The lanes that can run, forwards and backwards by turns, so that a drift of the machine affects all."""
        failed = {skipped["method"] for skipped in self.skipped if skipped["context"] in (None, context)}
        lanes = [lane for lane in self._lanes if not {lane.name, lane.program} & failed]
        return lanes[:: -1 if turn % 2 else 1]

    def _skip(self, context: int | None, name: str, reason: str) -> None:
        self.skipped.append({"context": context, "method": name, "reason": reason})
        self._tell(f"Not measured: {name}. {reason[:1].upper()}{reason[1:].rstrip('.')}.")

    def _ask(self, name: str, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """A program's answer."""
        draft, work = self._weights.draft, self._folder / name / f"model-{self._weights.digest()}"
        work.mkdir(parents=True, exist_ok=True)
        told = {"target": str(self._weights.target), "draft": str(draft) if draft else None, "work": str(work)}
        worker, log = self._programs[name].worker, self._folder / f"{name}.log"
        request = {**request, **told}
        return ask(self._pythons[name], worker, request, threads=self._threads, log=log, seconds=seconds)


def compare(
    context: int, kind: str, lanes: Sequence[Lane], prompt_tokens: int, turns: Sequence[Mapping[str, dict[str, Any]]]
) -> Iterator[Row]:
    """The rows of one kind of answer: each lane's runs beside our plain decoding's in the same turns."""
    plain: Mapping[str, Any] = next((turn[BASELINE] for turn in turns if BASELINE in turn), {})
    reference = plain.get("tokens")
    for lane in lanes:
        name, pairs = lane.name, [(turn[lane.name], turn.get(BASELINE)) for turn in turns if lane.name in turn]
        if not pairs:
            continue
        times = [run["ms_per_token"] for run, _ in pairs if run["ms_per_token"]]
        ratios = [
            run["ms_per_token"] / ours["ms_per_token"]
            for run, ours in pairs
            if ours and run["ms_per_token"] and ours["ms_per_token"]
        ]
        tokens, ours = pairs[-1][0]["tokens"], reference or ()
        differ = [place for place, (a, b) in enumerate(zip(tokens, ours, strict=False)) if a != b]
        difference, logprob = _difference(plain, tokens, differ[0]) if differ else (None, None)
        yield {
            "context": context,  # wanted prompt tokens
            "answer": kind,
            "program": lane.program,
            "method": name,
            "prompt_tokens": prompt_tokens,
            "new_tokens": len(tokens),
            "runs": len(pairs),
            # of the first kind of answer it includes reading the text
            "first_token_seconds": median(run["first_token_seconds"] for run, _ in pairs),
            "ms_per_token": median(times) if times else None,  # of all tokens but those that came first
            "ratio_to_ours": median(ratios) if ratios else None,  # plain decoding in the same turn; above 1: slower
            "memory_gib": max(run["peak_memory_bytes"] for run, _ in pairs) / 2**30,  # most that the process held
            "equal_tokens": differ[0] if differ else min(len(tokens), len(ours)),  # first ones, to plain decoding's
            "same_tokens": all(run["tokens"] == reference for run, _ in pairs),
            "difference": difference,  # the first: our token and the lane's
            "difference_logprob": logprob,  # by which ours is likelier to our model; None: the lane's is not likely
        }


def _difference(plain: Mapping[str, Any], tokens: Sequence[int], place: int) -> tuple[str, float | None]:
    """What stands at the first place where a lane's tokens are not our plain decoding's, and how near it was."""
    likely = {token: (text, logprob) for token, text, logprob in plain["likely"][place]}
    here, there = plain["tokens"][place], tokens[place]
    named = [repr(likely[token][0]) if token in likely else f"token {token}" for token in (here, there)]
    near = likely[here][1] - likely[there][1] if {here, there} <= set(likely) else None
    return f"{named[0]}, there {named[1]}", near
