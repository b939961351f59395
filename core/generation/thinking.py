"""Thoughts: text before the answer, recognised by the ids of the tokens that mark them.

Marks are single tokens, so no text that looks like one begins or ends a thought.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

Part = Literal["answer", "thought", "mark"]
Blank = Callable[[int], bool]

TAGS = (("<think>", "</think>"), ("<seed:think>", "</seed:think>"), ("[THINK]", "[/THINK]"))
# The response format of gpt-oss ("harmony"): <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final
CHANNELS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
FINAL = "final"
LONGEST_HEADER = 16  # tokens between <|start|> and <|message|>; anything longer is no header
SWITCHES = ("enable_thinking", "thinking")  # variables of chat templates that turn the thought on and off
EFFORTS = ("low", "medium", "high")  # of `reasoning_effort`


@dataclass(frozen=True, slots=True)
class Tags:
    """A thought between two tokens."""

    opening: int
    closing: int

    def ends_open(self, ids: Sequence[int]) -> bool:
        """Whether template text leaves a thought open."""
        return next((token == self.opening for token in reversed(ids) if token in (self.opening, self.closing)), False)

    def opened_before(self, ids: Sequence[int]) -> bool:
        """Whether an answer with a thought began inside it."""
        return next((token == self.closing for token in ids if token in (self.opening, self.closing)), False)


class TagReader:
    """Sorts an answer's tokens by `Tags`: a thought at the beginning of the answer; later marks are text."""

    def __init__(self, tags: Tags, inside: bool, blank: Blank) -> None:
        self._tags, self._blank = tags, blank
        self.thinking = self._thought = inside  # whether a thought is open; whether there was one
        self._begun = False  # the answer

    def push(self, token_id: int) -> Part:
        """Whether the next token belongs to thought or answer; marks and white space between them to neither."""
        if self.thinking:
            self.thinking = token_id != self._tags.closing
            return "thought" if self.thinking else "mark"
        if self._begun:
            return "answer"
        if token_id == self._tags.opening:
            self.thinking = self._thought = True
            return "mark"
        self._begun = not self._blank(token_id)
        return "answer" if self._begun or not self._thought else "mark"


@dataclass(frozen=True, slots=True)
class Channels:
    """Messages with headers, which the model writes itself; all but the final one are thought."""

    start: int
    channel: int
    message: int
    end: int


class ChannelReader:
    """Sorts an answer's tokens by `Channels`. Text without any header is the answer."""

    def __init__(self, marks: Channels, final: Callable[[Sequence[int]], bool]) -> None:
        self._marks, self._final = marks, final
        self._header: list[int] | None = None  # tokens so far of an open one
        self.thinking = False

    def push(self, token_id: int) -> Part:
        """As `TagReader.push`."""
        marks = self._marks
        if token_id in (marks.start, marks.channel, marks.end):
            self._header = []
            return "mark"
        if self._header is None:
            return "thought" if self.thinking else "answer"
        if token_id == marks.message:
            self.thinking, self._header = not self._final(self._header), None
            return "mark"
        self._header.append(token_id)
        if len(self._header) > LONGEST_HEADER:
            self._header = None
        return "mark"


ThoughtReader = TagReader | ChannelReader


def marks_of(tokenizer: PreTrainedTokenizerBase) -> Tags | Channels | None:
    """How a tokenizer's model marks its thoughts; None: it has no tokens for that."""
    known = tokenizer.get_added_vocab()
    if all(name in known for name in CHANNELS):
        return Channels(*(known[name] for name in CHANNELS))
    pairs = (Tags(known[opening], known[closing]) for opening, closing in TAGS if opening in known and closing in known)
    return next(pairs, None)


def switches_of(render: Callable[[Mapping[str, Any]], str]) -> dict[str, dict[str, Any]]:
    """The wishes ("on", "off", EFFORTS) that a chat template can follow, and its variables for each; empty: none.

    Args:
        render: the template's text for a question, with these variables.
    """

    def texts(name: str, values: Sequence[object]) -> set[str]:
        try:
            return {render({name: value}) for value in values}
        except (TemplateError, TypeError, ValueError):  # the template expects another kind of value
            return set()

    for name in SWITCHES:
        if len(texts(name, (True, False))) == 2:
            return {"on": {name: True}, "off": {name: False}}
    if len(texts("reasoning_effort", EFFORTS)) == len(EFFORTS):
        efforts = {effort: {"reasoning_effort": effort} for effort in EFFORTS}
        return {"on": efforts["medium"], **efforts}
    return {}
