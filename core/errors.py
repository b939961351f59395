"""Every error that core raises on purpose: the user's situation, one problem and one action.

Bugs of ours are assertions, never CoreError.
"""

import traceback
from typing import ClassVar


class CoreError(Exception):
    """Base of all errors raised on purpose. `problem` says what is wrong, `hint` names one action for the user."""

    wrong_usage: ClassVar[bool] = False  # what the user wrote is wrong on any machine: commands end with 2 instead of 1

    def __init__(self, problem: str, *, hint: str) -> None:
        super().__init__(f"{problem} {hint}")
        self.problem, self.hint = problem, hint


def let_go(error: BaseException | None) -> None:
    """Clear the frames of an error that is kept for display, so that it keeps none of their objects alive."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


class InvalidSetting(CoreError):
    """A number or name the user gave cannot be used."""

    wrong_usage = True


class NotPossibleHere(InvalidSetting):
    """What the user asked for is possible, but not with the devices, packages or rights of this machine."""

    wrong_usage = False


class BadGrammar(InvalidSetting):
    """No answer can follow the JSON schema: it asks for what is not known, or the package for it is missing."""


class UnknownModel(CoreError):
    """There is no such model in the catalogue or on disk."""

    wrong_usage = True


class UnsupportedModel(CoreError):
    """The model's files are there, but this engine cannot run them."""


class DamagedAssets(CoreError):
    """Files that ship with the project are missing or corrupt."""


class ContextTooSmall(CoreError):
    """The text needs more tokens than the context holds. Text is never cut silently."""

    def __init__(self, needed: int, capacity: int, *, possible: int) -> None:
        hint = (
            f"Start again with --context {needed} or more to read all of it."
            if needed <= possible
            else f"Choose fewer pages: this model reads at most {possible:,} tokens."
        )
        over = f"{needed - capacity:,} too many" if needed > capacity else "too many"
        super().__init__(
            f"The text and the answer need {needed:,} tokens, the context holds {capacity:,}: {over}.", hint=hint
        )
        self.needed, self.capacity, self.possible = needed, capacity, possible


class ContextBeyondModel(ContextTooSmall):
    """A context was asked for that is longer than the model's, whatever text there is."""

    wrong_usage = True

    def __init__(self, asked: int, possible: int) -> None:
        super().__init__(asked, possible, possible=possible)
        self.problem = f"A context of {asked:,} tokens was asked for; this model reads at most {possible:,}."
        self.hint = f"Use --context {possible} or less."
        self.args = (f"{self.problem} {self.hint}",)


class NotEnoughMemory(CoreError):
    """Weights or context do not fit on this machine; the hint names what would.

    `largest_context` is the one that fits if only the wanted context is too long, None if the weights are too large.
    """

    def __init__(self, problem: str, *, hint: str, largest_context: int | None = None) -> None:
        super().__init__(problem, hint=hint)
        self.largest_context = largest_context


class LoadingStopped(CoreError):
    """The user has stopped the loading of a model."""

    def __init__(self) -> None:
        super().__init__("The loading of the model was stopped.", hint="Choose a model to load it.")


class WorkerLost(CoreError):
    """A process that held a share of the model has ended; nothing can be computed without it."""

    def __init__(self, rank: int, num_ranks: int, reason: str) -> None:
        super().__init__(f"Process {rank + 1} of {num_ranks} {reason}.", hint="Start again, or leave out --gpus.")


class EmptyQuestion(CoreError):
    """Nothing was asked."""

    wrong_usage = True

    def __init__(self) -> None:
        super().__init__("The question is empty.", hint="Type a question about the document.")


class ModelNotHere(CoreError):
    """The model is known, but its files were not downloaded."""


class IncompleteModel(CoreError):
    """Some of a model's files are missing: a download or a copy was not finished."""


class HubRefused(CoreError):
    """The hub does not hand the model out to this user, or does not have it."""


class HubUnreachable(CoreError):
    """The hub does not answer, or the connection ended too often. What arrived is kept."""


class DamagedDownload(CoreError):
    """A file that arrived is not the one the hub announced."""


class NotEnoughDisk(CoreError):
    """The download does not fit on the disk."""


class BookFolderFull(CoreError):
    """A read book cannot be saved on disk. Reading and answering go on without."""

    def __init__(self, problem: str, *, cap: bool = False) -> None:
        raise_it = "Let the saved books grow with: python launch.py saved cap GIB"
        super().__init__(problem, hint=raise_it if cap else "Make room on the disk, or choose another --data-dir.")


class UnknownBook(CoreError):
    """The name is not that of exactly one saved book."""

    wrong_usage = True

    def __init__(self, name: str, *, several: bool) -> None:
        count = "Several saved books are" if several else "No saved book is"
        super().__init__(f"{count} called {name!r}.", hint="Use an id of: python launch.py saved list")
