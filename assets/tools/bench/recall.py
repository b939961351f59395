"""The recall suite: how often each method answers correctly, by skill and length, on books that no model has seen.

Defines how many questions are asked, how answers are scored and what a row reports; texts and questions come from
`recall_tasks.py`. Every question is a new conversation on a text that is read once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt

from assets.tools.bench.recall_tasks import (
    BOOK_SKILLS,
    ENGLISH_SKILLS,
    LONG_CONTEXT,
    Reading,
    Skill,
    books,
    choose_readings,
    english_texts,
)
from assets.tools.bench.speed import Row
from assets.tools.books.generated import Question
from assets.tools.books.quotes import sentences
from core.caches.tokens import common_prefix
from core.config import GenerationConfig
from core.decoding.registry import LOSSY_METHODS, PLAIN
from core.decoding.stats import LevelStats
from core.engine import Engine
from core.engine_info import EqualityVerdict
from core.errors import InvalidSetting
from core.generation.decode_loop import LONGEST_ROUND
from core.generation.events import Finished
from core.generation.session import Conversation

SKILLS = (*BOOK_SKILLS, *ENGLISH_SKILLS)
DEFAULT_METHODS = (PLAIN, "triforce", "streamingllm", "h2o")
DEFAULT_CONTEXTS = (8192, 32768, 122880)

SMALLEST_CONTEXT = 512  # shorter books have no chapter long enough to recite
RECITED_TOKENS = 200
NEW_TOKENS: Mapping[Skill, int] = {
    "fact": 60,
    "absent": 60,
    "list": 400,
    "quote": 150,
    "quote_any": 150,
    "recite": RECITED_TOKENS,
}
# Questions of a cell as shares of --questions, below LONG_CONTEXT and from it on. Long answers cost most: with these
# shares and 100 questions the default contexts were estimated at an hour on two cores.
SHARES: Mapping[Skill, tuple[float, float]] = {
    "fact": (1.0, 1.0),
    "absent": (1.0, 1.0),
    "list": (0.25, 0.12),
    "quote": (1.0, 0.5),
    "quote_any": (1.0, 0.5),
    "recite": (0.25, 0.12),
}
LOSSY_SHARE = 0.5  # of the questions that lossy methods are asked
# h2o scores every key for every question, which grows with the square of the length: minutes a question at 120K. It
# is asked less from here on, and from LONG_CONTEXT on only about a few facts.
CHEAP_H2O_CONTEXT, LEAST_H2O_SHARE = 12288, 0.05
Z95 = 1.959964  # two-sided 95% of the normal distribution


@dataclass(frozen=True, slots=True)
class Mark:
    """How correct an answer is. `credit`: F1 for lists, the correct beginning's share for recitations, else 0 or 1."""

    exact: bool
    credit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One scored answer."""

    skill: Skill
    reading: int
    mark: Mark
    finished: Finished
    prompt_tokens: int
    book_tokens_reread: int
    verdict: EqualityVerdict | None  # against plain decoding's token ids; None if there is nothing to compare


# -------------------- judging


def list_f1(answer: str, statements: Sequence[str]) -> float:
    """F1 of an answer's sentences against the wanted statements; a repeated sentence counts as wrong."""
    said = [sentence.strip().removesuffix(".") for sentence in sentences(answer)]
    hits = len(set(said) & set(statements))
    return 2 * hits / (len(said) + len(set(statements))) if said else 0.0


