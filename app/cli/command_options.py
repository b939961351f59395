"""The options of each command. Standard library only, as `arguments.py`."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from app.cli.argument_types import float_list, name_list, page_range, port_number, question
from app.document_formats import EACH

RARE = {  # only --help-all lists them
    "draft", "bits", "kv_bits", "self_draft_bits", "gpus", "gpu_memory", "layerwise", "attention", "graphs",
    "cpu_attention_share", "venv", "offline", "data_dir", "remote_key", "allow_host", "share", "allow_origin",
    "queue", "token_ids", "top_p", "top_k", "thinking", "chapters", "saved", "budget", "acceptance", "models",
    "machines", "exact", "whole_words", "sequential",
}  # fmt: skip
FREQUENT = {  # by command, in spite of RARE
    None: {"share", "data_dir", "offline"},
    "chat": {"thinking", "saved", "chapters"},
    "ask": {"thinking", "saved", "chapters"},
    "doctor": {"bits", "gpus", "gpu_memory", "models", "machines"},
    "models": {"offline"},
    "race": {"thinking", "saved", "chapters"},
    "serve": {"thinking", "bits", "saved"},
    "text": {"exact", "whole_words"},
}

ASKED = "what to ask about the files; @FILE reads it from a file, @- from what is piped in"


def hide_rare(parser: argparse.ArgumentParser, command: str | None, more: Iterable[str]) -> int:
    """Leave rare options, and these, out of a command's help; returns how many."""
    rare = {*RARE, *more} - FREQUENT.get(command, set())
    hidden = [action for action in parser._actions if action.dest in rare and action.help != argparse.SUPPRESS]
    for action in hidden:
        action.help = argparse.SUPPRESS
    return len(hidden)


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """The options of every command. The main parser sets their defaults, wherever an option stands."""
    options = parser.add_argument_group("common options", argument_default=argparse.SUPPRESS)
    options.add_argument(
        "--model",
        metavar="NAME|PATH",
        help="a known model, a local folder or the hub id of a downloaded model (default: the bundled one)",
    )
    options.add_argument(
        "--draft",
        metavar="NAME|PATH",
        help="the draft model, or none (default: auto, one with the same tokens)",
    )
    text = "of its weights; 8 and 4 are quantised (default: as computed)"
    options.add_argument("--bits", type=int, choices=(16, 8, 4), help=text)
    text = "of its keys and values, on a processor (default: 16 where they fit)"
    options.add_argument("--kv-bits", type=int, choices=(16, 32), help=text)
    options.add_argument(
        "--self-draft-bits",
        type=int,
        choices=(16, 4),
        help="of its weights while it guesses from the retrieval cache (default: 4 for 16-bit models on a processor)",
    )
    options.add_argument("--device", choices=("auto", "cpu", "cuda"))
    options.add_argument("--gpus", type=int, metavar="N", help="GPUs that share the model (default: 1)")
    options.add_argument("--context", type=int, metavar="N", help="tokens the model keeps in view (default: what fits)")
    options.add_argument(
        "--gpu-memory",
        type=float,
        metavar="GIB",
        help="most to use of the GPU, the rest waits in host memory; doctor: of each GPU of a machine to plan for",
    )
    options.add_argument("--seed", type=int, metavar="N", help="of all random draws (default: 0)")
    options.add_argument("--offline", action="store_true", help="never ask the network")
    options.add_argument(
        "--no-layerwise",
        dest="layerwise",
        action="store_false",
        help="read prompts chunk by chunk where keys and values wait in host memory",
    )
    options.add_argument(
        "--attention",
        choices=("auto", "torch", "compiled", "flash-attn"),
        help="the code that computes attention (default: the fastest that needs no compiling at every start)",
    )
    options.add_argument("--no-graphs", dest="graphs", action="store_false", help="launch CUDA kernels one by one")
    options.add_argument(
        "--cpu-attention-share",
        type=float,
        metavar="F",
        help="share of what lies in host memory that the CPU attends to there, 0 to 0.9 (default: measured)",
    )
    options.add_argument("--data-dir", metavar="DIR", type=Path, help="where settings and prefilled books are kept")
    add_venv_option(parser)


