"""The long programs, one after the other: `python launch.py test --long`, or one of them by its name.

python launch.py test --long                        all, about two hours
python launch.py test --long kills --kills 20       one, with arguments of its own
python launch.py test --long --case b12             arguments without a name go to `exactness`
"""

import importlib
import sys
from collections.abc import Sequence

# Suite -> its module, and the arguments it runs with among the others.
SUITES: dict[str, tuple[str, list[str]]] = {
    "exactness": ("tests.exactness.run", []),
    "kills": ("tests.endurance.kills", ["--kills", "200"]),
    "soak": ("tests.endurance.soak", ["--minutes", "20"]),
    "crowd": ("tests.endurance.crowd", []),
    "siege": ("tests.endurance.siege", []),
    "hostile": ("tests.hostile.run", []),
    "fuzzing": ("tests.hostile.fuzzing", ["--seconds", "120"]),
    "growth": ("tests.hostile.growth", []),
    "stalls": ("tests.hostile.stalls", ["60000000"]),
}


def main(argv: Sequence[str]) -> int:
    """Returns 0 where every suite does, else what the last failing one returned."""
    if argv and argv[0] in SUITES:
        return run(argv[0], argv[1:])
    if argv:
        return run("exactness", argv)
    code = 0
    for name, (_, arguments) in SUITES.items():
        print(f"== {name}", flush=True)
        code = run(name, arguments) or code
    return code


def run(name: str, arguments: Sequence[str]) -> int:
    """One suite; it prints its own closing table."""
    code: int = importlib.import_module(SUITES[name][0]).main(list(arguments))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
