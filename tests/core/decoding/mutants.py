"""Faults put into decoding and caches one at a time, to see that the tests notice each of them.

`python -m tests.core.decoding.mutants [--only NAME]` copies the code, changes one place, runs the tests of
decoding, caches and engine until the first failure, and prints a table. A mutant that survives is a fault that the
tests cannot see. Cost: half an hour on two cores; so the default run only checks that every mutant still applies.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[3]
TESTS = (
    "tests/core/decoding/test_verify.py",
    "tests/core/decoding/test_sampling.py",
    "tests/core/decoding/test_output_law.py",
    "tests/core/decoding/test_ngram_lookup.py",
    "tests/core/caches/test_caches.py",
    "tests/core/caches/test_stores.py",
    "tests/core/decoding/test_adaptive.py",
    "tests/core/generation/test_answer.py",
    "tests/core/test_engine.py",
    "tests/core/generation/test_interleave.py",
    "tests/core/generation/test_prefill.py",
    "tests/core/generation/test_together.py",
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


FAULTS: dict[str, tuple[tuple[str, str, str], ...]] = {  # by file: name, what stands there, what stands there instead
    "core/decoding/verify.py": (
        ("a rejected guess is replaced by a draw from p", "if a < g:", "if a < 0:"),
        ("the residual is q - p", "(weights - q[a])", "(q[a] - weights)"),
        ("the residual keeps negative parts", ".clamp_min(0)", ".abs()"),
        ("the residual is always taken, even if empty", "residual.sum() > 0", "residual.sum() > -1"),
        ("the residual is never taken", "residual.sum() > 0", "residual.sum() > 2"),
        ("the residual is taken of the first guess", "- q[a])", "- q[0])"),
        ("the bonus is drawn a row too early", "    weights = p[a]\n", "    weights = p[max(a - 1, 0)]\n"),
        ("every guess is accepted", "    weights = p[a]\n", "    a = g\n    weights = p[a]\n"),
        ("no guess is accepted", "    weights = p[a]\n", "    a = 0\n    weights = p[a]\n"),
        ("the verdict states the proposer's law", "probs=p[: a + 1]", "probs=torch.cat((q[:a], p[a : a + 1]))"),
        ("q of a token is q of its neighbour", "(weights), q_proposed,", "(weights), q_proposed.roll(1),"),
        ("the drawn token is called accepted", '"bonus" if a == g', '"proposed" if a == g'),
        ("certain tokens are accepted as guessed", "common_prefix(guess.tokens, wanted[:g])", "g"),
    ),
    "core/decoding/sampling.py": (
        ("one coin for a whole round", "torch.rand(p.shape, ", "torch.rand(1, "),
        ("accept with q / p", "device=p.device) * q >= p", "device=p.device) * p >= q"),
        ("accept where p is above q only", "device=p.device) * q >= p", "device=p.device) * 0 + q > p"),
        ("a draw takes the likeliest token", "torch.searchsorted(sums, least, right=True)", "weights.argmax()"),
        ("a draw can be of a token that cannot come", "least, right=True", "least"),
        ("sums of weights lose small ones", "weights.cumsum(-1, dtype=torch.float64)", "weights.cumsum(-1).double()"),
        ("draws do not depend on the seed", "torch.rand(1, generator=self._rng, ", "torch.rand(1, "),
        ("the temperature multiplies", "/ sampling.temperature\n", "* sampling.temperature\n"),
        ("top-k keeps one more", "scaled.topk(sampling.top_k, -1)", "scaled.topk(sampling.top_k + 1, -1)"),
        ("top-p is not renormalised", "    return inside / inside.sum(-1, keepdim=True)\n", "    return inside\n"),
        ("top-p keeps one less", "ordered.cumsum(-1) - ordered >= top_p", "ordered.cumsum(-1) >= top_p"),
        ("likely tokens are left out of a nucleus", "/ (2 * len(probs))", "/ len(probs) * 4"),
        ("plain draws are skipped one short", "for _ in range(num_tokens):", "for _ in range(num_tokens - 1):"),
    ),
    "core/decoding/speculative.py": (
        (
            "greedy takes the last of the largest",
            "logits.argmax(-1)",
            "(-1 - logits.flip(-1).argmax(-1)) % len(logits.T)",
        ),
        ("the verifier keeps the rejected guess", "num_accepted)  # the bonus", "num_accepted + 1)  # the bonus"),
        ("the verifier's cache is never rewound", "        self._verifier.truncate(length)\n", ""),
        ("the proposer's cache is never rewound", "            self._proposer.truncate(length)", "            pass"),
        ("a proposal states one law for all its tokens", "torch.stack(probs)", "torch.stack([probs[0]] * len(probs))"),
        ("a proposal forgets what it has drawn", "            context = context.extended((token,))\n", ""),
        ("rounds of a proposal forget each other", "self.round(context.extended(tokens)", "self.round(context"),
        ("a proposal's laws are the newest ones", "torch.cat(probs)[:num_tokens]", "torch.cat(probs)[-num_tokens:]"),
        ("the verifier looks one token short", "extended(tokens), len", "extended(tokens[:-1]), len"),
    ),
    "core/decoding/ngram_lookup.py": (
        ("a lookup is sure of another token", ".scatter_(1, at, 1.0)", ".scatter_(1, 0 * at, 1.0)"),
        ("a lookup doubts", "(1, at, 1.0)", "(1, at, 0.5)"),
        ("a lookup proposes what it matched", "tokens[end : end + self", "tokens[end - 1 : end + self"),
        ("an index keeps what was forgotten", "        del self.tokens[length:]\n", ""),
        ("an index finds what was forgotten", "del last[gram]", "pass"),
    ),
    "core/decoding/methods.py": (
        (
            "a lookup leaves out the newest tokens",
            "index.extend(context.span(len(index.tokens), len(context)))",
            "pass",
        ),
        (
            "level 2 verifies through the retrieval cache",
            '"full": parts.full}',
            '"full": parts.retrieval if name == "triforce" else parts.full}',
        ),
    ),
    "core/caches/retrieval.py": (
        ("approximations are never replaced", "if exact > self._synced:", "if exact > self._synced + 10**9:"),
        ("replaced one row too late", "_recent(self._synced, exact)", "_recent(self._synced + 1, exact)"),
        ("a rewind keeps the chunks behind it", "if length < self._recent_start or", "if length < 0 or"),
        ("chunks go into their neighbour's slot", "[heads, slots] = k", "[heads, slots.flip(0)] = k"),
        ("values of chunks are not copied", "            by_chunk(self.v[number][0], size)[heads, slots] = v\n", ""),
        ("what was set aside keeps another lane's chunks", "part.held >= shared // size", "part.held < 0"),
        ("what was set aside has no recent rows", "        self._copy_all_recent(self._length)\n", ""),
    ),
    "core/caches/streaming.py": (
        (
            "a draft's window is put back a row short",
            "window.k[0].shape[2], window",
            "window.k[0].shape[2] - 1, window",
        ),
    ),
    "core/caches/full.py": (
        ("a rewind forgets nothing", "self._length, self._staged = length, False", "self._staged = False"),
        ("a rewind keeps landmarks", "min(self._num_landmarks, self._length", "max(self._num_landmarks, self._length"),
        (
            "landmarks are of the chunk before",
            "[layer][:, first:last] = ",
            "[layer][:, max(first - 1, 0) : max(first - 1, 0) + last - first] = ",
        ),
        ("a rewind finds no remembered queries", "self._marks.get(length)", "self._marks.get(-1)"),
        ("a layer's queries are others", "write(layer, start, q)", "write(layer, start, q * (1 + 1e-3 * layer))"),
        ("a lane's rows come back without its queries", "        self.queries.restore(suffix.queries)\n", ""),
    ),
    "core/caches/layer_storage.py": (
        (
            "the host attends to a block less",
            "self._host[: self._helped], scaling",
            "self._host[1 : self._helped], scaling",
        ),
        ("the host attends to others", "self._host[: self._helped], sc", "self._host[1 : self._helped + 1], sc"),
        (
            "what the host attended to is lost",
            "parts.append(part)\n            if tally is not None and",
            "if tally and",
        ),
        ("what is brought is another block", "group = self._ring.take()", "group = self._ring.take() * 1.01"),
    ),
    "core/caches/window_layer.py": (
        ("a window is a token short", "oldest = self.reach.first(start)", "oldest = self.reach.first(start) + 1"),
        (
            "too much is dropped",
            "return max(self._first, self.reach.first(max(0, length -",
            "return max(self._first, self.reach.first(max(0, length - 0 *",
        ),
        ("dropped rows stay where they were", "rows[:, :, : remaining.shape[2]] = remaining", "pass"),
    ),
    "core/caches/layerwise.py": (
        ("an earlier block does not come back", "self._away[layer].bring", "layer != 1 and self._away[layer].bring"),
        (
            "positions begin with the block",
            "torch.arange(start, start",
            "torch.arange(start - self._full.length, start",
        ),
    ),
    "core/caches/branch.py": (
        (
            "rows of a branch are laid one short",
            "rows[:, :, self._shared : stop] =",
            "rows[:, :, self._shared + 1 : stop + 1] =",
        ),
    ),
    "core/caches/query_log.py": (
        ("overwritten queries count as known", "max(self.first, start + width - QUERY_LOG)", "0"),
        ("queries come from one token before", "length - num_queries), length)", "length - 1 - num_queries), length)"),
    ),
    "core/caches/running_state.py": (
        ("remembered queries outlive their tokens", "del self[mark]  # it", "pass  # it"),
    ),
    "core/generation/decode_loop.py": (
        ("a continued answer repeats its draws", 'f"{seed} {num_written}"', 'f"{seed} {0 * num_written}"'),
        ("speculation goes on where plain decoding would", "if not speculative:", "if not speculative or num_written:"),
        ("an end of text in the middle of a run is missed", "if self.stop_reason is not None:", "if False:"),
        ("one token more than asked for", ">= self._config.max_new_tokens", "> self._config.max_new_tokens"),
    ),
    "core/generation/prefill.py": (
        ("after an answer the caches keep what was not committed", "        self.rewind(length)\n", ""),
        ("overwritten queries are not asked again", "can_choose(voting, total)", "can_choose(total, total)"),
    ),
    "core/generation/levels.py": (
        ("comparison looks at the best two tokens", "logits[list(tokens)].min()", "logits.topk(2).values.min()"),
        ("two lossy lanes share a cache", "lane=lane))", "lane=0))"),
    ),
    "core/generation/interleave.py": (
        (
            "lanes choose anew in every turn",
            "decoder.put_back(held, self._base)",
            'decoder.recover(__import__("core.caches.tokens").caches.tokens.Context(self.answer.tokens))',
        ),
    ),
    "core/engine_info.py": (
        ("a beginning counts as equal", 'else cls("mismatch", shared, None)', 'else cls("identical", None, None)'),
    ),
}
MUTANTS = tuple(Mutant(name, file, old, new) for file, faults in FAULTS.items() for name, old, new in faults)


def run(mutant: Mutant, tests: Sequence[str] = TESTS) -> str | None:
    """The first test to fail on a copy of the code with this fault; None: the fault survives."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as scratch:
        copy = Path(scratch)
        for part in ("core", "tests"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        file = copy / mutant.file
        file.write_text(mutant.applied(file.read_text(encoding="utf-8")), encoding="utf-8")
        nearest = Path(mutant.file).parent.name
        first = sorted(tests, key=lambda test: Path(test).parent.name != nearest)  # the order of the others stays
        command = [sys.executable, "-m", "pytest", "-xq", "--no-header", "--tb=no", "-p", "no:cacheprovider", *first]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, timeout=MOST_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return "it never ended"
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0] if failed else None if done.returncode == 0 else done.stdout.strip()[-200:]


def main(
    argv: Sequence[str] | None = None, *, mutants: Sequence[Mutant] = MUTANTS, tests: Sequence[str] = TESTS
) -> int:
    """Print the table; 1 where a mutant survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="mutants whose name contains this")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args(argv)
    chosen = [mutant for mutant in mutants if not args.only or args.only in mutant.name]
    killers: dict[str, str | None] = {}
    with ThreadPoolExecutor(args.processes) as pool:
        for mutant, killer in zip(chosen, pool.map(partial(run, tests=tests), chosen), strict=True):
            killers[mutant.name] = killer
            print(f"{mutant.name:60} {killer or 'SURVIVED'}", flush=True)
    alive = [name for name, killer in killers.items() if killer is None]
    print(f"{len(killers) - len(alive)} of {len(killers)} killed" + (f"; alive: {', '.join(alive)}" if alive else ""))
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
