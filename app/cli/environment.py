"""The environment of launch.py: `.venv`, the packages of the lock files, the build of torch that the GPU needs.

`.venv` gets the versions of the lock files by their hashes; an environment of the user's own need only meet the ranges
of requirements.txt. Imports what needs the standard library alone: nothing else may be installed yet.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from core.errors import NotPossibleHere
from core.ops.compilers import system_compiler
from core.planning import nvidia

if TYPE_CHECKING:
    from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS, DEV_REQUIREMENTS = ROOT / "requirements.txt", ROOT / "requirements-dev.txt"
# Versions with hashes: of all packages but torch, of torch, of what its CUDA build needs on Linux, of a C++ compiler
LOCKS = LOCK, TORCH_LOCK, CUDA_LOCK, COMPILER_LOCK = tuple(
    ROOT / f"requirements{name}.lock" for name in ("", "-torch", "-cuda", "-compiler")
)
LOCKED_CUDA = "13.0"
BY_HASH = ("--no-deps", "--require-hashes", "-r")
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "triforce-reader.stamp"  # the digest of the requirements installed, or INSTALLING
INSTALLING = "installing"
WAITING = "Waiting for another start, which holds {}."
# A folder of wheels for each CUDA version. The variable names a mirror; empty: torch comes from the user's own index.
TORCH_WHEELS, TORCH_WHEELS_VARIABLE = "https://download.pytorch.org/whl", "TRIFORCE_TORCH_INDEX"


def prepare_environment(argv: Sequence[str], *, use_venv: bool, device: str = "auto") -> None:
    """Return in an environment that meets requirements.txt, or prepare `.venv` and start again inside it.

    Args:
        device: "cpu" if no GPU is wanted; then none is searched for.
    Raises:
        NotPossibleHere: there is no suitable environment and it cannot be made; the text says what to do.
    """
    inside = VENV.exists() and VENV.samefile(sys.prefix)
    if inside and venv_ready():
        if importlib.util.find_spec("pip"):
            return
        put_stamp(INSTALLING)  # an upgrade of the system has put another Python in the place of its own
    if inside and stamp() == INSTALLING:
        raise NotPossibleHere("This .venv is half installed.", hint="Deactivate it and start again: that repairs it.")
    missing = unmet_requirement(REQUIREMENTS)
    if missing is None:
        return
    if not use_venv:
        raise NotPossibleHere(
            f"This environment lacks {missing}.",
            hint="Install requirements.txt into it, or start without --no-venv.",
        )
    if not venv_ready():
        set_up_venv(device)
    if not inside:
        restart_in_venv(argv)


def unmet_requirement(file: Path) -> str | None:
    """The first requirement of a file that the running environment does not meet, or None. Imports no package."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return "packaging"  # comes with the requirements, so these are missing too
    return next((line for line in required(file) if not is_met(Requirement(line))), None)


