from pathlib import Path

import pytest
from tokenizers import AddedToken

from core import TriForce
from core.errors import InvalidSetting
from core.generation.events import Finished, RoundDone
from core.generation.text import ChatText, Turn
from core.generation.thinking import CHANNELS, Channels, Part, Tags
from tests.core.toys import last_event
from tests.thinkers import ALWAYS, ANSWER, PLAIN, THOUGHT, save_thinker, tokenizer

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


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> TriForce:
    return TriForce.from_pretrained(str(save_thinker(tmp_path_factory.mktemp("thinker"))), context=1024)


@pytest.mark.parametrize("method", ["autoregressive", "lookup"])
def test_a_thought_is_no_part_of_the_answer_and_is_counted(thinker: TriForce, method: str) -> None:
    *events, end = thinker.generate(BOOK, "Who keeps it?", max_new_tokens=40, method=method)
    assert isinstance(end, Finished)
    assert (end.thought, end.text, end.in_thought) == (THINKING, SAID, False)
    marks = 3  # <think>, </think>, the empty line
    assert end.stats.thought_tokens == len(THOUGHT) + marks
    assert end.stats.answer_tokens == len(ANSWER) + 1  # the end of the text
    assert 0 < end.stats.thought_seconds < end.stats.decode_seconds
    rounds = [event for event in events if isinstance(event, RoundDone)]
    assert "".join(one.thought for one in rounds) == THINKING
    assert "".join(one.text for one in rounds) == SAID


def test_later_prompts_have_no_thought_and_read_no_book_again(thinker: TriForce) -> None:
    first = thinker.answer(BOOK, "Who keeps it?", max_new_tokens=40)
    text = thinker.engine.text
    second = thinker.answer(BOOK, "And then?", max_new_tokens=40, history=[("Who keeps it?", first)])
    messages = [
        {"role": "user", "content": f"{BOOK}\n\nWho keeps it?"},
        {"role": "assistant", "content": f"<think>{first.thought}</think>\n\n{first.text}"},
        {"role": "user", "content": "And then?"},
    ]
    words = tokenizer()
    rendered = words.apply_chat_template(messages, tokenize=False, add_generation_prompt=True).replace("\n\nCap", "Cap")
    assert words.decode(thinker.engine.held_tokens).startswith(rendered)
    assert second.reused_tokens >= len(text.opening(text.encode(BOOK)))
    assert second.text == SAID


def test_a_continued_answer_is_told_apart_again(thinker: TriForce) -> None:
    prompt = thinker.engine.text.prompt(thinker.engine.text.encode(BOOK), [Turn("Who?")])
    whole = thinker.answer(BOOK, "Who?", max_new_tokens=40)
    for cut in range(1, len(whole.token_ids)):
        config = thinker._config({"max_new_tokens": 40})
        end = last_event(thinker.engine.generate(prompt, config, written=whole.token_ids[:cut]))
        assert (end.text, end.thought, end.token_ids) == (whole.text, whole.thought, whole.token_ids)
        assert end.stats.thought_tokens == max(0, whole.stats.thought_tokens - cut)


def test_thinking_off_writes_no_thought(thinker: TriForce) -> None:
    assert thinker.engine.info.thinking == ("on", "off")
    assert thinker.engine.info.thinks == "on"
    end = thinker.answer(BOOK, "Who?", max_new_tokens=40, thinking="off")
    assert (end.thought, end.text.strip(), end.stats.thought_tokens) == ("", SAID, 0)


def test_a_thought_that_never_ends_says_so(tmp_path: Path) -> None:
    endless = TriForce.from_pretrained(str(save_thinker(tmp_path, ends=False)), context=1024)
    end = endless.answer(BOOK, "Who?", max_new_tokens=20)
    assert (end.text, end.in_thought, end.stop_reason) == ("", True, "max_new_tokens")
    assert end.stats.thought_tokens == 20
    second = endless.answer(BOOK, "Again?", max_new_tokens=4, history=[("Who?", end)])
    assert second.prompt_tokens == end.prompt_tokens + len("Again?") + 4  # the empty answer's frame


