"""A server's data about its model, and the engine info that follows from it."""

from collections.abc import Mapping
from typing import Any, TypeGuard, cast

import torch

from app.remote.client import Address, Client
from app.remote.errors import Garbage
from app.remote.names import REMOTE, SWITCHED, capabilities_on
from core.engine_info import EngineInfo
from core.errors import ContextBeyondModel, InvalidSetting, UnknownModel
from core.generation.capabilities import WISHES
from core.generation.decode_loop import LONGEST_ROUND
from core.planning.cache_sizes import CacheSizes
from core.planning.choices import Choice
from core.planning.memory_plan import Placement, Plan

KNOWN_SERVERS = ("vllm", "sglang", "triforce-reader")  # others would answer again, and ignore the template's variables


def find_card(client: Client, model: str | None) -> Mapping[str, Any]:
    """The server's data about the model of that name, or about its only one. Raises UnknownModel, RemoteError."""
    found = client.get(f"{client.address.base}/models")
    rows = found.get("data") if isinstance(found, dict) else None
    cards = [row for row in rows or () if isinstance(row, dict) and isinstance(row.get("id"), str) and row["id"]]
    where = client.address.short
    if not isinstance(rows, list) or len(cards) != len(rows):
        raise Garbage(where, "no list of models")
    names = ", ".join(str(card["id"])[:80] for card in cards[:8])
    if not cards:
        raise UnknownModel(f"The server at {where} has no model.", hint="Load one there, then try again.")
    if model is None and len(cards) > 1:
        raise UnknownModel(f"The server at {where} has several models.", hint=f"Choose with --model: {names}.")
    card = next((card for card in cards if model in (None, card["id"])), None)
    if card is None:
        raise UnknownModel(f"The server at {where} has no model {model!r}.", hint=f"Choose with --model: {names}.")
    return cast(Mapping[str, Any], card)


def context_of(card: Mapping[str, Any], wanted: int | None) -> int:
    """The context in tokens: as requested, else as the server reports.

    Raises:
        InvalidSetting: neither is known. ContextBeyondModel: the request exceeds the server's context.
    """
    most = card.get("max_model_len")
    if not is_count(most) or int(most) < 2 * LONGEST_ROUND:
        if wanted is None:
            raise InvalidSetting(
                "The server does not say how many tokens its model reads.", hint="Add --context with that number."
            )
        return wanted
    if wanted is not None and wanted > int(most):
        raise ContextBeyondModel(wanted, int(most))
    return wanted or int(most)


def methods_of(card: Mapping[str, Any]) -> tuple[str, ...]:
    """The methods that a server of this program offers, by its names; other servers have none."""
    ours = card.get("triforce")
    methods = ours.get("methods") if isinstance(ours, dict) else None
    return tuple(one for one in methods if isinstance(one, str)) if isinstance(methods, list) else ()


def known_server(card: Mapping[str, Any]) -> bool:
    """Whether the server continues the last message if told so, and hands variables to the chat template."""
    return str(card.get("owned_by", "")).lower() in KNOWN_SERVERS


def thinking_of(card: Mapping[str, Any]) -> tuple[str, ...]:
    """What the server's model can be told about thoughts: as a server of this program says, else on and off."""
    ours = card.get("triforce")
    told = ours.get("thinking") if isinstance(ours, dict) else None
    if isinstance(told, list):
        return tuple(one for one in told if one in WISHES)
    return SWITCHED if known_server(card) and not isinstance(ours, dict) else ()


def info_of(
    address: Address, card: Mapping[str, Any], context: int, methods: tuple[str, ...], *, estimates: bool
) -> EngineInfo:
    """The engine info of a remote model, for display."""
    ours = card.get("triforce")
    told = ours if isinstance(ours, dict) else {}
    asked = "as the server says" if is_count(card.get("max_model_len")) else "as --context says"
    dtype = str(told.get("dtype", "")) or "not told"
    counted = "Numbers of tokens are estimates: it does not count them." if estimates else ""
    plan = Plan(
        device=Choice(REMOTE, address.base),
        dtype=Choice(cast(torch.dtype, f"{REMOTE}, {dtype}"), "how the server computes cannot be seen from here"),
        placement=Choice(cast(Placement, REMOTE), "where its keys and values lie cannot be seen from here"),
        context=Choice(context, asked),
        most_context=context,
        rows=(),
        available_bytes=0,
        bits=Choice(0, "how wide its weights are cannot be seen from here"),
        prefill_chunk=Choice(0, "how it reads cannot be seen from here"),
        cache_sizes=CacheSizes(layers=0, row_bytes=0, side_bytes=0, chunk_size=1),
        resident_layers=0,
    )
    return EngineInfo(
        model=f"{card['id']} @ {address.short}",
        description=" ".join(
            filter(None, [f"On the server {address.base}.", str(told.get("description", "")), counted])
        ),
        limits=str(told.get("limits", "")),
        has_draft=not methods or "triforce" in methods,
        plan=plan,
        attention=REMOTE,
        attention_because="the server's own",
        most_context=context,
        kv_bytes_per_token=0,
        target_weight_bytes=0,
        draft_weight_bytes=0,
        pass_bytes=(0, 0),
        target_layers=0,
        draft_layers=0,
        draft_because="as the server chooses",
        weights=f"{REMOTE}, {dtype}",
        quantised=False,
        host_memory=None,
        link=None,
        num_ranks=0,
        capabilities=capabilities_on(methods, thinking_of(card)),
    )


def is_count(value: object) -> TypeGuard[int]:
    """Whether a field of a server's JSON is a count."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
