"""The model on the page: its state, and the methods it offers."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import gradio as gr

from app.context.domain_check import FULL_MODELS, OWN_BOOKS
from app.context.samples import Sample
from app.runtime.events import Pause, Ready
from app.runtime.worker import EngineWorker
from app.ui.header import below, limits_note, masthead, notice
from app.ui.models.speeds import reading_time
from app.ui.parts import Parts
from app.ui.reading.settings import (
    AS_CHOSEN,
    AS_SET_UP,
    decoding_choices,
    kept_method,
    thinking_choices,
    variants,
)
from app.ui.updates import Updates, lasting
from core.decoding.registry import METHODS, PLAIN, default_method

if TYPE_CHECKING:  # importing it loads torch: the engine's thread does that while the page is already served
    from core.engine_info import EngineInfo


class ModelWatch:
    """One method per event."""

    def __init__(self, worker: EngineWorker, parts: Parts, samples: Sequence[Sample] = ()) -> None:
        self._worker, self._parts, self._samples = worker, parts, samples

    @lasting
    def watch_model(self, session_id: str, packed: str = "", thinking: str = AS_SET_UP) -> Iterator[Updates]:
        """Show the model's state, and again when loading has ended. `packed`: as stored by the browser."""
        yield from self._watch(session_id, kept_method(packed), thinking)

    def _watch(self, session_id: str, method: str, thinking: str) -> Iterator[Updates]:
        """`method`, `thinking`: as chosen so far."""
        for state in self._worker.states():
            if isinstance(state, Pause):
                yield {self._parts.head: gr.skip()}
                continue
            if (current := self._worker.sessions.find(session_id)) is not None:
                current.model = state
            updates: Updates = {self._parts.head: masthead(state), self._parts.banner: notice(state)}
            if isinstance(state, Ready):
                updates[self._parts.note] = below(state.info.elsewhere or limits_note(state.info.limits))
                updates |= self._thinking(state.info, thinking) | self._timed(state)
            if isinstance(state, Ready) and state.info.elsewhere:
                updates |= {one: gr.update(visible=False) for one in (self._parts.method, self._parts.variant)}
            elif isinstance(state, Ready) and state.info.usual_method != default_method(has_draft=True):
                has_draft, usual = state.info.has_draft, state.info.usual_method
                choices = decoding_choices(has_draft=has_draft, usual=usual)
                updates[self._parts.method] = staying(choices, method, usual)
                offered = variants(has_draft=has_draft, usual=usual)
                updates[self._parts.variant] = gr.update(choices=offered, value=AS_CHOSEN)
            yield updates

    def _timed(self, ready: Ready) -> Updates:
        """How long the sample books take to read, on their buttons."""
        words_to_tokens = OWN_BOOKS if ready.info.limits else FULL_MODELS
        updates: Updates = {}
        for sample, button in zip(self._samples, self._parts.samples, strict=True):
            num_tokens = int(words_to_tokens * sample.num_words)
            seconds = reading_time(ready, num_tokens) if 0 < num_tokens <= ready.context else None
            updates[button] = gr.update(value=sample.label(seconds))
        return updates

    @lasting
    def model_changed(self, session_id: str, method: str, thinking: str = AS_SET_UP) -> Iterator[Updates]:
        """Another model may have been chosen: update its methods and the chosen one."""
        parts = self._parts
        for updates in self._watch(session_id, method, thinking):
            state = self._worker.state
            if isinstance(state, Ready) and state.info.has_draft and not state.info.elsewhere:
                usual = state.info.usual_method
                choices = decoding_choices(has_draft=True, usual=usual)
                updates[parts.method] = staying(choices, method, usual)
                updates[parts.variant] = gr.update(choices=variants(has_draft=True, usual=usual))
            yield updates

    @lasting
    def look_again(self, session_id: str, method: str, thinking: str = AS_SET_UP) -> Iterator[Updates]:
        """The reader returns to the page: another page may have changed the model meanwhile."""
        current = self._worker.sessions.find(session_id)
        if current is not None and current.model is not self._worker.state:
            yield from self.model_changed(session_id, method, thinking)

    def _thinking(self, can: "EngineInfo", chosen: str) -> Updates:
        """Offer what the model can be told; what was chosen stays if this model knows it."""
        value = chosen if chosen in can.thinking else AS_SET_UP
        choices = thinking_choices(can.thinking, can.thinks)
        return {self._parts.thinking: gr.update(choices=choices, value=value, visible=len(can.thinking) > 1)}


def staying(choices: Sequence[tuple[str, str]], chosen: str, usual: str) -> Any:
    """The choices; what was chosen stays if it is among them, and speculation stays speculation."""
    names = [name for _, name in choices]
    kept = chosen if chosen in names else usual
    if chosen in METHODS and chosen != PLAIN == kept:
        kept = next((name for name in names if name != PLAIN), kept)
    return gr.update(choices=choices, value=kept)
