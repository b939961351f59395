"""`python launch.py race FILE... -q TEXT`: every method from one reading of the text; speeds, acceptance, equality."""

import argparse
import sys

from app.commands.ask import answer
from app.commands.reading import engine_config, generation_config, open_conversation, print_json, read_documents
from app.commands.report import answer_report, engine_report, equality_report, prefill_report, race_lines, rounded
from core.decoding.methods import METHODS
from core.engine import Engine, Equality
from core.errors import EmptyQuestion, InvalidSetting
from core.events import Finished

DEFAULT_METHODS = ("autoregressive", "triforce")


def run(args: argparse.Namespace) -> int:
    """Race. Returns 0.

    Raises:
        CoreError: files, question, settings or memory.
    """
    names = tuple(dict.fromkeys(args.methods or DEFAULT_METHODS))
    for name in names:
        if name not in METHODS:
            raise InvalidSetting(f"There is no method {name!r}.", hint=f"Use some of: {', '.join(METHODS)}.")
    configs = {name: generation_config(args, name) for name in names}
    if not args.question.strip():
        raise EmptyQuestion
    documents = read_documents(args.files)
    engine = Engine.load(engine_config(args))
    conversation = open_conversation(engine, documents)
    finished: dict[str, Finished] = {}
    for name in names:
        finished[name] = answer(engine, conversation, args.question, configs[name], shown=False)
        if not args.json:
            print(f"[{name}]\n{finished[name].text}\n", flush=True)
    prompt = conversation.ask(args.question).prompt_ids(engine.text)
    equality = equality_with_plain(engine, prompt, finished, greedy=args.temperature == 0)
    report = equality_report(equality)
    speedup = speed_ratio(finished)
    if args.json:
        print_json(
            {
                **engine_report(engine.info),
                **prefill_report(finished[names[0]]),
                "methods": {name: answer_report(result) for name, result in finished.items()},
                "speedup": rounded(speedup, 3),
                "equality": report,
            }
        )
    else:
        print("\n".join(race_lines(finished, speedup, report["verdict"])), file=sys.stderr)
    return 0


def speed_ratio(finished: dict[str, Finished]) -> float | None:
    """Plain milliseconds per token over those of the last exact method raced; None where one of them is missing."""
    plain = finished.get("autoregressive")
    others = [result for name, result in finished.items() if name != "autoregressive" and result.exact]
    if plain is None or not others:
        return None
    a, b = plain.stats.ms_per_token, others[-1].stats.ms_per_token
    return a / b if a and b else None


def equality_with_plain(
    engine: Engine, prompt: list[int], finished: dict[str, Finished], *, greedy: bool
) -> Equality | None:
    """The worst verdict of the exact methods against plain decoding; None for sampled texts."""
    plain = finished.get("autoregressive")
    others = [result for name, result in finished.items() if name != "autoregressive" and result.exact]
    if not greedy or plain is None or not others:
        return None
    verdicts = [engine.compare(prompt, plain.token_ids, other.token_ids) for other in others]
    return max(verdicts, key=lambda equality: ("identical", "near_tie", "mismatch").index(equality.verdict))
