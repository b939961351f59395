"""Faults put into decoding and caches one at a time, to see that the tests notice each of them.

`python -m tests.core.decoding.mutants [--json F] [--only NAME]` copies the code, changes one place, runs the tests of
decoding, caches and engine until the first failure, and prints a table. A mutant that survives is a fault that the
tests cannot see. Cost: half an hour on two cores; so the default run only checks that every mutant still applies.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from app.runtime.versions import versions
from core.planning.hardware import this_machine
from tests.gpu.checklist import commit

ROOT = Path(__file__).parents[3]
TESTS = (
    "tests/core/decoding/test_verify.py",
    "tests/core/decoding/test_sampling.py",
    "tests/core/decoding/test_output_law.py",
    "tests/core/decoding/test_ngram_lookup.py",
    "tests/core/caches/test_caches.py",
    "tests/core/decoding/test_adaptive.py",
    "tests/core/generation/test_continue.py",
    "tests/core/test_engine.py",
    "tests/core/generation/test_interleave.py",
    "tests/core/decoding/test_sampled_text.py",
)
MOST_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: in `file`, where `old` stands once, `new` stands instead."""

    name: str
    file: str
    old: str
    new: str

    def applied(self, text: str) -> str:
        """The text with the fault. Raises ValueError where the place is not there exactly once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.file} holds {text.count(self.old)} places like {self.old!r}")
        return text.replace(self.old, self.new)


def check(mutant: Mutant) -> None:
    """That a fault has its place in the code as it is, and makes Python that compiles.

    Raises:
        AssertionError, SyntaxError, ValueError.
    """
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    changed = mutant.applied(text)
    assert changed != text, mutant.name
    compile(changed, mutant.file, "exec")


VERIFY, SAMPLING = "core/decoding/verify.py", "core/decoding/sampling.py"
SPECULATIVE, LOOKUP, METHODS = (
    "core/decoding/speculative.py",
    "core/decoding/ngram_lookup.py",
    "core/decoding/methods.py",
)
RETRIEVAL, FULL, STREAMING = "core/caches/retrieval.py", "core/caches/full.py", "core/caches/streaming.py"
QUERIES, LEVELS = "core/caches/query_log.py", "core/generation/levels.py"
MARKS, PREFILL = "core/caches/marks.py", "core/generation/prefill.py"
ANSWERING, RACE = "core/generation/decode_loop.py", "core/generation/interleave.py"

NEAREST = {  # what is run first for faults in a file
    RETRIEVAL: "tests/core/caches/test_caches.py",
    FULL: "tests/core/caches/test_caches.py",
    QUERIES: "tests/core/caches/test_caches.py",
    LEVELS: "tests/core/generation/test_interleave.py",
    STREAMING: "tests/core/generation/test_interleave.py",
    RACE: "tests/core/generation/test_interleave.py",
    PREFILL: "tests/core/test_engine.py",
    METHODS: "tests/core/test_engine.py",
    ANSWERING: "tests/core/decoding/test_sampled_text.py",
}

FAULTS: dict[str, tuple[tuple[str, str, str], ...]] = {  # by file: name, what stands there, what stands there instead
    VERIFY: (
        ("a rejected guess is replaced by a draw from p", "    if a < g:\n", "    if a < 0:\n"),
        ("the residual is q - p", "(weights - q[a])", "(q[a] - weights)"),
        ("the residual keeps negative parts", ".clamp_min(0)", ".abs()"),
        ("the residual is always taken, even if empty", "residual.sum() > 0", "residual.sum() > -1"),
        ("the residual is never taken", "residual.sum() > 0", "residual.sum() > 2"),
        ("the residual is taken of the first guess", "- q[a])", "- q[0])"),
        ("the bonus is drawn a row too early", "    weights = p[a]\n", "    weights = p[max(a - 1, 0)]\n"),
        ("every guess is accepted", "    weights = p[a]\n", "    a = g\n    weights = p[a]\n"),
        ("no guess is accepted", "    weights = p[a]\n", "    a = 0\n    weights = p[a]\n"),
        ("the verdict states the proposer's law", "probs=p[: a + 1]", "probs=torch.cat((q[:a], p[a : a + 1]))"),
        (
            "q of a token is q of its neighbour",
            "sampler.draw(weights), q_proposed,",
            "sampler.draw(weights), q_proposed.roll(1),",
        ),
        ("the drawn token is called accepted", '"bonus" if a == g', '"proposed" if a == g'),
        ("certain tokens are accepted as guessed", "common_prefix(guess.tokens, wanted[:g])", "g"),
    ),
    SAMPLING: (
        ("one coin for a whole round", "torch.rand(p.shape, ", "torch.rand(1, "),
        ("accept with q / p", "device=p.device) * q >= p", "device=p.device) * p >= q"),
        ("accept where p is above q only", "device=p.device) * q >= p", "device=p.device) * 0 + q > p"),
        (
            "a draw takes the likeliest token",
            "int(torch.searchsorted(sums, least, right=True))",
            "int(weights.argmax())",
        ),
        ("a draw can be of a token that cannot come", "least, right=True", "least"),
        ("sums of weights lose small ones", "weights.cumsum(-1, dtype=torch.float64)", "weights.cumsum(-1).double()"),
        ("draws do not depend on the seed", "torch.rand(1, generator=self._rng, ", "torch.rand(1, "),
        (
            "the temperature multiplies",
            "    scaled = logits.float() / sampling.temperature\n",
            "    scaled = logits.float() * sampling.temperature\n",
        ),
        ("top-k keeps one more", "scaled.topk(sampling.top_k, -1)", "scaled.topk(sampling.top_k + 1, -1)"),
        ("top-p is not renormalised", "    return probs / probs.sum(-1, keepdim=True)\n", "    return probs\n"),
        ("top-p keeps one less", "(ordered.cumsum(-1) - ordered < top_p).sum", "(ordered.cumsum(-1) < top_p).sum"),
        ("plain draws are skipped one short", "for _ in range(num_tokens):", "for _ in range(num_tokens - 1):"),
    ),
    SPECULATIVE: (
        (
            "greedy takes the last of the largest",
            "            return logits.argmax(-1)\n",
            "            return logits.shape[-1] - 1 - logits.flip(-1).argmax(-1)\n",
        ),
        (
            "the judge keeps the rejected guess",
            "self.truncate(len(context) + verdict.num_accepted)",
            "self.truncate(len(context) + verdict.num_accepted + 1)",
        ),
        (
            "the judge's cache is never rewound",
            "        self._verifier.truncate(length)\n        self._proposer.truncate(length)\n",
            "        self._proposer.truncate(length)\n",
        ),
        (
            "the proposer's cache is never rewound",
            "        self._verifier.truncate(length)\n        self._proposer.truncate(length)\n",
            "        self._verifier.truncate(length)\n",
        ),
        (
            "a proposal states one law for all its tokens",
            "return Guess(tuple(tokens), torch.stack(probs), ",
            "return Guess(tuple(tokens), torch.stack([probs[0]] * len(probs)), ",
        ),
        ("a proposal forgets what it has drawn", "            context = context.extended((token,))\n", ""),
        (
            "rounds of a proposal do not build on each other",
            "self.round(context.extended(tokens), sampler)",
            "self.round(context, sampler)",
        ),
        ("a proposal's laws are the newest ones", "torch.cat(probs)[:num_tokens]", "torch.cat(probs)[-num_tokens:]"),
        (
            "the judge looks one token short",
            "yield Pass(self._verifier, context.extended(tokens), len(tokens) + 1)",
            "yield Pass(self._verifier, context.extended(tokens[:-1]), len(tokens) + 1)",
        ),
    ),
    LOOKUP: (
        ("a lookup is sure of another token", ".scatter_(1, at, 1.0)", ".scatter_(1, 0 * at, 1.0)"),
        ("a lookup doubts", "(1, at, 1.0)", "(1, at, 0.5)"),
        (
            "a lookup proposes what it matched",
            "self._index.tokens[end : end + self._at_most]",
            "self._index.tokens[end - 1 : end + self._at_most]",
        ),
        ("an index keeps what was forgotten", "        del self.tokens[length:]\n", ""),
        ("an index finds what was forgotten", "                    del last[gram]\n", "                    pass\n"),
    ),
    RETRIEVAL: (
        (
            "approximations are never replaced",
            "        if exact > self._synced:\n",
            "        if exact > self._synced + 10**9:\n",
        ),
        (
            "replaced one row too late",
            "self._copy_recent(self._synced, exact)",
            "self._copy_recent(self._synced + 1, exact)",
        ),
        (
            "a rewind keeps the chunks behind it",
            "        if length < self._recent_start or",
            "        if length < 0 or",
        ),
        (
            "chunks go into their neighbour's slot",
            "by_chunk(self.k[layer][0], size)[heads, slots] = k",
            "by_chunk(self.k[layer][0], size)[heads, slots.flip(0)] = k",
        ),
        ("values of chunks are not copied", "        by_chunk(self.v[layer][0], size)[heads, slots] = v\n", ""),
        (
            "what was set aside keeps another lane's chunks",
            "changed = part.held >= shared // size",
            "changed = part.held < 0",
        ),
        (
            "what was set aside is put back without its recent rows",
            "        self._copy_all_recent(self._length)\n        self.state.adopt",
            "        self.state.adopt",
        ),
    ),
    STREAMING: (
        (
            "a draft's window is put back a row short",
            "self._rows, self._length = window.k[0].shape[2], window.length",
            "self._rows, self._length = window.k[0].shape[2] - 1, window.length",
        ),
    ),
    FULL: (
        (
            "a rewind forgets nothing",
            "self._length, self._staged = length, False\n        self.votes.truncate(length)\n        for store",
            "self._staged = False\n        for store",
        ),
        (
            "a rewind keeps landmarks",
            "        self._num_landmarks = min(self._num_landmarks, self._length // self.chunk_size)\n",
            "",
        ),
        (
            "landmarks are of the chunk before",
            "self._landmarks[layer][:, first:last] = ",
            "self._landmarks[layer][:, max(first - 1, 0) : max(first - 1, 0) + last - first] = ",
        ),
        ("a rewind finds no remembered queries", "known = self._marks.get(length)", "known = self._marks.get(-1)"),
        ("a lane's rows come back without its queries", "        self.queries.restore(suffix.queries)\n", ""),
    ),
    QUERIES: (
        (
            "overwritten queries count as known",
            "self.first = max(self.first, start + width - QUERY_LOG)",
            "self.first = 0",
        ),
        (
            "queries come from one token before",
            "start = min(max(self.first, length - num_queries), length)",
            "start = max(0, length - 1 - num_queries)",
        ),
    ),
    MARKS: (
        (
            "remembered queries outlive their tokens",
            "            del self[mark]  # it belongs to forgotten tokens\n",
            "            pass\n",
        ),
    ),
    ANSWERING: (
        ("a continued answer repeats its draws", 'f"{seed} {num_written}"', 'f"{seed} {0 * num_written}"'),
        (
            "speculation goes on where plain decoding would",
            "    if not speculative:\n",
            "    if not speculative or num_written:\n",
        ),
        (
            "an end of text in the middle of a run is missed",
            "            if self.stop_reason is not None:\n                break\n",
            "",
        ),
        (
            "one token more than asked for",
            "- self._num_before >= self._config.max_new_tokens",
            "- self._num_before > self._config.max_new_tokens",
        ),
    ),
    PREFILL: (
        (
            "after an answer the caches keep what was not committed",
            "        self._seen = list(tokens[:length])\n        self.rewind(length)\n",
            "        self._seen = list(tokens[:length])\n",
        ),
        (
            "overwritten queries are not asked again",
            "if reused > voting and not full.can_choose(voting, total):",
            "if reused > voting and not full.can_choose(total, total):",
        ),
    ),
    LEVELS: (
        (
            "comparison looks at the best two tokens",
            "float(logits.max() - logits[list(tokens)].min())",
            "float(-logits.topk(2).values.diff())",
        ),
        ("two lossy lanes share a cache", "lane=before[config.method])", "lane=0)"),
    ),
    "core/engine_info.py": (
        ("a beginning counts as equal", 'else cls("mismatch", shared, None)', 'else cls("identical", None, None)'),
    ),
    RACE: (
        (
            "lanes choose anew in every turn",
            "retry(lambda: decoder.put_back(held, self._base), lambda: None)",
            'decoder.recover(__import__("core.caches.tokens").caches.tokens.Context(self.answer.tokens))',
        ),
    ),
    METHODS: (
        (
            "a lookup leaves out the draft's law",
            "            index.extend(context.span(len(index.tokens), len(context)))\n",
            "            pass\n",
        ),
        (
            "level 2 judges through the retrieval cache",
            '"full": parts.full}',
            '"full": parts.retrieval if name == "triforce" else parts.full}',
        ),
    ),
}
MUTANTS = tuple(Mutant(name, file, old, new) for file, faults in FAULTS.items() for name, old, new in faults)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant: which test killed it, or that none did."""

    name: str
    file: str
    killed_by: str | None
    seconds: float


