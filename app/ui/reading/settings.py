"""The settings of answers: presets first; single numbers and kinds of speculation in a folded section.

The browser keeps them and sends them with every question; core checks every value and says how to correct a wrong one.
What depends on the model is drawn from the state; the other fields are Gradio's.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gradio as gr
from pydantic import BaseModel

from app.runtime.events import ModelState, Ready
from app.ui import render
from app.ui.pane import pane
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
AS_CHOSEN, AS_SET_UP = "as chosen", ""  # of speculation; of thinking
AS_CHOSEN_CHOICE = ("As chosen under Decoding", AS_CHOSEN)
ADAPTIVE, FIXED = "adaptive", "fixed"
BUDGET = RetrievalConfig().budget
AS_PLANNED = 0
BUDGETS = [
    ("as planned", AS_PLANNED),
    *((f"{tokens:,}", tokens) for tokens in (BUDGET // 2, BUDGET, 2 * BUDGET, 4 * BUDGET)),
]
BUDGET_INFO = "Tokens of the book loaded for drafting: with more, more guesses are right, and each costs more."
# Gradio's fields, in the order in which the script knows them
NAMES = ("preset", "temperature", "top_p", "top_k", "max_new_tokens", "seed", "rounds", "gamma1", "gamma2", "budget")
MOST_SEED = 2**63 - 1  # the most that torch accepts
Choices = Sequence[tuple[str, str]]  # label and value


class SettingsForm(BaseModel):
    """The settings for an answer, as they come from a browser."""

    method: str
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


def seed_of(text: str) -> int | None:
    """The seed in a field; None: the field is empty.

    Raises:
        InvalidSetting: not a whole number, or too large.
    """
    written = text.strip()
    if not written:
        return None
    if not written.isascii() or not written.isdigit() or int(written[:20]) > MOST_SEED:
        raise InvalidSetting(f"The seed {written[:40]!r} is not usable.", hint="Use a whole number, or leave it empty.")
    return int(written)


def chosen_method(method: str, variant: str) -> str:
    """Plain decoding stays plain; for speculation `variant` may name another kind than the one under Decoding."""
    return method if method == PLAIN or variant == AS_CHOSEN else variant


# -------------------- what depends on the model


def choices(state: ModelState) -> dict[str, str]:
    """The fields that depend on the model, as HTML by name; the script marks what was chosen."""
    info = state.info if isinstance(state, Ready) else None
    found = {}
    if info is None or not info.elsewhere:
        has_draft, usual = (info.has_draft, info.usual_method) if info else (True, DEFAULTS.method)
        told = METHOD_INFO.format("TriForce" if has_draft else "Speculation")
        fastest = default_method(has_draft=has_draft) if usual == PLAIN else usual
        offered = [(METHODS[name].short_label, name) for name in (fastest, PLAIN)]
        found["method"] = _radios("method", "Decoding", told, offered, usual=usual)
        baseline = default_method(has_draft=True) if usual in (PLAIN, "lookup") else usual  # offered under Decoding
        kinds = [one for one in METHODS.values() if one.exact and one.speculative and one.name != baseline]
        others = [(one.label, one.name) for one in kinds if has_draft or not one.needs_draft]
        found["variant"] = _select("variant", "Speculation", [AS_CHOSEN_CHOICE, *others])
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


# -------------------- Gradio's fields


def build_settings() -> dict[str, Any]:
    """The folded settings: the fields that are the same for all models, by their names in `SettingsForm`."""
    sampling, shape = DEFAULTS.sampling, DEFAULTS.speculation
    temperature, top_p, seed = sampling.temperature, sampling.top_p, "Empty: every answer has its own."
    kept = "Keep the likeliest tokens up to this mass; 1 keeps all."
    most = "An answer ends here at the latest; Continue goes on."
    rounds = [("Adaptive", ADAPTIVE), ("Fixed", FIXED)]
    about = "Adaptive follows acceptance and times, and begins with these lengths."
    fields: dict[str, Any] = {}
    with gr.Accordion("Settings", open=False, elem_id="settings"):
        presets = [*PRESETS, CUSTOM]
        fields["preset"] = gr.Radio(presets, value="Precise", label="Answers", info=PRESET_INFO, elem_id="preset")
        fields["max_new_tokens"] = gr.Number(DEFAULTS.max_new_tokens, label="Most new tokens", info=most, precision=0)
        pane("setting:thinking")
        with gr.Accordion("Advanced", open=False, elem_id="advanced"):
            fields["temperature"] = gr.Number(temperature, label="Temperature", info="0 to 2; 0 is exact.", step=0.1)
            fields["top_p"] = gr.Number(top_p, label="top-p", info=kept, step=0.05)
            fields["top_k"] = gr.Number(sampling.top_k, label="top-k", info="Keep so many; 0 keeps all.", precision=0)
            fields["seed"] = gr.Textbox("", label="Seed", info=seed, max_lines=1, elem_id="seed")
            pane("setting:variant")
            fields["rounds"] = gr.Radio(rounds, value=ADAPTIVE, label="Rounds", info=about, elem_id="rounds")
            for level, gamma in ((1, shape.gamma1), (2, shape.gamma2)):
                told = f"Guesses a round at level {level}."
                fields[f"gamma{level}"] = gr.Number(gamma, label=f"gamma{level}", info=told, precision=0)
            fields["budget"] = gr.Radio(
                BUDGETS, value=AS_PLANNED, label="Retrieval budget", info=BUDGET_INFO, elem_id="budget"
            )
    return {name: fields[name] for name in NAMES}


def wire_settings(own: dict[str, Any], page: gr.Blocks) -> None:
    """The browser keeps the fields; presets set the single ones and follow them. The server has no part in it."""
    quiet: dict[str, Any] = {"fn": None, "queue": False, "api_visibility": "private", "show_progress": "hidden"}
    every, sampling = list(own.values()), [own[name] for name in ("temperature", "top_p", "top_k")]
    page.load(inputs=None, outputs=every, js="() => window.triforceSettings.recalled()", **quiet)
    keep: dict[str, Any] = {**quiet, "inputs": every, "js": "(...fields) => window.triforceSettings.keep(fields)"}
    preset: dict[str, Any] = {**quiet, "inputs": own["preset"], "outputs": sampling}
    own["preset"].input(**preset, js="(name) => window.triforceSettings.preset(name)").then(**keep)
    follows: dict[str, Any] = {**quiet, "inputs": sampling, "outputs": own["preset"]}
    for field in sampling:
        field.input(**follows, js="(...fields) => window.triforceSettings.presetOf(fields)").then(**keep)
    for name in ("max_new_tokens", "seed", "rounds", "gamma1", "gamma2", "budget"):
        own[name].input(**keep)
    own["seed"].blur(**keep)  # Gradio does not report pasted text as input


def script() -> str:
    """What the page's script knows of the fields: their names, first values and presets, as JSON."""
    first = SettingsForm(method=DEFAULTS.method).model_dump()
    presets = {name: [one.temperature, one.top_p, one.top_k] for name, one in PRESETS.items()}
    return json.dumps({"names": NAMES[1:], "first": first, "presets": presets, "custom": CUSTOM})