def add_venv_option(parser: argparse.ArgumentParser) -> None:
    """`--no-venv`, for every command, even the tests."""
    parser.add_argument(
        "--no-venv",
        dest="venv",
        action="store_false",
        default=argparse.SUPPRESS,
        help="use the current environment",
    )


def add_app_options(parser: argparse.ArgumentParser) -> None:
    """The options of the app. Their defaults are in APP_OPTIONS only, so that one given with a command is noticed."""
    options = parser.add_argument_group("options of the app", argument_default=argparse.SUPPRESS)
    options.add_argument("--host", help="address to listen on (default: 127.0.0.1; others need --auth)")
    options.add_argument("--port", type=port_number, help="(default: 7860)")
    options.add_argument("--no-browser", dest="browser", action="store_false", help="do not open the browser")
    options.add_argument("--share", action="store_true", help="make a public link (needs --auth)")
    options.add_argument(
        "--auth", metavar="USER:PASSWORD", help="ask for them; others see it in `ps`, not so $TRIFORCE_AUTH (default)"
    )
    options.add_argument(
        "--allow-host", metavar="NAME", action="append", help="another name of this machine that it answers to"
    )


def add_remote_options(parser: argparse.ArgumentParser) -> None:
    """`--remote`: use a server's model, for the app, `ask` and `chat`."""
    options = parser.add_argument_group("a model on a server", argument_default=argparse.SUPPRESS)
    options.add_argument("--remote", metavar="URL", help="an OpenAI-compatible server (vLLM, SGLang, `serve`)")
    options.add_argument("--remote-key", metavar="KEY", help="what it wants (default: $TRIFORCE_REMOTE_KEY)")


def add_ask_options(parser: argparse.ArgumentParser) -> None:
    """`ask`: one question or a file of questions about one or more files."""
    questions = parser.add_mutually_exclusive_group(required=True)
    questions.add_argument("-q", "--question", type=question, metavar="TEXT|@FILE", help=ASKED)
    questions.add_argument(
        "--questions", metavar="FILE.json", type=Path, help="many questions, one reading of the text"
    )
    add_method_option(parser)
    add_token_ids_option(parser)
    add_remote_options(parser)
    add_answering_options(parser)


def add_chat_options(parser: argparse.ArgumentParser) -> None:
    """`chat`: files to talk about."""
    add_method_option(parser)
    add_remote_options(parser)
    add_answering_options(parser)


def add_race_options(parser: argparse.ArgumentParser) -> None:
    """`race`: one question, several methods."""
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("-q", "--question", type=question, metavar="TEXT|@FILE", help=ASKED)
    asked.add_argument("--verify", type=Path, metavar="Q.json", help="race these, keep the counts in FILE.races.json")
    parser.add_argument("--methods", type=name_list, metavar="A,B", help="(default: autoregressive,triforce)")
    parser.add_argument("--sequential", action="store_true", help="one method after the other instead of in turns")
    parser.add_argument("--report", type=Path, metavar="F.html", help="keep the race as one page, and F.json beside it")
    add_token_ids_option(parser)
    add_answering_options(parser)


def add_answering_options(parser: argparse.ArgumentParser) -> None:
    """What `ask`, `chat` and `race` have in common: files or parts of one, where they are kept, sampling."""
    add_files(parser)
    parts = parser.add_mutually_exclusive_group()
    for what in ("chapters", "pages"):
        told = f"only these {what} of the file, counted from 1 (default: all)"
        parts.add_argument(f"--{what}", type=page_range, metavar="A-B", help=told)
    add_keeping_option(parser)
    add_sampling_options(parser)


def add_method_option(parser: argparse.ArgumentParser) -> None:
    """`--method`. core checks the name."""
    parser.add_argument("--method", help="(default: the fastest by forecast, see doctor)")


