"""Chooses the draft of a target: the user's, the catalogue's, or one on this machine with the same tokens.

A draft with other tokens would be useless, and one that is not much smaller too slow; neither could make a text wrong.
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from core.errors import CoreError, UnsupportedModel
from core.models.hub.catalog import ModelEntry, entries, find, require_files
from core.models.hub.local import in_cache, look_at
from core.models.loader import load_tokenizer, read_dims, same_tokens

AUTO, NONE = "auto", "none"
MOST_SHARE = 0.25  # of the target's weights: a larger draft costs more time than its guesses save
PADDING = 1024  # rows by which vocabularies of the same tokens may differ (Qwen2.5: 151,936 and 152,064)


def pair(name: str, wish: str = AUTO) -> ModelEntry:
    """The target called `name`, complete, and its draft.

    Args:
        wish: "auto", "none", or a draft by name, folder or hub id.
    Raises:
        UnknownModel, ModelNotHere, IncompleteModel, DamagedAssets: as `find`, of either model.
        UnsupportedModel: the wanted draft does not use the target's tokens, or cannot be a draft.
    """
    entry = find(name)
    require_files(entry.target, name)
    if wish == NONE:
        return replace(entry, draft=None, draft_because="none was wanted")
    if wish != AUTO:
        draft = find(wish).target
        require_files(draft, wish)
        if not same_tokens(load_tokenizer(entry.target), load_tokenizer(draft)):
            raise UnsupportedModel(
                f"The draft {wish} does not use the tokens of {entry.name}.",
                hint="Choose a draft of the same family, or --draft none.",
            )
        if not read_dims(draft).drafts:
            raise UnsupportedModel(
                f"The keys of {wish} cannot be moved to other positions, as a draft's must be.",
                hint="Choose another draft, or --draft none.",
            )
        return replace(entry, draft=draft, draft_because="asked for")
    if entry.draft is not None or name in entries():
        return entry
    found = find_draft(entry.target)
    if found is None:
        return replace(entry, draft_because="no small model here has its tokens")
    return replace(entry, draft=found[1], draft_because=f"{found[0]} has the same tokens")


def find_draft(target: Path) -> tuple[str, Path] | None:
    """Name and folder of the smallest model on this machine that has a target's tokens and is much smaller."""
    dims = read_dims(target)
    known = [look_at(row.name, shown=row.name, path=path) for row in entries().values() if (path := row.path())]
    fitting = sorted(
        (small.dims.weight_bytes, small.shown, small.path)
        for small in (*known, *in_cache())
        if small.dims is not None
        and small.dims.drafts
        and abs(small.dims.vocab_size - dims.vocab_size) <= PADDING
        and 0 < small.dims.weight_bytes <= MOST_SHARE * dims.weight_bytes
        and small.path != target
    )
    if not fitting:
        return None
    tokenizer = load_tokenizer(target)
    for _, name, path in fitting:
        with suppress(CoreError):  # a model whose tokens cannot be read is no draft
            if same_tokens(tokenizer, load_tokenizer(path)):
                return name, path
    return None
