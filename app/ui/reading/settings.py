"""The settings of answers: presets first; single numbers and kinds of speculation in a folded section.

The browser keeps them and sends them with every question; core checks every value and says how to correct a wrong one.
What depends on the model is drawn from the state; the other fields stand.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict

from pydantic import BaseModel

from app.runtime.events import ModelState, Ready
from app.ui import render
from core.config import GenerationConfig, RetrievalConfig, SamplingParams, SpeculationConfig
from core.decoding.registry import METHODS, PLAIN, default_method
from core.errors import InvalidSetting

DEFAULTS = GenerationConfig(method=default_method(has_draft=True))
CUSTOM = "Custom"
PRESETS = {
    "Precise": SamplingParams(temperature=0.0, top_p=1.0),
    "Balanced": SamplingParams(temperature=0.6, top_p=0.9),
    "Lively": SamplingParams(temperature=1.0, top_p=0.95),
}
PRESET_INFO = "Precise always takes the likeliest token; the others draw, and a seed repeats them."
METHOD_INFO = "Both write exactly what the model would write. {} needs fewer passes over the book."
THINKING_INFO = "Whether the model thinks first. A thought is folded, and takes new tokens, too."
AS_CHOSEN, AS_SET_UP, AS_PLANNED = "as chosen", "", 0  # of speculation; of thinking; of the budget
ADAPTIVE, FIXED = "adaptive", "fixed"
BUDGETS = [RetrievalConfig().budget * halves // 2 for halves in (1, 2, 4, 8)]
ROUNDS_INFO = "Adaptive follows acceptance and times, and begins with these lengths."
BUDGET_INFO = "Tokens of the book loaded for drafting: with more, more guesses are right, and each costs more."
Choices = Sequence[tuple[str, str]]  # label and value


class SettingsForm(BaseModel):
    """The settings for an answer, as they come from a browser."""

    method: str = ""  # the model's usual one
    temperature: float | None = DEFAULTS.sampling.temperature
    top_p: float | None = DEFAULTS.sampling.top_p
    max_new_tokens: float | None = DEFAULTS.max_new_tokens
    top_k: float | None = 0
    seed: str = ""
    variant: str = AS_CHOSEN
    rounds: str = ADAPTIVE
    gamma1: float | None = DEFAULTS.speculation.gamma1
    gamma2: float | None = DEFAULTS.speculation.gamma2
    budget: int = AS_PLANNED
    thinking: str = AS_SET_UP

    @property
    def own_seed(self) -> bool:
        """No seed was chosen, so every answer gets its own."""
        return not self.seed.strip()

    def config(self) -> GenerationConfig:
        """The generation settings.

        Raises:
            InvalidSetting: a field is empty or out of range.
        """
        numbers = (self.temperature, self.top_p, self.max_new_tokens, self.top_k, self.gamma1, self.gamma2)
        if None in numbers:
            raise InvalidSetting("A field for a number is empty.", hint="Fill it with a number.")
        temperature, top_p, max_new_tokens, top_k, gamma1, gamma2 = (number or 0 for number in numbers)
        stays = self.method == PLAIN or self.variant == AS_CHOSEN  # plain decoding has no other kind
        return GenerationConfig(
            method=self.method if stays else self.variant,
            max_new_tokens=int(max_new_tokens),
            sampling=SamplingParams(temperature=float(temperature), top_p=float(top_p), top_k=int(top_k)),
            speculation=SpeculationConfig(gamma1=int(gamma1), gamma2=int(gamma2), adaptive=self.rounds != FIXED),
            seed=seed_of(self.seed),
            budget=self.budget or None,
            thinking=self.thinking or None,
            end_loops=True,
        )


def seed_of(text: str) -> int:
    """The seed in a field; 0 for an empty one. Raises InvalidSetting: no whole number, or too large."""
    written = text.strip() or "0"
    if not written.isascii() or not written.isdigit() or len(written) > 40:
        raise InvalidSetting(f"The seed {written[:40]!r} is not usable.", hint="Use a whole number, or leave it empty.")
    return int(written)


# -------------------- what depends on the model


def choices(state: ModelState) -> dict[str, str]:
    """The fields that depend on the model, as HTML by name; the script marks what was chosen.

    While a model is loaded nobody knows what it can do: a question that is asked then names no method of speculation.
    """
    info = state.info if isinstance(state, Ready) else None
    found = {}
    if info is None or not info.elsewhere:
        has_draft, usual = (info.has_draft, info.usual_method) if info else (False, "")
        told = METHOD_INFO.format("TriForce" if has_draft else "Speculation")
        fastest = default_method(has_draft=has_draft) if usual == PLAIN else usual
        offered = [(METHODS[name].short_label if name else "Speculation", name) for name in (fastest, PLAIN)]
        found["method"] = _radios("method", "Decoding", told, offered, usual=usual)
        baseline = default_method(has_draft=True) if usual in (PLAIN, "lookup") else usual  # offered under Decoding
        kinds = [one for one in METHODS.values() if one.exact and one.speculative and one.name != baseline]
        others = [(one.label, one.name) for one in kinds if info and (has_draft or not one.needs_draft)]
        found["variant"] = _select("variant", "Speculation", [("As chosen under Decoding", AS_CHOSEN), *others])
    if info is not None and (info.elsewhere or len(info.thinking) > 1):
        as_set_up = f"As set up ({info.thinks})" if info.thinks else "As set up"
        wishes = [(as_set_up, AS_SET_UP), *((wish.capitalize(), wish) for wish in info.thinking)]
        found["thinking"] = _radios("thinking", "Thinking", THINKING_INFO, wishes)
    return found


def _radios(name: str, label: str, info: str, offered: Choices, usual: str = "") -> str:
    fields = [(text, f'name="{name}" value="{render.escape(value)}" data-keep') for text, value in offered]
    also = f' data-setting="{name}" data-usual="{render.escape(usual)}"'
    return render.radios(f"<legend>{label}</legend>", fields, info=info, also=also)


def _select(name: str, label: str, offered: Choices) -> str:
    rows = "".join(f'<option value="{render.escape(value)}">{render.escape(text)}</option>' for text, value in offered)
    return (
        f'<label class="choice" data-setting="{name}" data-usual="{AS_CHOSEN}"><span>{label}</span>'
        f'<select name="{name}" data-keep>{rows}</select></label>'
    )


# -------------------- the same for all models


def fields() -> str:
    """The folded settings as HTML; the script fills in what was kept."""
    presets = [(name, name) for name in (*PRESETS, CUSTOM)]
    rounds = [("Adaptive", ADAPTIVE), ("Fixed", FIXED)]
    budgets = [("as planned", str(AS_PLANNED)), *((f"{tokens:,}", str(tokens)) for tokens in BUDGETS)]
    gammas = "".join(_number(f"gamma{n}", f"gamma{n}", f"Guesses a round at level {n}.") for n in (1, 2))
    advanced = (
        _number("temperature", "Temperature", "0 to 2; 0 always takes the likeliest token.", step=0.1)
        + _number("top_p", "top-p", "Keep the likeliest tokens up to this mass; 1 keeps all.", step=0.05)
        + _number("top_k", "top-k", "Keep so many; 0 keeps all.")
        + '<label class="choice" data-setting="seed"><span>Seed</span><small class="info">Empty: every answer has its '
        'own.</small><input name="seed" autocomplete="off"></label><div data-part="setting:variant"></div>'
        + _radios("rounds", "Rounds", ROUNDS_INFO, rounds)
        + gammas
        + _radios("budget", "Retrieval budget", BUDGET_INFO, budgets)
    )
    most = _number("max_new_tokens", "Most new tokens", "An answer ends here at the latest; Continue goes on.")
    return (
        '<details class="fold-part"><summary role="button">Settings</summary>'
        f"{_radios('preset', 'Answers', PRESET_INFO, presets)}{most}"
        '<div data-part="setting:thinking"></div><details id="advanced" class="fold-part"><summary role="button">'
        f"Advanced</summary>{advanced}</details></details>"
    )


def _number(name: str, label: str, info: str, *, step: float = 1) -> str:
    return render.number(label, f'name="{name}" step="{step}"', info=info, also=f' data-setting="{name}"')


def script() -> str:
    """What the page's script knows of the fields: their first values, and the presets, as JSON."""
    presets = {name: asdict(one) for name, one in PRESETS.items()}
    return json.dumps({"first": SettingsForm().model_dump(), "presets": presets, "custom": CUSTOM})
