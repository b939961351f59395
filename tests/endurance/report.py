"""The command line of the long programs, and what each tells at its end."""

import argparse
import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from assets.tools.bench.report import commit
from core.planning.hardware import this_machine

MOST_FAULTS = 20  # that are printed; the file has all


def options(description: str | None, argv: Sequence[str], **usual: Any) -> argparse.Namespace:
    """Options by their usual values, of whose types they are, and `--json FILE`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in usual.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--json", type=Path)
    return parser.parse_args(argv)


def tell(name: str, args: argparse.Namespace, rows: Mapping[str, object], faults: Sequence[str], seen: Any) -> int:
    """Print the figures and the faults, write all that was seen if asked to. Returns 1 if there are faults."""
    for title, value in {**rows, "faults": len(faults)}.items():
        print(f"{title:<26}{value}")
    for fault in faults[:MOST_FAULTS]:
        print("FAULT:", fault)
    if args.json:
        told = {"command": f"python launch.py test --long {name}", "date": str(datetime.date.today())}
        told |= {"commit": commit(), "machine": asdict(this_machine())} | seen | {"failures": list(faults)}
        args.json.write_text(json.dumps(told, indent=1, default=str) + "\n", encoding="utf-8")
    return bool(faults)
