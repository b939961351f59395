"""A remote engine against a server that behaves, and against one that does not: one line, one action, no waiting."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.remote import server as remote
from app.remote.engine import RemoteEngine, RemoteText
from app.remote.server import RemoteError, Server, base_of
from core.config import GenerationConfig, SamplingParams
from core.engine_api import local
from core.errors import ContextTooSmall, CoreError, InvalidSetting, NotPossibleHere, UnknownModel
from core.generation.events import Event, Finished, PrefillProgress, RoundDone
from core.generation.session import Conversation
from core.generation.text import Turn
from tests.app.fakes import SECONDS
from tests.app.remote.fake_server import (
    CARD,
    DONE,
    ENDLESS,
    GOOD,
    FakeServer,
    Reply,
    event,
    fake_server,
    json_reply,
    raw,
    says,
    stream,
    thinks,
    used,
)

HIDDEN_KEY = "a-very-secret-key"
BOOK = "".join(f"Line {number} of a book about the sea.\n" for number in range(900))


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as one:
        yield one


def connect(server: FakeServer, model: str | None = None, context: int | None = None) -> RemoteEngine:
    return RemoteEngine(Server(server.url, HIDDEN_KEY), model, context)


def ask(engine: RemoteEngine, config: GenerationConfig | None = None, **more: Any) -> list[Event]:
    conversation = Conversation(tuple(engine.text.encode("Martha keeps the light."))).ask("Who keeps the light?")
    return list(engine.generate(conversation.prompt_ids(engine.text), config or GenerationConfig(), **more))


def end(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def check_words(error: CoreError) -> None:
    for words in (error.problem, error.hint):
        assert words and words.isprintable() and len(words) < 400 and HIDDEN_KEY not in words


# -------------------- text as numbers


@given(st.text(max_size=200), st.integers(1, 99) | st.none())
def test_text_comes_back_from_its_numbers(text: str, counted: int | None) -> None:
    tokens = RemoteText(lambda _: counted)
    for whole in (text, f"{text}{BOOK}", text):
        assert tokens.decode(tokens.encode(whole)) == whole


@given(st.text(max_size=50), st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9)), max_size=3))
def test_a_prompt_holds_the_messages_that_are_sent(book: str, past: list[tuple[str, str]]) -> None:
    tokens = RemoteText(lambda _: None)
    turns = [Turn(question, tuple(tokens.encode(answer))) for question, answer in past] + [Turn("Where?")]
    sent = tokens.messages(tokens.prompt(tokens.encode(book), turns))
    texts = [text for pair in past for text in pair] + ["Where?"]
    texts[0] = f"{book}\n\n{texts[0]}" if book else texts[0]
    assert [one["content"] for one in sent] == texts
    assert [one["role"] for one in sent] == [("user", "assistant")[at % 2] for at in range(len(texts))]


def test_there_are_as_many_numbers_as_the_server_counts_or_an_estimate(server: FakeServer) -> None:
    def asked() -> int:
        return len([path for path, _, _ in server.seen if path == "/tokenize"])

    server.counts_words()
    text = connect(server).text
    assert len(text.encode("short")) == 2 and asked() == 0
    assert len(text.encode(BOOK)) == pytest.approx(len(BOOK.split()), abs=1)
    assert len(text.encode(BOOK[:9000])) == pytest.approx(len(BOOK[:9000].split()), rel=0.1) and asked() == 1
    del server.scripts["/tokenize"]
    assert len(connect(server).text.encode(BOOK)) == -(-len(BOOK) // 4)


# -------------------- answers


def test_an_answer_comes_with_its_figures(server: FakeServer) -> None:
    pause = 0.5
    server.answers(stream(says("The light\u2028"), pause, says("house."), says("", "stop"), used(50, 4, 48), DONE))
    events = ask(connect(server))
    finished = end(events)
    assert [e.text for e in events if isinstance(e, RoundDone)] == ["The light\u2028", "house."]
    assert finished.text == "The light\u2028house." and finished.token_ids == ()
    assert (finished.stats.new_tokens, finished.prompt_tokens, finished.reused_tokens) == (4, 50, 48)
    assert (finished.stop_reason, finished.method, finished.exact) == ("end_of_text", "remote", False)
    assert pause / 4 < finished.stats.decode_seconds < 60 and finished.stats.level2 is None
    (body,) = server.chats
    assert body["messages"] == [{"role": "user", "content": "Martha keeps the light.\n\nWho keeps the light?"}]
    assert body["temperature"] == 0 and body["stream_options"] == {"include_usage": True}
    server.answers(stream(0.1, event(type="ping"), says("All at once.", "stop")))  # neither counts nor an end
    assert end(ask(connect(server))).stats.decode_seconds >= 0.1


def test_settings_and_the_key_reach_the_server_and_a_thought_is_told_apart(server: FakeServer) -> None:
    server.answers(stream(thinks("Hm, "), thinks("hm."), says("Martha.", "stop"), used(50, 9), DONE))
    sampling, engine = SamplingParams(temperature=0.7, top_p=0.9, top_k=5), connect(server)
    finished = end(ask(engine, GenerationConfig(max_new_tokens=7, sampling=sampling, seed=3, thinking="off")))
    assert (finished.thought, finished.text, finished.in_thought) == ("Hm, hm.", "Martha.", False)
    assert (finished.stats.thought_tokens, finished.stats.new_tokens) == (2, 9)
    sent = {"max_tokens": 7, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "seed": 3}
    sent |= {"chat_template_kwargs": {"enable_thinking": False}}
    assert sent.items() <= server.chats[0].items()
    ask(connect(server, context=200), GenerationConfig(max_new_tokens=999))
    assert server.chats[1]["max_tokens"] < 200, "prompt and answer fit the context"
    assert all(headers.get("authorization") == f"Bearer {HIDDEN_KEY}" for _, _, headers in server.seen)
    assert HIDDEN_KEY not in repr((engine.info, finished, engine.config, server.chats)), "and nowhere else"


def test_a_book_is_read_ahead_once(server: FakeServer) -> None:
    server.answers(stream(says("x", "length"), used(20, 1), DONE))
    engine = connect(server)
    opening = Conversation(tuple(engine.text.encode("word " * 60))).opening_ids(engine.text)
    assert [p.done_tokens for p in engine.read(opening)] == [0, len(opening) - 1]
    assert len(list(engine.read(opening))) == 1, "what was sent is not sent again"
    assert [body["max_tokens"] for path, body, _ in server.seen if path.endswith("completions")] == [1]


def test_model_and_context_are_the_server_s_or_asked_for(server: FakeServer) -> None:
    assert connect(server).context == 4096 and connect(server, context=1000).context == 1000
    with pytest.raises(ContextTooSmall):
        connect(server, context=5000)
    server.tells("/v1/models", json_reply({"data": [{"id": "big"}]}))
    with pytest.raises(InvalidSetting, match=r"--context.*OLLAMA_CONTEXT_LENGTH"):
        connect(server)
    server.tells("/v1/models", json_reply({"data": [CARD, {**CARD, "id": "small"}]}))
    for model, problem in ((None, "big, small"), ("other", "no model 'other'")):
        with pytest.raises(UnknownModel, match=problem):
            connect(server, model)
    assert connect(server, model="small").info.model.startswith("small @ 127.0.0.1:")


def test_what_only_a_model_here_has_is_refused(server: FakeServer) -> None:
    engine = connect(server)
    refused: list[tuple[Callable[[], Any], type[CoreError], str]] = [
        (lambda: local(engine), NotPossibleHere, "without --remote"),
        (lambda: ask(engine, written=engine.text.encode("The light ")), RemoteError, "Regenerate"),
        (lambda: [*engine.read(engine.text.opening(engine.text.encode("word " * 5000)))], ContextTooSmall, "context"),
    ]
    for act, error, words in refused:
        with pytest.raises(error, match=words):
            act()
    assert server.chats == []


# -------------------- servers that misbehave


BAD: dict[str, tuple[Reply, str]] = {
    "is an HTML page": (raw(b"<html>", kind="text/html"), "not answer like"),
    "is JSON in place of a stream": (json_reply({"choices": []}), "not answer like"),
    "is no JSON": (stream(b"data: {nope\n\n"), "not answer like"),
    "has numbers for words": (stream(event(choices=[{"delta": {"content": 5}}]), DONE), "not answer like"),
    "is nested": (stream(b"data: " + b"[" * 100_000 + b"\n\n"), "not answer like"),
    "breaks off": (stream(says("The"), end=False), "ended the connection"),
    "breaks off without a reason": (stream(says("The", ""), end=False), "ended the connection"),
    "ends without an end": (stream(says("The")), "ended the connection"),
    "falls silent": (stream(says("The"), 9.0), "sends nothing"),
    "is an error amid a stream": (stream(says("The"), event(error={"message": "out of memory"})), "out of memory"),
    "is 500": (json_reply({"error": {"message": "out\nof\x1b[31m memory"}}, 500), "500"),
    "is 400 without words": (raw(b"\xff\xfe", 400), "fewer pages"),
    "is 401": (json_reply({"detail": "no key"}, 401), "--remote-key"),
    "leads elsewhere": (raw(b"", 307, Location="http://127.0.0.1:9/"), "307.*has its address"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_answer_is_one_line_with_one_action(
    server: FakeServer, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "SILENT_SECONDS", 1.0)
    engine, (reply, said) = connect(server), BAD[what]
    server.answers(reply)
    with pytest.raises(RemoteError, match=said) as caught:
        ask(engine)
    check_words(caught.value)
    assert len(server.chats) == 1, "an answer is not asked for twice"
    server.answers(GOOD)
    assert end(ask(engine)).text, "the next one is not harmed"


def test_a_server_that_is_none_or_has_gone_is_told(server: FakeServer) -> None:
    engine = connect(server)
    for reply in (json_reply([]), json_reply({"data": [5]}), raw(b"[" * 100_000), json_reply({}, 404)):
        server.tells("/v1/models", reply)
        with pytest.raises(CoreError) as caught:
            connect(server)
        check_words(caught.value)
    server.shutdown()
    server.server_close()
    with pytest.raises(RemoteError, match="cannot be reached") as caught:
        ask(engine)
    check_words(caught.value)


@pytest.mark.parametrize("reply", [ENDLESS, stream(300.0)])
def test_stop_ends_the_connection_at_once(server: FakeServer, reply: Reply) -> None:
    server.answers(reply)
    engine, cancel = connect(server), threading.Event()
    threading.Thread(target=lambda: (server.answering.wait(SECONDS), time.sleep(0.1), cancel.set())).start()
    started = time.monotonic()
    finished = end(ask(engine, cancel=cancel))
    assert finished.stop_reason == "cancelled" and time.monotonic() - started < 100, "it waited for the server"
    if reply is ENDLESS:
        assert server.gone.wait(SECONDS), "the server was not told"
        assert finished.text == "word " * finished.stats.new_tokens != ""


def test_a_closed_generator_ends_the_connection(server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    server.answers(ENDLESS)
    engine = connect(server)
    events = engine.generate(engine.text.prompt((), Conversation().ask("Who?").turns), GenerationConfig())
    assert isinstance(next(events), PrefillProgress) and isinstance(next(events), RoundDone)
    with caplog.at_level("ERROR", "asyncio"):
        events.close()
        gc.collect()
    assert server.gone.wait(SECONDS) and not caplog.records, "nothing of the connection is left"


def test_an_address_is_made_complete_or_refused() -> None:
    assert base_of("http://localhost:8000") == "http://localhost:8000/v1"
    assert base_of("https://gpu.example/llm/v1/") == "https://gpu.example/llm/v1"
    assert base_of("[::1]:8000") == "http://[::1]:8000/v1"
    for wrong in ("", "ftp://x", "http://", "u:p@x", "mailto:x", "http://x?key=1", "http://x:y"):
        with pytest.raises(InvalidSetting) as caught:
            base_of(wrong)
        assert ":p@" not in str(caught.value)
    with pytest.raises(InvalidSetting):
        Server("http://x/v1", "ä\n")


@pytest.mark.parametrize(
    "name, value",
    [
        *(("ALL_PROXY", proxy) for proxy in ("socks5://127.0.0.1:9", "socks://x:9")), ("NO_PROXY", "::1/128"),
        ("SSL_CERT_FILE", "gone.pem"),
    ],
)  # fmt: skip
def test_a_proxy_or_certificate_that_cannot_be_used_is_told(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in ("ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, value)
    with pytest.raises(RemoteError, match=name):
        Server("https://gpu.example/v1")
    assert Server("http://127.0.0.1:8000").name == "127.0.0.1:8000", "this machine needs none"
