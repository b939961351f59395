"""The settings of answers: presets first; single numbers and kinds of speculation in a folded section.

The browser stores the fields; core checks every value and says how to correct a wrong one.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import gradio as gr

from core.config import GenerationConfig, RetrievalConfig, SamplingParams, SpeculationConfig
from core.decoding.registry import METHODS, PLAIN, default_method
from core.errors import CoreError, InvalidSetting
from core.generation.thinking import WISHES

DEFAULTS = GenerationConfig(method=default_method(has_draft=True))
CUSTOM = "Custom"
PRESETS = {
    "Precise": SamplingParams(temperature=0.0, top_p=1.0),
    "Balanced": SamplingParams(temperature=0.6, top_p=0.9),
    "Lively": SamplingParams(temperature=1.0, top_p=0.95),
}
PRESET_INFO = "Precise always takes the likeliest token; the others draw, and a seed repeats them."
AS_CHOSEN = "as chosen"
AS_SET_UP = ""  # of thinking
THINKING_INFO = "Whether the model thinks first. A thought is folded, and takes new tokens, too."
AS_CHOSEN_CHOICE = ("As chosen under Decoding", AS_CHOSEN)
ADAPTIVE, FIXED = "adaptive", "fixed"
BUDGET = RetrievalConfig().budget
AS_PLANNED = 0
BUDGETS = [
    ("as planned", AS_PLANNED),
    *((f"{tokens:,}", tokens) for tokens in (BUDGET // 2, BUDGET, 2 * BUDGET, 4 * BUDGET)),
]
BUDGET_INFO = "Tokens of the book loaded for drafting: with more, more guesses are right, and each costs more."
MOST_SEED = 2**63 - 1  # the most that torch accepts


@dataclass(frozen=True, slots=True)
class SettingsForm:
    """The settings for an answer: the components' values, as they come from a browser."""

    method: str
    temperature: float | None
    top_p: float | None
    max_new_tokens: float | None
    top_k: float | None = 0
    seed: str | None = ""
    variant: str | None = AS_CHOSEN
    rounds: str | None = ADAPTIVE
    gamma1: float | None = DEFAULTS.speculation.gamma1
    gamma2: float | None = DEFAULTS.speculation.gamma2
    budget: int | None = None
    thinking: str | None = AS_SET_UP

    @classmethod
    def of(cls, method: str, fields: Sequence[Any]) -> "SettingsForm":
        """From the method and the values of `Fields.values`; missing ones get the page's initial values."""
        return cls(method, *fields)

    @property
    def own_seed(self) -> bool:
        """No seed was chosen, so every answer gets its own. Raises InvalidSetting."""
        return seed_of(self.seed) is None

    def config(self) -> GenerationConfig:
        """The generation settings.

        Raises:
            InvalidSetting: a field is empty or out of range.
        """
        numbers = (self.temperature, self.top_p, self.max_new_tokens, self.top_k, self.gamma1, self.gamma2)
        if any(number is None for number in numbers):
            raise InvalidSetting("A field in Settings is empty.", hint="Fill it with a number.")
        temperature, top_p, max_new_tokens, top_k, gamma1, gamma2 = (number or 0 for number in numbers)
        shape, one, two = SpeculationConfig(), int(gamma1), int(gamma2)
        if self.rounds == FIXED:
            shape = SpeculationConfig(gamma1=one, gamma2=two, adaptive=False)
        elif (one, two) != (shape.gamma1, shape.gamma2):
            shape = replace(shape, gamma1=one, gamma2=two)
        return GenerationConfig(
            method=chosen_method(self.method, self.variant),
            max_new_tokens=int(max_new_tokens),
            sampling=SamplingParams(temperature=float(temperature), top_p=float(top_p), top_k=int(top_k)),
            speculation=shape,
            seed=seed_of(self.seed) or 0,
            budget=self.budget or None,
            thinking=self.thinking or None,
            end_loops=True,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Fields:
    """The components, named as in `SettingsForm`."""

    preset: gr.Radio
    temperature: gr.Number
    top_p: gr.Number
    max_new_tokens: gr.Number
    top_k: gr.Number
    seed: gr.Textbox
    variant: gr.Dropdown
    rounds: gr.Radio
    gamma1: gr.Number
    gamma2: gr.Number
    budget: gr.Radio
    thinking: gr.Radio

    @property
    def values(self) -> list[gr.components.Component]:
        """The inputs of an answer, apart from the method."""
        return [getattr(self, field.name) for field in fields(SettingsForm) if field.name != "method"]


def seed_of(text: str | None) -> int | None:
    """The seed in a field; None: the field is empty.

    Raises:
        InvalidSetting: not a whole number, or too large.
    """
    written = str(text or "").strip()  # a browser may have stored a number
    if not written:
        return None
    if not written.isascii() or not written.isdigit() or int(written[:20]) > MOST_SEED:
        raise InvalidSetting(f"The seed {written[:40]!r} is not usable.", hint="Use a whole number, or leave it empty.")
    return int(written)


def chosen_method(method: str, variant: str | None) -> str:
    """Plain decoding stays plain; for speculation `variant` may name another kind than the one under Decoding."""
    return method if method == PLAIN or variant in (None, AS_CHOSEN) else str(variant)


def preset_values(name: str) -> tuple[Any, Any, Any]:
    """Temperature, top-p and top-k of a preset; no change for a custom choice."""
    sampling = PRESETS.get(name)
    if sampling is None:
        return gr.skip(), gr.skip(), gr.skip()
    return sampling.temperature, sampling.top_p, sampling.top_k


def preset_of(temperature: float | None, top_p: float | None, top_k: float | None) -> str:
    """The preset with the same meaning as the single fields."""
    if temperature == 0:
        return "Precise"  # top-p and top-k have no effect then
    same = ((one.temperature, one.top_p, one.top_k) == (temperature, top_p, top_k) for one in PRESETS.values())
    return next((name for name, fits in zip(PRESETS, same, strict=True) if fits), CUSTOM)


def decoding_choices(*, has_draft: bool, usual: str = PLAIN) -> list[tuple[str, str]]:
    """Label and name of the choices under Decoding: the usual speculation, or none."""
    offered = default_method(has_draft=has_draft) if usual == PLAIN else usual
    return [(METHODS[name].short_label, name) for name in (offered, PLAIN)]


def variants(*, has_draft: bool, usual: str = PLAIN) -> list[tuple[str, str]]:
    """Label and name of the other exact kinds of speculation."""
    baseline = default_method(has_draft=True) if usual in (PLAIN, "lookup") else usual  # offered under Decoding
    usable = [method for method in METHODS.values() if has_draft or not method.needs_draft]
    kinds = [method for method in usable if method.exact and method.speculative and method.name != baseline]
    return [AS_CHOSEN_CHOICE, *((method.label, method.name) for method in kinds)]


def thinking_choices(offered: Sequence[str], usual: str) -> list[tuple[str, str]]:
    """Label and value of what the model's chat template can be told; `usual`: what it does unless told."""
    as_set_up = f"As set up ({usual})" if usual else "As set up"
    return [(as_set_up, AS_SET_UP), *((wish.capitalize(), wish) for wish in offered)]


def build_settings() -> Fields:
    """The folded settings. core checks their ranges and says how to correct a value."""
    sampling, shape = DEFAULTS.sampling, DEFAULTS.speculation
    with gr.Accordion("Settings", open=False, elem_id="settings"):
        preset = gr.Radio([*PRESETS, CUSTOM], value="Precise", label="Answers", info=PRESET_INFO, elem_id="preset")
        most = gr.Number(
            DEFAULTS.max_new_tokens,
            label="Most new tokens",
            info="An answer ends here at the latest; Continue goes on.",
            precision=0,
        )
        thinking = gr.Radio(
            thinking_choices(WISHES, ""),
            value=AS_SET_UP,
            label="Thinking",
            info=THINKING_INFO,
            visible=False,  # until a model is loaded whose chat template has the switch
            elem_id="thinking",
        )
        with gr.Accordion("Advanced", open=False, elem_id="advanced"):
            temperature = gr.Number(sampling.temperature, label="Temperature", info="0 to 2; 0 is exact.", step=0.1)
            top_p = gr.Number(
                sampling.top_p, label="top-p", info="Keep the likeliest tokens up to this mass; 1 keeps all.", step=0.05
            )
            top_k = gr.Number(sampling.top_k, label="top-k", info="Keep so many; 0 keeps all.", precision=0)
            seed = gr.Textbox("", label="Seed", info="Empty: every answer has its own.", max_lines=1, elem_id="seed")
            variant = gr.Dropdown(variants(has_draft=True), value=AS_CHOSEN, label="Speculation", elem_id="variant")
            rounds = gr.Radio(
                [("Adaptive", ADAPTIVE), ("Fixed", FIXED)],
                value=ADAPTIVE,
                label="Rounds",
                info="Adaptive follows acceptance and times, and begins with these lengths.",
                elem_id="rounds",
            )
            gamma1 = gr.Number(shape.gamma1, label="gamma1", info="Guesses a round at level 1.", precision=0)
            gamma2 = gr.Number(shape.gamma2, label="gamma2", info="Guesses a round at level 2.", precision=0)
            budget = gr.Radio(BUDGETS, value=AS_PLANNED, label="Retrieval budget", info=BUDGET_INFO, elem_id="budget")
    return Fields(preset, temperature, top_p, most, top_k, seed, variant, rounds, gamma1, gamma2, budget, thinking)


def wire_settings(own: Fields, method: gr.Radio, at_once: dict[str, Any]) -> None:
    """Presets set the single fields and follow them; the browser stores the reader's choices."""
    quiet = {**at_once, "js": None, "api_visibility": "private"}
    sampling: list[gr.components.Component] = [own.temperature, own.top_p, own.top_k]
    kept = [method, own.preset, *own.values]
    keep: dict[str, Any] = {"fn": None, "inputs": kept, "js": KEEP, "api_visibility": "private"}
    own.preset.input(preset_values, own.preset, sampling, **quiet).then(**keep)
    for field in (own.temperature, own.top_p, own.top_k):
        field.input(preset_of, sampling, own.preset, **quiet).then(**keep)
    own.seed.input(**keep)
    own.seed.blur(**keep)  # Gradio does not report pasted text as input; on a busy machine it may come before the text
    for other in (
        method,
        own.max_new_tokens,
        own.variant,
        own.rounds,
        own.gamma1,
        own.gamma2,
        own.budget,
        own.thinking,
    ):
        other.input(**keep)


def recalled(own: Fields, method: gr.Radio, packed: str) -> dict[gr.components.Component, Any]:
    """The fields as stored by the browser; no updates if it stored none, or those of another page version.

    They are part of the page's first update, because Gradio would lose one of two simultaneous updates.
    """
    try:
        name, _, *values = json.loads(packed or "null")
        form = SettingsForm.of(name, values)
        form.config()
    except (ArithmeticError, LookupError, ValueError, TypeError, RecursionError, CoreError):
        return {}
    offered = (
        len(values) == len(own.values)
        and form.variant in [variant for _, variant in variants(has_draft=True)]
        and form.rounds in (ADAPTIVE, FIXED)
        and form.budget in [tokens for _, tokens in BUDGETS]
        and form.thinking in (AS_SET_UP, *WISHES)
    )
    if not offered:
        return {}
    found = {
        own.preset: preset_of(form.temperature, form.top_p, form.top_k),
        **dict(zip(own.values, values, strict=True)),
    }
    if name in dict(decoding_choices(has_draft=True)).values():
        found[method] = name
    return found


def kept_method(packed: str) -> str:
    """The choice under Decoding as stored by the browser; "": none."""
    try:
        name, *_ = json.loads(packed or "null")
    except (ValueError, TypeError, RecursionError):
        return ""
    return str(name)


KEEP = "(...fields) => window.triforceChat.keep(fields)"