def add_token_ids_option(parser: argparse.ArgumentParser) -> None:
    """`--token-ids`."""
    parser.add_argument("--token-ids", action="store_true", help="--json: the prompt's tokens, too")


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """`serve`: its address and who may use it."""
    options = parser.add_argument_group("options of the server", argument_default=argparse.SUPPRESS)
    options.add_argument("--host", help="address to listen on (default: 127.0.0.1; others need --api-key)")
    options.add_argument("--port", type=port_number, help="(default: 8000)")
    options.add_argument(
        "--allow-host", metavar="NAME", action="append", help="another name of this machine that it answers to"
    )
    parser.add_argument(
        "--api-key", metavar="KEY", help="what clients must send (default: $TRIFORCE_API_KEY, else none)"
    )
    parser.add_argument(
        "--allow-origin", metavar="URL", action="append", help="let web pages from there use it (default: none)"
    )
    parser.add_argument("--queue", type=int, default=16, metavar="N", help="requests that may wait (default: 16)")
    add_keeping_option(parser, "as set on the page")
    add_thinking_option(parser)


def add_keeping_option(parser: argparse.ArgumentParser, default: str = "if reading took long") -> None:
    """`--saved`, `--no-saved`; None without either."""
    parser.add_argument(
        "--saved",
        action=argparse.BooleanOptionalAction,
        help=f"keep the read text on disk for the next time (default: {default}); --no-saved reads it anew",
    )


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """`text`: which files, which of their pages."""
    add_files(parser)
    parser.add_argument("--pages", type=page_range, metavar="A-B", help="only these, counted from 1 (default: all)")
    parser.add_argument(
        "--find", metavar="WORDS", help="print where these words are instead, whatever their case and accents"
    )
    parser.add_argument("--exact", action="store_true", help="with --find: case and accents as they are")
    parser.add_argument("--whole-words", action="store_true", help="with --find: no parts of words")


def add_saved_options(parser: argparse.ArgumentParser) -> None:
    """`saved`: an action, and a book."""
    parser.add_argument("action", nargs="?", choices=("list", "remove", "clear", "cap"), default="list")
    parser.add_argument("name", nargs="?", metavar="NAME|GIB", help="remove NAME; cap GIB: room for all of them")


def add_doctor_options(parser: argparse.ArgumentParser) -> None:
    """`doctor`: another machine, another precision. core checks the ranges."""
    machine = parser.add_argument_group("a machine that you do not have yet (default: this one)")
    machine.add_argument("--assume", metavar="NxGPU", help="cpu, 1x4090, 2x5090, 1xa100-40, 1xh100, ...")
    told = "any GPU: name, GB, GB/s of its memory, GB/s of its link [, TFLOPS], or a JSON file; --gpus N: several"
    machine.add_argument("--gpu", metavar='"NAME,24,1008,25"', help=told)
    machine.add_argument("--host-memory", type=float, metavar="GIB", help="of the machine itself")
    parser.add_argument("--budget", type=int, metavar="N", help="tokens in the retrieval cache")
    parser.add_argument(
        "--acceptance", type=float_list, metavar="A1,A2", help="of both levels (default: measured, else published)"
    )


def add_models_options(parser: argparse.ArgumentParser) -> None:
    """`models`: an action, and a model."""
    parser.add_argument("action", nargs="?", choices=("list", "show", "get", "pull", "remove"), default="list")
    parser.add_argument("name", nargs="?", metavar="NAME", help="a name of the list, or a hub id such as Qwen/Qwen3-8B")


def add_files(parser: argparse.ArgumentParser) -> None:
    """The documents a command reads."""
    told = f"{EACH}; - is what is piped in"
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=told)
    parser.add_argument("--ocr", action="store_true", help="recognise text on pages that are pictures, and keep it")


def add_thinking_option(parser: argparse.ArgumentParser) -> None:
    """`--thinking`. core checks whether the model's chat template has it."""
    parser.add_argument(
        "--thinking",
        choices=("on", "off", "low", "medium", "high"),
        help="whether the model thinks before it answers, where its chat template can be told (default: as set up)",
    )


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Sampling settings. core's SamplingParams checks the ranges."""
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is exact greedy (default: 0)")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="(default: 1, off)")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="(default: 0, off)")
    parser.add_argument("--max-new-tokens", type=int, default=256, metavar="N", help="(default: 256)")
    add_thinking_option(parser)
