"""Text to tokens and back: the chat template cut into segments.

A prompt is joined from separately tokenised segments, so a book has the same tokens for every question and answers keep
their ids. Special tokens come from template pieces alone, or from a text that a program composed itself.
"""

import copy
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, cast

from jinja2 import TemplateError
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from core.errors import InvalidSetting
from core.generation.thinking import (
    FINAL,
    TAGS,
    ChannelReader,
    Channels,
    TagReader,
    Tags,
    ThoughtReader,
    marks_of,
    switches_of,
)

if TYPE_CHECKING:
    from core.decoding.grammar import Matcher
    from core.generation.json_grammar import JsonGrammars

# Used where a tokenizer has no chat template (base models): plain question and answer, see assets/docs/limits.md.
PLAIN_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'user' %}{{ m.content }}\n\nAnswer: {% else %}{{ m.content }}\n\n{% endif %}{% endfor %}"
)
ROLES = ("user", "assistant")  # the roles of a turn's messages
MARK = re.compile(r"<[^\s<>]+>|\[[^\s\[\]]+\]")  # such as <|user|>, </think>, [INST]
UNUSABLE = (TemplateError, TypeError, ValueError, LookupError)  # what rendering a template may raise
NOTHING: Mapping[str, Any] = MappingProxyType({})
# The date for chat templates that print today's, which stands before the book: saved books need the same one every day.
# This is Llama's default. A macro, because transformers passes only plain data to templates.
TODAY = datetime(2024, 7, 26)
DATED = "{{% macro strftime_now(format) %}}{{{{ format{} }}}}{{% endmacro %}}\n".format(
    "".join(
        f"|replace('%{code}', '{value}')|replace('%-{code}', '{value.lstrip('0') or 0}')"
        for code in "aAbBdHIjmMpSyY"
        if (value := TODAY.strftime(f"%{code}"))
    )
)


@dataclass(frozen=True, slots=True)
class Turn:
    """A question, and the answer's token ids once there is one (without the end-of-text token)."""

    question: str
    answer_ids: tuple[int, ...] | None = None


class PromptText(Protocol):
    """Texts to tokens and back, as needed to build prompts, wherever the model runs; see `ChatText`."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end a text."""

    @property
    def knows_offsets(self) -> bool:
        """Whether `offsets` works."""

    def encode(self, text: str) -> list[int]:
        """Tokens of plain text."""

    def offsets(self, text: str) -> list[int]:
        """Index of the first character of each token of `encode(text)`."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of tokens, without special ones."""

    def opening(self, book_ids: Sequence[int], thinking: str | None = None) -> list[int]:
        """Everything before the first question."""

    def prompt(self, book_ids: Sequence[int], turns: Sequence[Turn], thinking: str | None = None) -> list[int]:
        """The conversation so far, up to where the model answers the last turn. `thinking`: see `ChatText.pieces`."""