def test_a_template_that_always_thinks_begins_inside_the_thought(tmp_path: Path) -> None:
    always = TriForce.from_pretrained(str(save_thinker(tmp_path, ALWAYS)), context=1024)
    end = always.answer(BOOK, "Who?", max_new_tokens=40)
    assert (end.thought, end.text) == (THINKING, SAID)
    assert always.engine.text.decode(always.engine.text.without_thought(end.token_ids)) == SAID
    assert always.engine.info.thinking == ("on",)
    with pytest.raises(InvalidSetting, match="always thinks"):
        always.answer(BOOK, "Who?", thinking="off")


def test_a_text_goes_on_as_an_answer_where_the_template_opens_a_thought(tmp_path: Path) -> None:
    always = TriForce.from_pretrained(str(save_thinker(tmp_path, ALWAYS)), context=1024)
    text = always.engine.text
    prompt, said = text.prompt(text.encode(BOOK), [Turn("Who?")]), text.encode("The light was dark and")
    config = always._config({"max_new_tokens": 4})
    end = last_event(always.engine.generate(text.thought_over(prompt, said), config, written=said))
    assert end.text.startswith("The light was dark and") and (end.thought, end.in_thought) == ("", False)
    whole = always.answer(BOOK, "Who?", max_new_tokens=40)
    assert text.thought_over(prompt, whole.token_ids) == prompt, "what was written ends the thought itself"
    plain = text_of(PLAIN)
    assert plain.thought_over([1, 2], said) == [1, 2]
    cut = always.answer(BOOK, "Who?", max_new_tokens=3)
    again = always.answer(BOOK, "Again?", max_new_tokens=40, history=[("Who?", cut)])
    assert cut.in_thought and again.prompt_tokens == len(
        text.prompt(text.encode(BOOK), [Turn("Who?", ()), Turn("Again?")])
    )


def test_a_template_without_the_switch_refuses_it() -> None:
    text = text_of(PLAIN)
    assert text.switches == {}
    for wish in ("on", "off", "high"):
        with pytest.raises(InvalidSetting, match="no switch for thinking"):
            text.prompt([], [Turn("Who?")], wish)
    with pytest.raises(InvalidSetting, match="no thinking 'high'"):
        text_of("{{ enable_thinking }}{{ messages[0].content }}").prompt([], [Turn("Who?")], "high")


def test_marks_in_a_question_or_in_an_answer_begin_no_thought(thinker: TriForce) -> None:
    text = thinker.engine.text
    assert isinstance(text.marks, Tags)
    reader = text.thoughts(text.prompt([], [Turn("What does <think> do?")]))
    assert reader is not None
    said = [*text.encode("It opens a thought: "), text.marks.opening, *text.encode("so")]
    assert {reader.push(token) for token in said} == {"answer"}


def test_channels_of_gpt_oss() -> None:
    text = text_of(HARMONY, channels=True)
    assert isinstance(text.marks, Channels)
    assert tuple(text.switches) == ("on", "low", "medium", "high")
    assert text.thinks == "on"
    assert "Reasoning: high" in text.decode(text.opening([], "high"))
    words = "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant<|channel|>final<|message|>Reed."
    ids = text._tokenizer(words, add_special_tokens=False)["input_ids"]
    reader = text.thoughts(text.prompt([], [Turn("Who?")]))
    assert reader is not None
    parts: dict[Part, list[int]] = {"answer": [], "thought": [], "mark": []}
    for token in ids:
        parts[reader.push(token)].append(token)
    assert text.decode(parts["thought"]) == "Look it up."
    assert text.decode(parts["answer"]) == "Reed."
    assert text.without_thought(ids) == tuple(parts["answer"])
    assert not reader.thinking
    plain = text.thoughts([])
    assert plain is not None
    assert {plain.push(token) for token in text.encode("No header.")} == {"answer"}
    with pytest.raises(InvalidSetting, match="always thinks"):
        text.prompt([], [Turn("Who?")], "off")