def required(file: Path) -> list[str]:
    """The requirements that a file names."""
    lines = (line.partition("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def is_met(requirement: "Requirement") -> bool:
    """Whether the running environment has a suitable distribution."""
    if requirement.marker and not requirement.marker.evaluate():
        return True
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return False
    return bool(version) and requirement.specifier.contains(version, prereleases=True)


def digest() -> str:
    """The digest of the requirements that a ready `.venv` was filled from."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in (REQUIREMENTS, *LOCKS))).hexdigest()


def stamp() -> str | None:
    """The digest `.venv` was filled from; INSTALLING after an interruption, None if unknown."""
    return STAMP.read_text(encoding="utf-8") if STAMP.is_file() else None


def put_stamp(text: str | None) -> None:
    """Write the stamp; None: remove it."""
    STAMP.unlink(missing_ok=True) if text is None else STAMP.write_text(text, encoding="utf-8")


def venv_ready() -> bool:
    """Whether `.venv` was filled from the present requirements and its Python still exists."""
    return stamp() == digest() and VENV_PYTHON.exists()


def set_up_venv(device: str) -> None:
    """Update `.venv` to requirements.txt, one process at a time."""
    try:
        with one_at_a_time():
            if not venv_ready():  # another start may have done it meanwhile
                print("Setting up TriForce Reader in .venv. This happens once.", file=sys.stderr)
                fill_venv(device)
    except OSError as error:
        raise NotPossibleHere(
            f"The environment in {VENV} cannot be made: {error}.",
            hint="Make room and see that you may write there, then start again.",
        ) from error


def fill_venv(device: str) -> None:
    """Make, repair, fill or refresh `.venv`, whatever state it is in."""
    if stamp() == INSTALLING or not venv_works():
        make_venv()
    with installing(None):
        install_torch(VENV_PYTHON, device)
        if any(nvidia.cuda_of(file) == LOCKED_CUDA for file in VENV.rglob("site-packages/torch/version.py")):
            pip_install(VENV_PYTHON, *BY_HASH, CUDA_LOCK)
        pip_install(VENV_PYTHON, *BY_HASH, LOCK)
        pip_install(VENV_PYTHON, "-r", REQUIREMENTS)  # finds all there, but what a build of PyTorch's own needs besides
        install_compiler(VENV_PYTHON)


@contextlib.contextmanager
def installing(failed: str | None) -> Iterator[None]:
    """Stamp `.venv` as half installed for the time of the context, then as ready.

    Args:
        failed: its stamp where pip failed, which then has left `.venv` consistent.
    """
    put_stamp(INSTALLING)
    try:
        yield
    except NotPossibleHere:
        put_stamp(failed)
        raise
    put_stamp(digest())


def install_compiler(python: Path) -> None:
    """Install a C++ compiler where the system has none; where none is to be had, one line says what that costs."""
    if system_compiler() is not None:
        return
    try:
        pip_install(python, *BY_HASH, COMPILER_LOCK)
    except NotPossibleHere as error:
        print(f"note: there is no C++ compiler, so answers take longer. {error.problem}", file=sys.stderr)


def venv_works() -> bool:
    """Whether `.venv` has a Python that is new enough and a pip that runs."""
    probe = "import sys, pip._internal.cli.main; sys.exit(sys.version_info < (3, 11))"
    try:
        return subprocess.run([str(VENV_PYTHON), "-c", probe], capture_output=True).returncode == 0
    except OSError:
        return False


def make_venv() -> None:
    """Make `.venv`, replacing what is left of an earlier one."""
    command: list[str | Path] = [sys.executable, "-m", "venv", "--clear", VENV]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode and importlib.util.find_spec("ensurepip") is None:
        raise NotPossibleHere(
            "This Python comes without ensurepip and cannot fill a new environment.",
            hint="Install it (Debian and Ubuntu: apt install python3-venv) and start again.",
        )
    if done.returncode:
        problem = f"The environment in {VENV} cannot be made: {last_line(done.stdout)}"
        raise NotPossibleHere(problem, hint="Remove .venv, see that there is room, and start again.")


def pip_install(python: Path, *what: "str | Path") -> None:
    """Install packages or files; pip's progress goes to stderr, its errors become one sentence."""
    options = ["--no-input", "--disable-pip-version-check", *(["--no-user"] if python == VENV_PYTHON else [])]
    command = [str(python), "-m", "pip", "install", *options, *map(str, what)]
    done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, errors="replace")
    if done.returncode:
        raise explain_pip(done.stderr)


def explain_pip(complaints: str) -> NotPossibleHere:
    """The NotPossibleHere for the errors that pip printed on stderr."""
    if "CERTIFICATE_VERIFY_FAILED" in complaints:
        return NotPossibleHere(
            "The package index cannot be reached: its certificate is not trusted here.",
            hint="Give pip that of your network (pip config set global.cert FILE) and start again.",
        )
    signs = ("connection broken", "read timed out", "network is unreachable", "proxyerror")
    if any(sign in complaints.lower() for sign in signs):
        return NotPossibleHere(
            "The package index cannot be reached, and what is missing comes from there.",
            hint="Connect to the network and start again.",
        )
    if "DO NOT MATCH THE HASHES" in complaints:
        return NotPossibleHere(
            "A package is not the one that the lock files name by its hash.",
            hint="Start again; if it happens again, the index that pip uses (pip config list) has changed packages.",
        )
    if "No space left on device" in complaints:
        return NotPossibleHere("The disk is full.", hint="Free 3 GB (10 GB for a GPU) and start again.")
    errors = [line for line in complaints.splitlines() if line.startswith("ERROR:")]
    reason = last_line("\n".join(errors) or complaints).removeprefix("ERROR:").strip()
    hint = "Install requirements.txt by hand and start with --no-venv."
    if "PIP_NO_INDEX" in os.environ:
        hint = "Start once without --offline (or PIP_NO_INDEX) and with a network."
    elif "No matching distribution" in reason:  # pip says no more of an index that asks for a password
        python = f"another Python from 3.11 up (this is {sys.version_info[0]}.{sys.version_info[1]})"
        hint = f"Try {python}, or see that pip may read its index (pip config list)."
    return NotPossibleHere(f"pip could not install the requirements: {reason.rstrip('.')}.", hint=hint)


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return (text.strip().splitlines() or ["no reason given"])[-1]


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let one start at a time change `.venv`; a second one waits here and then finds it ready."""
    lock = VENV.with_name(".venv.lock")
    with open(lock, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        with contextlib.suppress(PermissionError):
            os.chmod(lock, 0o600)
        if sys.platform == "win32":
            import msvcrt

            while True:
                try:
                    msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)  # tries for ten seconds
                    break
                except OSError:
                    print(WAITING.format(lock), file=sys.stderr)
        else:
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(WAITING.format(lock), file=sys.stderr)
                fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file releases the lock, even when this process is killed


def restart_in_venv(argv: Sequence[str]) -> NoReturn:
    """Replace this process by `.venv`'s Python with the same command line."""
    command = [str(VENV_PYTHON), str(ROOT / "launch.py"), *argv]
    if os.name == "nt":  # execv there returns to the shell at once and splits arguments at spaces
        sys.exit(subprocess.call(command))
    os.execv(command[0], command)


# -------------------- torch for this machine's GPU


def choose_torch(device: str) -> tuple[str | None, str]:
    """The build for this machine's GPUs, according to their driver, and the reason, with what brings a better one.

    The build is a folder of the wheel index, for example "cpu"; None: that of the user's own index.
    """
    if device == "cpu":
        return None, "the smallest that is to be had, as --device cpu was given."
    if not torch_wheels():
        return None, f"from your package index, as {TORCH_WHEELS_VARIABLE} is empty."
    answer = nvidia.ask_driver()
    if answer.failure:
        because = f"the CPU build for now, as nvidia-smi is there and {answer.failure}."
        return "cpu", f"{because} When the GPU works, run: {nvidia.REPAIR}"
    if not answer.gpus:
        return None, "the smallest that is to be had, as no NVIDIA GPU was found."
    first, build = answer.gpus[0], nvidia.choose_build(answer.gpus)
    if isinstance(build, nvidia.UnusedGpu):
        because = f"the CPU build for now, as {first.name} was found, but {build.problem.removesuffix('.')}."
        return "cpu", f"{because} {build.hint}"
    because = f"as {first.name} was found and it has driver {nvidia.dotted(first.driver, width=2)}"
    return build.name, f"the build for CUDA {nvidia.dotted(build.cuda)}, {because}."


def install_torch(python: Path, device: str) -> None:
    """Install the build of torch that suits this machine, and print which and why in one line.

    Without a GPU the one without libraries for GPUs is preferred, wherever it is. What torch requires is not installed.

    Raises:
        NotPossibleHere: pip could not install it.
    """
    if (version := torch_version()) is None:
        return
    build, because = choose_torch(device)
    print(f"torch: {because}".strip(), file=sys.stderr)
    lean = nvidia.SYSTEM == "linux" and (device == "cpu" or torch_wheels())  # libraries for GPUs have no use
    if build is not None:
        install_build(python, version, build)
    elif not (lean and installed_lean(python, version)):
        pip_install(python, *BY_HASH, TORCH_LOCK)


def installed_lean(python: Path, version: str) -> bool:
    """Install torch without libraries for GPUs from pip's index or folders, else PyTorch's own; whether one has it."""
    locked = TORCH_LOCK.read_text(encoding="utf-8").replace(f"torch=={version} ", f"torch=={version}+cpu ")
    place = torch_wheels().rstrip("/")
    with tempfile.TemporaryDirectory() as folder:
        (lock := Path(folder) / TORCH_LOCK.name).write_text(locked, encoding="utf-8")
        for where in ((), ("--index-url", f"{place}/cpu", "--retries", "1")) if place else ((),):
            with contextlib.suppress(NotPossibleHere):
                pip_install(python, *where, *BY_HASH, lock)
                return True
    return False


def install_build(python: Path, version: str, build: str) -> None:
    """Install one build of torch from its wheels, without its requirements; that for the CPU by its hash.

    Raises:
        NotPossibleHere: pip could not install it.
    """
    place = torch_wheels().rstrip("/")
    what = (*BY_HASH, TORCH_LOCK) if build == "cpu" else ("--no-deps", f"torch=={version}+{build}")
    try:
        pip_install(python, "--index-url", f"{place}/{build}", *what)
    except NotPossibleHere as error:
        raise NotPossibleHere(
            f"torch {version}+{build} was not to be had from {place}. {error.problem}",
            hint=f"Name a mirror of it in {TORCH_WHEELS_VARIABLE}, or start with --device cpu.",
        ) from error


def torch_version() -> str | None:
    """The version of torch that requirements.txt pins."""
    return next((line.partition("==")[2] for line in required(REQUIREMENTS) if line.startswith("torch==")), None)


def torch_wheels() -> str:
    """The index of torch builds; empty: the user's package index."""
    return os.environ.get(TORCH_WHEELS_VARIABLE, TORCH_WHEELS)


def run(_: argparse.Namespace) -> int:
    """`repair`: install the build of torch that suits this machine's GPU in this environment. Returns 0.

    Raises:
        NotPossibleHere: no build suits the present driver, or pip could not install it.
    """
    version, installed, answer = torch_version(), nvidia.installed_torch(), nvidia.ask_driver()
    if version is None or installed is None:
        raise NotPossibleHere("torch is not pinned or not installed.", hint="Restore requirements.txt and try again.")
    unused = nvidia.compare(answer, installed)
    if unused is None:
        found = f"torch {installed.version} suits {answer.gpus[0].name}" if answer.gpus else "no NVIDIA GPU was found"
        print(f"There is nothing to repair: {found}.", file=sys.stderr)
        return 0
    build = nvidia.choose_build(answer.gpus) if answer.gpus else unused
    if isinstance(build, nvidia.UnusedGpu):
        raise NotPossibleHere(unused.because, hint=unused.hint)
    if not torch_wheels():
        raise NotPossibleHere(f"{TORCH_WHEELS_VARIABLE} is empty.", hint="Unset it and try again.")
    print(f"{unused.because} Installing torch {version}+{build.name} in {sys.prefix}.", file=sys.stderr)
    stamped = installing if VENV.exists() and VENV.samefile(sys.prefix) else contextlib.nullcontext
    with one_at_a_time():
        with stamped(stamp()):
            install_build(Path(sys.executable), version, build.name)
        with stamped(None):  # what it requires may be missing: the next start completes it
            pip_install(Path(sys.executable), "-r", REQUIREMENTS)
    print("The GPU can be used now. Start with: python launch.py", file=sys.stderr)
    return 0
