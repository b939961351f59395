from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from core import TriForce
from core.errors import InvalidSetting
from core.generation.events import Finished, RoundDone
from core.generation.text import ChatText, Turn
from core.generation.thinking import CHANNELS, Channels, Tags
from tests.core.toys import last_event
from tests.thinkers import ALWAYS, ANSWER, PLAIN, TEMPLATE, THOUGHT, save_thinker, tokenizer

BOOK = "A book about lights. " * 20
THINKING, SAID = "".join(THOUGHT).strip(), "".join(ANSWER)
# As in gpt-oss's template: the effort stands before everything else, and the model writes every header itself.
HARMONY = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort | default('medium') }}<|end|>"
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>"
    "{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


def text_of(template: str, *, channels: bool = False) -> ChatText:
    words = tokenizer(template)
    if channels:
        words.add_tokens([AddedToken(name, special=True) for name in CHANNELS], special_tokens=True)
    return ChatText(words, frozenset({words.eos_token_id}))


class Thinker(TriForce):
    """Answers questions about the book."""

    def say(self, question: str = "Who?", most: int = 40, **settings: Any) -> Finished:
        return self.answer(BOOK, question, max_new_tokens=most, **settings)

    def go_on(self, prompt: list[int], written: Any, most: int = 40) -> Finished:
        return last_event(self.engine.generate(prompt, self._config({"max_new_tokens": most}), written=written))

    @property
    def prompt(self) -> list[int]:
        return self.engine.text.prompt(self.engine.text.encode(BOOK), [Turn("Who?")])


def thinker_at(folder: Path, *args: Any, **settings: Any) -> Thinker:
    return Thinker.from_pretrained(str(save_thinker(folder, *args, **settings)), context=1024)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Thinker:
    return thinker_at(tmp_path_factory.mktemp("thinker"))


@pytest.fixture(scope="module")
def always(tmp_path_factory: pytest.TempPathFactory) -> Thinker:
    """Its template opens the thought."""
    return thinker_at(tmp_path_factory.mktemp("always"), ALWAYS)


@pytest.mark.parametrize("method", ["autoregressive", "lookup"])
def test_a_thought_is_no_part_of_the_answer_and_is_counted(thinker: Thinker, method: str) -> None:
    *events, end = thinker.generate(BOOK, "Who keeps it?", max_new_tokens=40, method=method)
    assert isinstance(end, Finished)
    assert (thinker.engine.info.thinking, thinker.engine.info.thinks) == (("on", "off"), "on")
    assert (end.thought, end.text, end.in_thought) == (THINKING, SAID, False)
    assert end.stats.thought_tokens == len(THOUGHT) + 3  # <think>, </think>, the empty line
    assert end.stats.answer_tokens == len(ANSWER) + 1  # the end of the text
    assert 0 < end.stats.thought_seconds < end.stats.decode_seconds
    rounds = [event for event in events if isinstance(event, RoundDone)]
    assert ("".join(one.thought for one in rounds), "".join(one.text for one in rounds)) == (THINKING, SAID)


def test_later_prompts_have_no_thought_and_read_no_book_again(thinker: Thinker) -> None:
    first = thinker.say("Who keeps it?")
    second = thinker.say("And then?", history=[("Who keeps it?", first)])
    messages = [
        {"role": "user", "content": f"{BOOK}\n\nWho keeps it?"},
        {"role": "assistant", "content": f"<think>{first.thought}</think>\n\n{first.text}"},
        {"role": "user", "content": "And then?"},
    ]
    words, text = tokenizer(), thinker.engine.text
    rendered = words.apply_chat_template(messages, tokenize=False, add_generation_prompt=True).replace("\n\nCap", "Cap")
    assert words.decode(thinker.engine.held_tokens).startswith(rendered)
    assert second.reused_tokens >= len(text.opening(text.encode(BOOK))) and second.text == SAID


