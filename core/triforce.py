"""Questions about long texts, for programs: a model pair, and answers as streams of events.

    from core import TriForce

    tf = TriForce.from_pretrained("harbour", context=8192)
    for event in tf.generate(text, "Who keeps the light?"):
        ...

`Engine`, `Conversation` and `GenerationConfig` do the same with more control; this is the short way.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from core.config import EngineConfig, GenerationConfig
from core.engine import Engine
from core.engine_builder import PairFiles, loaded_pair
from core.errors import InvalidSetting
from core.generation.events import Event, Finished
from core.generation.session import Conversation
from core.kv_store.engine_store import BookStore
from core.kv_store.folder import BookFolder
from core.planning.hardware import this_machine
from core.planning.plan import make_plan

SAMPLING = ("temperature", "top_p", "top_k")  # settings that belong to an answer's `sampling`
NOT_OF_MODULES = ("model", "draft_model", "bits", "self_draft_bits", "num_gpus")  # only for models from files


class TriForce:
    """A target and its draft on this machine. Not thread-safe: one thread at a time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._text, self._ids = "", tuple[int, ...]()  # the last text, and its tokens

    @classmethod
    def from_pretrained(cls, target: str, *, draft: str = "auto", **settings: Any) -> "TriForce":
        """Load a model and its draft.

        Args:
            target: a name of the catalogue, a folder, or the hub id of a model that is on this machine.
            draft: the same, "none", or "auto" for the one that goes with the target.
            settings: fields of `EngineConfig`: `context`, `device`, `retrieval`, ...
        Raises:
            UnknownModel, ModelNotHere, UnsupportedModel, DamagedAssets, NotEnoughMemory, ContextTooSmall,
            InvalidSetting: see `core.errors`.
        """
        return cls(Engine.load(EngineConfig(model=target, draft_model=draft, **settings)))

    @classmethod
    def from_modules(
        cls,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        draft: PreTrainedModel | None = None,
        **settings: Any,
    ) -> "TriForce":
        """Use models that transformers has loaded. The engine takes them over: it changes their attention and device.

        Args:
            draft: a small model with the same tokenizer.
            settings: fields of `EngineConfig` except those that choose and convert files.
        Raises:
            UnsupportedModel, NotEnoughMemory, ContextTooSmall, InvalidSetting: see `core.errors`.
        """
        if wrong := [name for name in NOT_OF_MODULES if name in settings]:
            raise InvalidSetting(f"{wrong[0]} is for models that are loaded from files.", hint="Leave it out.")
        config, files = EngineConfig(**settings), PairFiles.of_modules(model, tokenizer, draft)
        machine = this_machine()
        if model.device.type == "cpu":  # what it takes is not free, and need not be found again
            machine = replace(machine, free_ram_bytes=machine.free_ram_bytes + files.weight_bytes)
        pair, plan = loaded_pair(files, config, make_plan(files.size(), files.draft, config, machine))
        return cls(Engine.of(pair, config, plan))

    def generate(
        self, text: str, question: str, *, history: Sequence[tuple[str, Finished]] = (), **settings: Any
    ) -> Iterator[Event]:
        """Answer a question about a text. A text that was read before is not read again.

        Args:
            history: earlier questions about the text, with their answers.
            settings: fields of `GenerationConfig`, and `temperature`, `top_p`, `top_k`: greedy where none is given.
        Yields:
            PrefillProgress while the text is read, RoundDone for every pass over the full cache, Finished at the end.
        Raises:
            EmptyQuestion, InvalidSetting, ContextTooSmall, NotEnoughMemory: see `core.errors`.
        """
        conversation = self._about(text)
        for earlier, answer in history:
            ids = () if answer.in_thought else answer.token_ids
            spoken = self.engine.text.without_thought(ids) if answer.stats.thought_tokens else ids
            conversation = conversation.ask(earlier).answered(spoken, self.engine.text.eos_ids)
        config = self._config(settings)
        prompt = conversation.ask(question).prompt_ids(self.engine.text, config.thinking)
        return self.engine.generate(prompt, config)

    def answer(self, text: str, question: str, **settings: Any) -> Finished:
        """Run `generate` to its end."""
        *_, finished = self.generate(text, question, **settings)
        assert isinstance(finished, Finished)
        return finished

    def save(self, text: str, folder: Path | str, *, name: str = "text") -> None:
        """Read a text and keep what the model computed of it on disk, so that `open_saved` need not read it again.

        Raises:
            ContextTooSmall, BookFolderFull; NotPossibleHere: the folder cannot be made; InvalidSetting: this model's
                texts cannot be kept (several processes, windowed or recurrent layers).
        """
        store = BookStore(self.engine, BookFolder(Path(folder)))
        opening, seconds = self._about(text).opening_ids(self.engine.text), 0.0
        for progress in self.engine.read([*opening, opening[-1]]):  # the last token is left for an answer
            seconds = progress.elapsed_seconds
        for _ in store.keep(store.read_book(opening, [name], seconds)):
            pass

    def open_saved(self, text: str, folder: Path | str) -> int:
        """Bring a text that `save` kept for this model from disk; `generate` then reads the rest.

        Returns:
            How many of its tokens need not be read; 0: it was not saved, or for another model.
        Raises:
            NotPossibleHere, InvalidSetting: as `save`.
        """
        store = BookStore(self.engine, BookFolder(Path(folder)))
        opening = self._about(text).opening_ids(self.engine.text)
        for _ in store.fetch([*opening, opening[-1]]):
            pass
        return self.engine.cached_prefix(opening)

    def _about(self, text: str) -> Conversation:
        if text != self._text:
            self._text, self._ids = text, tuple(self.engine.text.encode(text))
        return Conversation(self._ids)

    def close(self) -> None:
        """Free devices and end processes."""
        self.engine.close()

    def _config(self, settings: dict[str, Any]) -> GenerationConfig:
        drawn = {name: settings[name] for name in SAMPLING if name in settings}
        kept = {name: value for name, value in settings.items() if name not in SAMPLING}
        config = GenerationConfig(**kept)
        return replace(config, sampling=replace(config.sampling, **drawn)) if drawn else config