class ChatText:
    """One model's tokenizer and chat format."""

    marks: Tags | Channels | None = None
    switches: Mapping[str, Mapping[str, Any]] = NOTHING  # by wish; of an instance: see `switches_of`
    thinks: str = ""  # the default wish, of `switches`; "": another, or there are none
    _grammars: "JsonGrammars | None" = None  # made at the first use
    _in_parts = False  # whether the template takes messages as lists of parts
    _open_ends: Sequence[Sequence[int]] = ()  # the ends of prompts that leave a thought open

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        eos_ids: frozenset[int],
        template: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`template` replaces the tokenizer's own; `options` are for either (such as thinking off)."""
        self._tokenizer, self.eos_ids = tokenizer, eos_ids
        own = tokenizer.chat_template or PLAIN_TEMPLATE
        if isinstance(own, dict):  # several, by name
            own = own.get("default") or next(iter(own.values()))
        self._template, self._options = template or own, dict(options or {})
        self._in_parts = not self._takes_texts()
        self._plain = splitting(tokenizer, self._template)
        self.marks = marks_of(tokenizer)
        self._find_switches()

    def _takes_texts(self) -> bool:
        """Whether the template takes a message as a text; those of models that see may take only a list of parts."""
        mark = "\u2063?\u2063"
        try:
            return mark in self._rendered([{"role": "user", "content": mark}], self._options)
        except UNUSABLE:
            return False

    def _find_switches(self) -> None:
        """Find the template's switches for thoughts. One that always opens a thought cannot be switched off."""

        def shown(options: Mapping[str, Any]) -> str:
            return self._rendered([{"role": "user", "content": "?"}], self._options | dict(options))

        try:
            usual = shown({})
        except UNUSABLE:  # `pieces` reports it
            return
        switches = switches_of(shown)
        self.switches = switches
        if self.marks is None:
            return
        try:
            ends = [self.pieces(ROLES[:1], wish)[-1] for wish in (None, *switches)]
        except InvalidSetting:  # the first prompt reports it
            return
        self._open_ends = [end for end in ends if isinstance(self.marks, Tags) and self.marks.ends_open(end)]
        if not switches and self._open_ends:
            self.switches = {"on": {}}
        self.thinks = next((wish for wish, options in self.switches.items() if shown(options) == usual), "")

    @property
    def identity(self) -> str:
        """Digest of tokenizer and chat template: equal if every prompt has the same token ids."""
        tokenizer = self._tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        tokens = backend.to_str() if backend is not None else json.dumps(sorted(tokenizer.get_vocab().items()))
        template = json.dumps([self._template, tokenizer.chat_template, self._options], sort_keys=True)
        return hashlib.sha256(f"{tokens}\0{template}".encode()).hexdigest()

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of plain text. `special`: the names of special tokens in it are read as such."""
        words = self._tokenizer if special else self._plain
        encoded = words(text, add_special_tokens=False, split_special_tokens=not special, verbose=False)
        return cast(list[int], encoded["input_ids"])

    @property
    def beginning(self) -> Sequence[int]:
        """The special tokens that this tokenizer puts before a text without a chat template."""
        alone = cast(list[int], self._tokenizer("", verbose=False)["input_ids"])
        return [token for token in alone if token not in self.eos_ids or token == self._tokenizer.bos_token_id]

    @property
    def knows_offsets(self) -> bool:
        """Whether `offsets` works; tokenizers written in Python do not support it."""
        return bool(self._tokenizer.is_fast)

    def offsets(self, text: str) -> list[int]:
        """Index of the first character of each token of `encode(text)`."""
        encoded = self._plain(
            text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True, verbose=False
        )
        return [start for start, _ in cast(list[tuple[int, int]], encoded["offset_mapping"])]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of tokens, without special ones."""
        return cast(
            str,
            self._tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False),
        )

    def opening(self, book_ids: Sequence[int], thinking: str | None = None) -> list[int]:
        """Everything before the first question, which can be read before a question is asked."""
        return [*self._pieces(1, thinking)[0], *book_ids]

    def prompt(self, book_ids: Sequence[int], turns: Sequence[Turn], thinking: str | None = None) -> list[int]:
        """The conversation so far, up to where the model answers the last turn.

        The book is in the first user message, an empty line before the first question. All turns but the last
        must be answered.
        """
        pieces = self._pieces(len(turns), thinking)
        ids = [*pieces[0], *book_ids]
        for number, turn in enumerate(turns):
            ids += self.encode(f"\n\n{turn.question}" if number == 0 and book_ids else turn.question)
            ids += pieces[2 * number + 1]
            if number + 1 < len(turns):
                assert turn.answer_ids is not None, f"turn {number} of {len(turns)} has no answer"
                ids += turn.answer_ids
                ids += pieces[2 * number + 2]
        return ids

    def _pieces(self, num_turns: int, thinking: str | None) -> list[list[int]]:
        """Template text before, between and behind `num_turns` questions and the answers between them, as token ids."""
        return self.pieces([ROLES[number % 2] for number in range(2 * num_turns - 1)], thinking)

    def pieces(self, roles: Sequence[str], thinking: str | None = None) -> list[list[int]]:
        """Template text before, between and behind messages of these roles, as token ids; the model's answer follows.

        Args:
            thinking: a wish that the template supports (`core.generation.thinking`); None: the model's default.
        Raises:
            InvalidSetting: the model's chat format has no place for such messages, or does not know the wish.
        """
        check_thinking(thinking, tuple(self.switches))
        options = self._options | dict(self.switches[thinking] if thinking else {})
        marks = [f"\u2063{number}\u2063" for number in range(len(roles))]  # survives strip(), not in templates
        messages = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
        try:
            rendered = self._rendered(messages, options)
        except UNUSABLE as error:
            raise _unplaced(str(error)) from error
        pieces: list[str] = []
        for mark, role in zip(marks, roles, strict=True):
            before, is_there, rendered = rendered.partition(mark)
            if not is_there:
                raise _unplaced(f"a message of the {role} is left out")
            pieces.append(before)
        pieces.append(rendered)
        return [
            cast(list[int], self._tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"])
            if piece
            else []
            for piece in pieces
        ]

    def _rendered(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
        if self._in_parts:
            parts = ([{"type": "text", "text": message["content"]}] for message in messages)
            messages = [{**message, "content": part} for message, part in zip(messages, parts, strict=True)]
        return cast(
            str,
            self._tokenizer.apply_chat_template(
                cast(Any, messages),
                tokenize=False,
                add_generation_prompt=True,
                chat_template=DATED + self._template,
                **options,
            ),
        )

    def thoughts(self, prompt_ids: Sequence[int]) -> ThoughtReader | None:
        """Sorts the tokens of the answer to a prompt; None: this model marks no thoughts."""
        tail = [list(prompt_ids[-len(end) :]) == list(end) for end in self._open_ends]
        return self._reader(inside=any(tail))

    def without_thought(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """The tokens of an answer that begins with a thought, without it: what later prompts have."""
        reader = self._reader(inside=isinstance(self.marks, Tags) and self.marks.opened_before(token_ids))
        return tuple(token for token in token_ids if reader is None or reader.push(token) == "answer")

    def thought_over(self, prompt_ids: list[int], written: Sequence[int]) -> list[int]:
        """The prompt of an answer whose text has begun, without an open thought that `written` does not end."""
        marks, reader = self.marks, self.thoughts(prompt_ids)
        if not isinstance(marks, Tags) or reader is None or not reader.thinking or marks.closing in written:
            return prompt_ids
        return [*prompt_ids, marks.closing]

    def matcher(self, schema: str, vocab: int) -> "Matcher":
        """See `JsonGrammars`."""
        from core.generation.json_grammar import JsonGrammars

        self._grammars = self._grammars or JsonGrammars(self._tokenizer, self.eos_ids)
        return self._grammars.matcher(schema, vocab)

    def _reader(self, *, inside: bool) -> ThoughtReader | None:
        if self.marks is None:
            return None

        def blank(token: int) -> bool:
            return token not in self.eos_ids and not self.decode([token]).strip()

        if isinstance(self.marks, Tags):
            return TagReader(self.marks, inside, blank)
        return ChannelReader(self.marks, lambda ids: self.decode(ids).strip().startswith(FINAL))


LocalText = ChatText  # the text of an engine of this machine


def splitting(tokenizer: PreTrainedTokenizerBase, template: str) -> PreTrainedTokenizerBase:
    """The tokenizer for texts of others: it splits the template's marks, and tags of thoughts, even if not special."""
    backend, marks = getattr(tokenizer, "backend_tokenizer", None), template + " ".join(chain(*TAGS))
    added = backend.get_added_tokens_decoder().values() if backend is not None else ()
    found = {token.content for token in added if not token.special and token.content in marks}
    found = {mark for mark in found if MARK.fullmatch(mark)}  # no white space, no word
    if backend is None or not found:
        return tokenizer
    made, written = copy.copy(tokenizer), str(backend.to_str())
    for mark in found:
        entry = re.escape(f'"content":{json.dumps(mark, ensure_ascii=False)}')
        written, done = re.subn(f'({entry},[^{{}}]*"special":)false', r"\1true", written, count=1)
        assert done, f"{mark} is not written as expected"
    made._tokenizer = Tokenizer.from_str(written)  # half a second and 40 MiB for 150,000 words
    return made


def check_thinking(wish: str | None, offered: Sequence[str]) -> None:
    """Check that a model can be told to think, or not to.

    Raises:
        InvalidSetting: its chat template has no such switch.
    """
    if wish is None or wish in offered:
        return
    if not offered:
        raise InvalidSetting("This model’s chat template has no switch for thinking.", hint="Leave out --thinking.")
    problem = "This model always thinks before it answers" if wish == "off" else f"This model has no thinking {wish!r}"
    raise InvalidSetting(f"{problem}.", hint=f"Use --thinking {' or '.join(offered)}, or leave it out.")


def _unplaced(reason: str) -> InvalidSetting:
    return InvalidSetting(
        f"This model’s chat format does not take these messages ({reason.rstrip('.')}).",
        hint="Let user and assistant take turns, the user first and last.",
    )