def run(mutant: Mutant, tests: Sequence[str] = TESTS) -> Outcome:
    """Run the tests on a copy of the code with this fault, until one fails."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="mutant-") as scratch:
        copy = Path(scratch)
        for part in ("core", "tests", "pyproject.toml"):
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / part)
        file = copy / mutant.file
        file.write_text(mutant.applied(file.read_text(encoding="utf-8")), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "--no-header",
            "--tb=no",
            "-p",
            "no:cacheprovider",
            *sorted(tests, key=lambda test: test != NEAREST.get(mutant.file)),  # the order of the others stays
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, timeout=MOST_SECONDS, check=False
            )
            failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
            killer = failed[0] if failed else None if done.returncode == 0 else done.stdout.strip()[-200:]
        except subprocess.TimeoutExpired:
            killer = "it never ended"
    return Outcome(mutant.name, mutant.file, killer, round(time.perf_counter() - started, 1))


def main(
    argv: Sequence[str] | None = None, *, mutants: Sequence[Mutant] = MUTANTS, tests: Sequence[str] = TESTS
) -> int:
    """Print the table; 1 where a mutant survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the table there")
    parser.add_argument("--only", help="mutants whose name contains this")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args(argv)
    chosen = [mutant for mutant in mutants if not args.only or args.only in mutant.name]
    outcomes = []
    with ThreadPoolExecutor(args.processes) as pool:
        for outcome in pool.map(partial(run, tests=tests), chosen):
            outcomes.append(outcome)
            print(f"{outcome.name:60} {outcome.killed_by or 'SURVIVED':70} {outcome.seconds:6.1f} s", flush=True)
    alive = [outcome.name for outcome in outcomes if outcome.killed_by is None]
    print(f"{len(outcomes) - len(alive)} of {len(outcomes)} killed" + (f"; alive: {', '.join(alive)}" if alive else ""))
    if args.json:
        report = {
            "date": datetime.now(UTC).date().isoformat(),
            "hardware": {"cpu": this_machine().cpu, "num_cores": this_machine().num_cores},
            "versions": versions(),
            "commit": commit(),
            "tests": tests,
            "killed": len(outcomes) - len(alive),
            "mutants": [asdict(o) for o in outcomes],
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