def wilson_interval(rate: float, n: int) -> tuple[float, float]:
    """Wilson's 95% interval of a rate observed in n trials."""
    z2 = Z95 * Z95
    middle = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * sqrt(rate * (1 - rate) / n + z2 / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def judge(skill: Skill, question: Question, answer: str, token_ids: Sequence[int], wanted_ids: Sequence[int]) -> Mark:
    """Score an answer by its text, recitations by the tokens of the beginning."""
    if skill == "recite":
        wanted = list(wanted_ids[:RECITED_TOKENS])
        share = common_prefix(list(token_ids), wanted) / len(wanted)
        return Mark(share == 1.0, share)
    exact = answer.strip() == question.answer.strip()
    return Mark(exact, list_f1(answer, question.values) if skill == "list" else float(exact))


# -------------------- how many questions


def cell_size(skill: Skill, context: int, questions: int) -> int:
    """How many questions of a skill exact methods get at a context length."""
    return max(1, round(questions * SHARES[skill][context >= LONG_CONTEXT]))


def num_asked(method: str, skill: Skill, context: int, of: int) -> int:
    """How many of the `of` questions of one kind about one text a method gets: lossy methods get a part."""
    if method not in LOSSY_METHODS:
        return of
    if method != "h2o":
        return ceil(of * LOSSY_SHARE)
    if context >= LONG_CONTEXT and skill != "fact":
        return 0
    share = max(LEAST_H2O_SHARE, (CHEAP_H2O_CONTEXT / context) ** 2)
    return ceil(of * min(LOSSY_SHARE, share))


# -------------------- measuring


def run_recall(
    engine: Engine,
    contexts: Sequence[int],
    methods: Sequence[str],
    *,
    skills: Sequence[str] = SKILLS,
    questions: int,
    seed: int,
    progress: Callable[[str], None] = lambda line: None,
) -> Iterator[Row]:
    """Measure; rows come when their context is done. An interrupt yields the rows so far, then is raised again.

    Args:
        methods: in order of use; plain decoding comes first as the baseline of the others.
        skills: the kinds of questions. A skill's questions do not depend on the other skills.
        questions: of a skill for an exact method; see SHARES for skills that get fewer because of their cost.
        progress: gets a line for every text read and every skill done.
    Raises:
        InvalidSetting: before anything is measured: a context leaves no room for a book or for the answers.
        KeyboardInterrupt: after the rows measured until then.
    """
    most = engine.context - max(NEW_TOKENS.values()) - LONGEST_ROUND
    for context in contexts:
        if not SMALLEST_CONTEXT <= context <= most:
            hint = f"Use --contexts from {SMALLEST_CONTEXT} to {most}."
            raise InvalidSetting(f"Recall cannot be measured at {context:,} tokens.", hint=hint)
    methods = sorted(dict.fromkeys(methods), key=lambda method: method != PLAIN)
    for context in contexts:
        answered: list[Answered] = []
        try:
            for source, of_source in ((books, BOOK_SKILLS), (english_texts, ENGLISH_SKILLS)):
                wanted = {skill: cell_size(skill, context, questions) for skill in of_source if skill in skills}
                if not wanted:
                    continue
                texts = choose_readings(engine.text, context, source(engine.text, context, seed, questions), wanted)
                for number, reading in enumerate(texts, start=1):
                    name = "book" if source is books else "English text"
                    progress(f"{context:,} tokens, {name} {number}: {len(reading.book_ids):,} tokens")
                    ask_all(engine, context, reading, methods, answered, progress)
        except KeyboardInterrupt:
            yield from make_rows(context, answered)
            raise
        yield from make_rows(context, answered)


def ask_all(
    engine: Engine,
    context: int,
    reading: Reading,
    methods: Sequence[str],
    answered: list[Answered],
    progress: Callable[[str], None],
) -> None:
    """Ask about one text by all methods, greedily, adding to `answered` after every answer."""
    conversation, number, before = Conversation(reading.book_ids), len(answered), len(answered)
    engine.close()
    known = 0  # tokens that are not read again
    for skill, asked in reading.asked.items():
        for index, question in enumerate(asked):
            prompt = conversation.ask(question.question).prompt_ids(engine.text)
            wanted = engine.text.encode(question.answer)
            limit = NEW_TOKENS[skill] if skill == "recite" else max(NEW_TOKENS[skill], len(wanted) + 8)
            plain: Finished | None = None
            for method in methods:
                if index >= num_asked(method, skill, context, len(asked)):
                    continue
                *_, finished = engine.generate(prompt, GenerationConfig(method=method, max_new_tokens=limit))
                assert isinstance(finished, Finished)
                verdict: EqualityVerdict | None = None
                if method == PLAIN:
                    plain = finished
                elif plain is not None and finished.exact:
                    verdict = engine.compare(prompt, plain.token_ids, finished.token_ids).verdict
                answered.append(
                    Answered(
                        skill=skill,
                        reading=number,
                        mark=judge(skill, question, finished.text, finished.token_ids, wanted),
                        finished=finished,
                        prompt_tokens=len(prompt),
                        book_tokens_reread=max(0, known - finished.reused_tokens),
                        verdict=verdict,
                    )
                )
                known = len(conversation.opening_ids(engine.text))
        right = sum(one.mark.exact for one in answered[before:])
        progress(f"  {skill}: {right} of {len(answered) - before} right, all methods")
        before = len(answered)


# -------------------- rows


def make_rows(context: int, answered: Sequence[Answered]) -> list[Row]:
    """One row for every method and skill that has answers, and one of skill "all" for all answers of a method.

    Intervals are Wilson's at 95%. For mean credits they are wider than necessary: a share of 0 to 1 varies less than a
    yes or no with the same mean.
    """
    rows = []
    for method in dict.fromkeys(one.finished.method for one in answered):
        of_method = [one for one in answered if one.finished.method == method]
        for skill in (*SKILLS, "all"):
            chosen = [one for one in of_method if skill in (one.skill, "all")]
            if chosen:
                rows.append(_row(context, method, skill, chosen))
    return rows


def _row(context: int, method: str, skill: str, chosen: Sequence[Answered]) -> Row:
    n, stats = len(chosen), [one.finished.stats for one in chosen]
    exact = sum(one.mark.exact for one in chosen) / n if skill != "all" else None
    credit = sum(one.mark.credit for one in chosen) / n
    f1, share = (credit if skill == name else None for name in ("list", "recite"))
    intervals = [None if rate is None else wilson_interval(rate, n) for rate in (exact, f1, share)]
    new_tokens, full_passes = sum(s.new_tokens for s in stats), sum(s.full_passes for s in stats)
    verdicts = [one.verdict for one in chosen if one.verdict is not None]
    return {
        "context": context,
        "method": method,
        "skill": skill,
        "n": n,
        "texts": len({one.reading for one in chosen}),
        "prompt_tokens": max(one.prompt_tokens for one in chosen),  # of the longest prompt
        "exact": exact,
        "exact_interval": intervals[0],
        "f1": f1,
        "f1_interval": intervals[1],
        "prefix_share": share,  # of the first 200 tokens, the share before the first wrong one
        "prefix_share_interval": intervals[2],
        "new_tokens": new_tokens,
        "ms_per_token": 1e3 * sum(s.decode_seconds for s in stats) / new_tokens if new_tokens else None,
        "acceptance_level1": _acceptance([s.level1 for s in stats]),
        "acceptance_level2": _acceptance([s.level2 for s in stats]),
        "tokens_per_full_pass": new_tokens / full_passes if full_passes and chosen[0].finished.exact else None,
        "identical_to_autoregressive": verdicts.count("identical") if verdicts else None,  # answers, of `compared`
        "near_ties": verdicts.count("near_tie") if verdicts else None,
        "compared": len(verdicts) or None,
        "book_tokens_reread": sum(one.book_tokens_reread for one in chosen),
    }


def _acceptance(levels: Sequence[LevelStats | None]) -> float | None:
    """Accepted / tested over many answers; None if nothing was tested."""
    tested = sum(level.tested for level in levels if level)
    return sum(level.accepted for level in levels if level) / tested if tested else None
