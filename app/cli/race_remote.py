"""`race --remote URL`: the methods that a server offers answer one after the other, by streams.

Fair turns need one engine for all lanes, and equality its logits: neither can be had over a network. So lanes follow
each other, their times are measured here, a server of this program adds its own, and texts are compared as texts.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from app.cli.answering import no_answer
from app.cli.ask import answer
from app.cli.parts import library_of, naming_parts
from app.cli.reading import generation_config, open_conversation, print_json, read_documents
from app.cli.report import race_lines
from app.remote.connecting import connector
from app.remote.names import REMOTE, theirs
from app.runtime.answer_json import answer_report, engine_report, prefill_report, rounded
from core.config import GenerationConfig
from core.decoding.registry import PLAIN
from core.engine_api import TextEngine
from core.errors import InvalidSetting
from core.generation.events import Finished
from core.generation.text import check_thinking

TOLD = ("prefill_seconds", "decode_seconds", "tokens_per_second", "queue_seconds", "time_to_first_token_seconds")
MOST = 1e12  # of these; a larger number is a server's mistake
ONE_METHOD = "This server does not say how it decodes: one lane, with what was measured here."
IN_SEQUENCE = "Lanes follow each other: turns on a server cannot be kept fair, and others may use it meanwhile."


def run_remote(args: argparse.Namespace) -> int:
    """Run the lanes. Returns 0.

    Raises:
        CoreError: files, question, settings or the server.
    """
    if args.report is not None:
        raise InvalidSetting(
            "A report is made of lanes in turns, which a server does not have.", hint="Leave out --report, use --json."
        )
    for given, name in ((args.sequential, "--sequential"), (args.kv_bits is not None, "--kv-bits")):
        if given:
            raise InvalidSetting(f"{name} is for models of this machine.", hint="Leave it out with --remote.")
    library = library_of(list(read_documents(args)), args)
    engine, _ = connector(args)()
    with closing(engine), naming_parts(engine, library):
        check_thinking(args.thinking, engine.info.capabilities.thinking)
        names = lanes_of(engine, args.methods)
        print(IN_SEQUENCE if names != (REMOTE,) else ONE_METHOD, file=sys.stderr)
        conversation = open_conversation(engine, library.text)
        finished: dict[str, Finished] = {}
        told: dict[str, dict[str, float]] = {}
        for name in names:
            config = generation_config(args, name)
            finished[theirs(name)] = result = answer(engine, conversation, args.question, config, shown=False)
            told[theirs(name)] = told_by_server(engine)
            if not args.json:
                print(f"[{theirs(name)}]\n{result.text}\n{no_answer(result)}", flush=True)
        document = report(engine, finished, told, config)
    if args.json:
        print_json(document | ({"prompt_token_ids": None} if args.token_ids else {}))
    else:
        lines = race_lines(finished, document["speedup"], document["equality"]["verdict"])
        print("\n".join([*lines, *server_lines(told)]), file=sys.stderr)
    return 0


def lanes_of(engine: TextEngine, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The lanes, by the engine's names of methods: those that were named, else plain decoding and the server's usual.

    Raises:
        InvalidSetting: the server does not offer a method.
    """
    offered = engine.info.capabilities.methods or ()
    if offered == (REMOTE,):
        if wanted and set(wanted) != {PLAIN}:
            raise InvalidSetting(
                "This server does not say how it decodes, so its methods cannot be chosen.",
                hint="Leave out --methods, or race with a server of this program (launch.py serve).",
            )
        return offered
    by_name = {theirs(name): name for name in offered}
    usual = next((name for name in by_name if name != PLAIN), PLAIN)
    names = tuple(dict.fromkeys(wanted or (PLAIN, usual)))
    for name in names:
        if name not in by_name:
            raise InvalidSetting(f"The server does not offer the method {name!r}.", hint=f"Use: {', '.join(by_name)}.")
    return tuple(by_name[name] for name in names)


def told_by_server(engine: TextEngine) -> dict[str, float]:
    """What the server says of its newest answer, in seconds and tokens a second; empty: nothing."""
    told: Mapping[str, Any] = getattr(engine, "told", {})
    return {
        name: float(value)
        for name in TOLD
        if isinstance(value := told.get(name), int | float) and not isinstance(value, bool) and 0 <= value < MOST
    }


def report(
    engine: TextEngine,
    finished: Mapping[str, Finished],
    told: Mapping[str, Mapping[str, float]],
    config: GenerationConfig,
) -> dict[str, Any]:
    """The JSON of the race."""
    plain = finished.get(PLAIN)
    others = [result for name, result in finished.items() if name != PLAIN and result.exact]
    speeds = [result.stats.ms_per_token for result in (plain, *others[-1:]) if result is not None]
    speedup = speeds[0] / speeds[1] if len(speeds) == 2 and speeds[0] and speeds[1] else None
    return {
        **engine_report(engine.info),
        **prefill_report(next(iter(finished.values()))),
        "server": engine.info.plan.device.because,
        "turns": "one after the other",
        "methods": {
            name: {**answer_report(one, knows_ids=False), "server": dict(told[name]) or None}
            for name, one in finished.items()
        },
        "speedup": rounded(speedup, 3),
        "equality": equality(plain, others, greedy=config.sampling.greedy),
    }


def equality(plain: Finished | None, others: Sequence[Finished], *, greedy: bool) -> dict[str, Any]:
    """Whether exact greedy texts are plain decoding's; where they part, only the server's logits could say why."""
    if not greedy or plain is None or not others:
        return {"verdict": "not_comparable", "because": "sampled texts differ" if not greedy else "one exact text"}
    if any(one.in_thought for one in (plain, *others)):
        return {"verdict": "not_comparable", "because": "a lane ended inside its thought"}
    same = all((one.thought, one.text) == (plain.thought, plain.text) for one in others)
    if same:
        return {"verdict": "identical", "because": "compared as texts"}
    return {"verdict": "different", "because": "compared as texts: the server's logits cannot be seen from here"}


def server_lines(told: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The server's own speeds for people."""
    return [
        f"{name:<16}{1e3 / figures['tokens_per_second']:8.1f} ms/token by the server's own clock"
        for name, figures in told.items()
        if figures.get("tokens_per_second")
    ]