def test_a_continued_answer_is_told_apart_again(thinker: Thinker) -> None:
    whole = thinker.say()
    for cut in range(1, len(whole.token_ids)):
        end = thinker.go_on(thinker.prompt, whole.token_ids[:cut])
        assert (end.text, end.thought, end.token_ids) == (whole.text, whole.thought, whole.token_ids)
        assert end.stats.thought_tokens == max(0, whole.stats.thought_tokens - cut)


def test_a_thought_that_never_ends_says_so(tmp_path: Path) -> None:
    endless = thinker_at(tmp_path, TEMPLATE, ends=False)
    end = endless.say(most=20)
    assert (end.text, end.in_thought, end.stop_reason) == ("", True, "max_new_tokens")
    assert end.stats.thought_tokens == 20
    second = endless.say("Again?", 4, history=[("Who?", end)])
    assert second.prompt_tokens == end.prompt_tokens + len("Again?") + 4  # the empty answer's frame


def test_a_template_that_always_thinks_begins_inside_the_thought(always: Thinker) -> None:
    end, text = always.say(), always.engine.text
    assert (end.thought, end.text, text.decode(text.without_thought(end.token_ids))) == (THINKING, SAID, SAID)
    assert always.engine.info.thinking == ("on",)
    with pytest.raises(InvalidSetting, match="always thinks"):
        always.say(thinking="off")
    cut = always.say(most=3)
    again = always.say("Again?", history=[("Who?", cut)])
    turns = [Turn("Who?", ()), Turn("Again?")]
    assert cut.in_thought and again.prompt_tokens == len(text.prompt(text.encode(BOOK), turns))


def test_a_text_goes_on_as_an_answer_where_the_template_opens_a_thought(always: Thinker) -> None:
    text = always.engine.text
    prompt, said = always.prompt, text.encode("The light was dark and")
    end = always.go_on(text.thought_over(prompt, said), said, 4)
    assert end.text.startswith("The light was dark and") and (end.thought, end.in_thought) == ("", False)
    assert text.thought_over(prompt, always.say().token_ids) == prompt, "what was written ends the thought itself"
    assert text_of(PLAIN).thought_over([1, 2], said) == [1, 2]


def test_a_template_without_the_switch_refuses_it() -> None:
    assert text_of(PLAIN).switches == {}
    other = "{{ enable_thinking }}{{ messages[0].content }}"
    for template, why in ((PLAIN, "no switch for thinking"), (other, "no thinking 'high'")):
        with pytest.raises(InvalidSetting, match=why):
            text_of(template).prompt([], [Turn("Who?")], "high")


def test_marks_in_a_question_or_in_an_answer_begin_no_thought(thinker: Thinker) -> None:
    text = thinker.engine.text
    reader = text.thoughts(text.prompt([], [Turn("What does <think> do?")]))
    assert isinstance(text.marks, Tags) and reader is not None
    said = [*text.encode("It opens a thought: "), text.marks.opening, *text.encode("so")]
    assert {reader.push(token) for token in said} == {"answer"}


def test_channels_of_gpt_oss() -> None:
    text = text_of(HARMONY, channels=True)
    assert isinstance(text.marks, Channels) and text.thinks == "on"
    assert tuple(text.switches) == ("on", "low", "medium", "high")
    assert "Reasoning: high" in text.decode(text.opening([], "high"))
    words = "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant<|channel|>final<|message|>Reed."
    ids = text._tokenizer(words, add_special_tokens=False)["input_ids"]
    reader, plain = text.thoughts(text.prompt([], [Turn("Who?")])), text.thoughts([])
    assert reader is not None and plain is not None
    parts = [(token, reader.push(token)) for token in ids]
    thought, answer = ([token for token, part in parts if part == wanted] for wanted in ("thought", "answer"))
    assert (text.decode(thought), text.decode(answer), reader.thinking) == ("Look it up.", "Reed.", False)
    assert text.without_thought(ids) == tuple(answer)
    assert {plain.push(token) for token in text.encode("No header.")} == {"answer"}
    with pytest.raises(InvalidSetting, match="always thinks"):
        text.prompt([], [Turn("Who?")], "off")
