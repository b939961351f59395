"""A remote engine against a server that behaves, and against one that does not: one line, one action, no waiting."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from app.cli.ask import document
from app.remote.client import Address, Patience
from app.remote.engine import RemoteEngine
from app.remote.errors import BrokenOff, Garbage, NotRemotely, Refused, RemoteError, TooSlow, Unreachable
from app.remote.text import FRAME, number_of
from app.runtime.answer_json import answer_report
from core.config import GenerationConfig, SamplingParams
from core.errors import ContextTooSmall, CoreError, InvalidSetting, UnknownModel
from core.generation.events import Event, Finished, PrefillProgress, RoundDone
from core.generation.session import Conversation
from tests.app.fakes import SECONDS
from tests.app.remote.fake_server import (
    CARD,
    DONE,
    GOOD,
    FakeServer,
    Reply,
    endless,
    event,
    fake_server,
    json_reply,
    raw,
    says,
    stream,
    used,
)
from tests.app.server.openai.servers import free_port

PATIENT = Patience(retries=(0.01, 0.02))
QUICK = Patience(short=2.0, first=2.0, between=2.0, retries=(0.01, 0.02))  # for servers that are slow
HIDDEN_KEY = "a-very-secret-key"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as one:
        one.counts_words()
        yield one


CONNECTED: list[RemoteEngine] = []


@pytest.fixture(autouse=True)
def connections() -> Iterator[None]:
    yield
    while CONNECTED:
        CONNECTED.pop().close()


def connect(server: FakeServer, **options: Any) -> RemoteEngine:
    options = {"key": HIDDEN_KEY, "model": None, "context": None, "patience": PATIENT, **options}
    CONNECTED.append(RemoteEngine.connect(server.url, **options))
    return CONNECTED[-1]


def ask(engine: RemoteEngine, config: GenerationConfig | None = None, **more: Any) -> list[Event]:
    conversation = Conversation(tuple(engine.text.encode("Martha keeps the light."))).ask("Who keeps the light?")
    return list(engine.generate(conversation.prompt_ids(engine.text), config or GenerationConfig(), **more))


def end(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


# -------------------- a server that behaves


def test_an_answer_comes_with_its_figures(server: FakeServer) -> None:
    pause = 0.5
    server.answers(stream(says("The light "), pause, says("house."), says("", "stop"), used(50, 4, 48), DONE))
    engine = connect(server)
    events = ask(engine)
    finished = end(events)
    assert isinstance(events[0], PrefillProgress) and [e.text for e in events if isinstance(e, RoundDone)] == [
        "The light ",
        "house.",
    ]
    assert finished.text == "The light house." == engine.text.decode(finished.token_ids)
    assert (finished.stats.new_tokens, len(finished.token_ids), finished.prompt_tokens) == (4, 4, 50)
    assert (finished.reused_tokens, finished.stop_reason, finished.method) == (48, "end_of_text", "remote")
    assert pause / 4 < finished.stats.decode_seconds < 60 and finished.stats.level2 is None and not finished.exact
    (body,) = server.chats
    assert body["messages"] == [{"role": "user", "content": "Martha keeps the light.\n\nWho keeps the light?"}]
    assert body["temperature"] == 0 and body["stream_options"] == {"include_usage": True} and "triforce" not in body


def test_an_answer_in_one_piece_is_not_called_faster_than_it_was(server: FakeServer) -> None:
    server.answers(stream(0.1, says("All at once."), says("", "stop"), used(50, 4), DONE))
    assert end(ask(connect(server))).stats.decode_seconds >= 0.1


ALL = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "All of it."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 50, "completion_tokens": 4},
}


def test_a_server_that_does_not_stream_is_answered_in_one_piece(server: FakeServer) -> None:
    server.answers(json_reply(ALL))
    finished = end(ask(connect(server)))
    assert (finished.text, finished.stop_reason, finished.stats.new_tokens) == ("All of it.", "end_of_text", 4)


def test_a_server_that_refuses_to_stream_is_asked_without(server: FakeServer) -> None:
    server.answers(json_reply({"error": {"message": "streaming is not supported"}}, 400), json_reply(ALL))
    assert end(ask(connect(server))).text == "All of it."
    first, second = server.chats
    assert first["stream"] and "stream" not in second and "stream_options" not in second
    server.answers(json_reply({"error": {"message": "streaming is not supported"}}, 400), json_reply({"choices": []}))
    with pytest.raises(Garbage):
        ask(connect(server))


def test_tokens_that_only_the_server_knows_are_null_in_json(server: FakeServer) -> None:
    server.answers(GOOD)
    finished = end(ask(connect(server)))
    assert answer_report(finished, knows_ids=False)["token_ids"] is None
    report = document(connect(server), ["Who?"], [finished], None, [[1, 2]], many=False)["methods"]["remote"]
    assert report["token_ids"] is None and report["prompt_token_ids"] is None


def test_settings_reach_the_server(server: FakeServer) -> None:
    server.answers(GOOD)
    sampling = SamplingParams(temperature=0.7, top_p=0.9, top_k=5)
    ask(connect(server), GenerationConfig(max_new_tokens=7, sampling=sampling, seed=3, stop_strings=("\n",)))
    (body,) = server.chats
    told = {key: body[key] for key in ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop")}
    assert told == {"max_tokens": 7, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "seed": 3, "stop": ["\n"]}
    server.answers(GOOD)
    ask(connect(server), GenerationConfig(json_schema='{"type": "object"}'))
    assert server.chats[-1]["response_format"]["json_schema"]["schema"] == {"type": "object"}


def test_a_book_is_read_ahead_and_counted(server: FakeServer) -> None:
    server.answers(stream(b": read 10 of 20 tokens\n\n", says("x", "length"), used(20, 1), DONE))
    engine = connect(server)
    opening = Conversation(tuple(engine.text.encode("word " * 60))).opening_ids(engine.text)
    progress = list(engine.read(opening))
    assert [p.done_tokens for p in progress] == [0, len(opening) // 2 - 1, len(opening) - 1]
    assert len(list(engine.read(opening))) == 1, "what was sent is not sent again"


def test_a_server_that_does_not_count_tells_by_usage(server: FakeServer) -> None:
    del server.scripts["/tokenize"]
    server.answers(json_reply({"usage": {"prompt_tokens": 10}}), json_reply({"usage": {"prompt_tokens": 110}}), GOOD)
    engine = connect(server)
    assert engine.text.estimates and "estimates" in engine.info.description
    assert len(engine.text.encode("x" * 4300)) == pytest.approx(1000, rel=0.1)


def test_an_answer_goes_on_where_the_server_can(server: FakeServer) -> None:
    server.answers(stream(says("house.", "stop"), used(9, 1), DONE))
    engine = connect(server)
    finished = end(ask(engine, written=engine.text.split("The light ", 2)))
    assert finished.text == "The light house." and len(finished.token_ids) == 3
    (body,) = server.chats
    assert body["continue_final_message"] and body["messages"][-1] == {"role": "assistant", "content": "The light "}
    server.tells("/v1/models", json_reply({"data": [{**CARD, "owned_by": "someone"}]}))
    with pytest.raises(NotRemotely, match="go on"):
        ask(connect(server), written=engine.text.split("The light ", 2))


def test_numbers_that_no_text_has_are_known_as_such(server: FakeServer) -> None:
    engine = connect(server)
    assert engine.knows(engine.text.encode("The light 字.")) and engine.knows([]) and engine.knows([FRAME])
    for wrong in (5, 17_000, 0x01FF, 2**4001):
        assert not engine.knows([number_of("The "), wrong])


def test_the_context_is_the_server_s_or_asked_for(server: FakeServer) -> None:
    assert connect(server).context == 4096
    assert connect(server, context=1000).context == 1000
    with pytest.raises(ContextTooSmall):
        connect(server, context=5000)
    server.tells("/v1/models", json_reply({"data": [{"id": "big"}]}))
    with pytest.raises(InvalidSetting, match="--context"):
        connect(server)
    assert connect(server, context=5000).context == 5000


def test_one_of_several_models_must_be_chosen(server: FakeServer) -> None:
    server.tells("/v1/models", json_reply({"data": [CARD, {**CARD, "id": "small"}]}))
    with pytest.raises(UnknownModel, match="big, small"):
        connect(server)
    with pytest.raises(UnknownModel, match="no model 'other'"):
        connect(server, model="other")
    assert connect(server, model="small").info.model.startswith("small @ 127.0.0.1:")


def test_what_cannot_be_seen_is_refused(server: FakeServer) -> None:
    engine = connect(server)
    with pytest.raises(NotRemotely, match="without --remote"):
        engine.race([], [])
    with pytest.raises(NotRemotely):
        engine.compare([], [1], [2])
    assert engine.chunk_weights().numel() == 0 and not engine.retrieves("triforce")
    with pytest.raises(ContextTooSmall):
        list(engine.read(engine.text.opening(engine.text.encode("word " * 5000))))


# -------------------- one that does not


BAD: list[tuple[str, Reply, type[RemoteError]]] = [
    ("is an HTML page", raw(b"<html>", kind="text/html"), Garbage),
    ("is JSON in place of a stream", json_reply({"choices": []}), Garbage),
    ("is no JSON", stream(b"data: {nope\n\n"), Garbage),
    ("is a list", stream(b"data: []\n\n"), Garbage),
    ("has no choices", stream(event(x=1), DONE), Garbage),
    ("has odd choices", stream(event(choices="abc"), DONE), Garbage),
    ("has numbers for words", stream(event(choices=[{"delta": {"content": 5}}]), DONE), Garbage),
    ("is nested", stream(b"data: " + b"[" * 100_000 + b"\n\n"), Garbage),
    ("breaks off", stream(says("The"), end=False), BrokenOff),
    ("ends without an end", stream(says("The"), DONE), BrokenOff),
    ("says nothing", stream(9.0), TooSlow),
    ("falls silent", stream(says("The"), 9.0), TooSlow),
    ("trickles", stream(says("The"), b"da", 0.2, b"ta", 0.2, b": ", 9.0), TooSlow),
    ("is an error amid a stream", stream(says("The"), event(error={"message": "out of memory"})), Refused),
    ("is 500", json_reply({"error": {"message": "out\nof\x1b[31m memory"}}, 500), Refused),
    ("is 400 without words", raw(b"\xff\xfe", 400), Refused),
    ("is 401", json_reply({"detail": "no key"}, 401), Refused),
    ("leads elsewhere", raw(b"", 307, Location="http://127.0.0.1:9/"), Refused),
]


@pytest.mark.parametrize(("_what", "reply", "kind"), BAD, ids=[what for what, _, _ in BAD])
def test_a_bad_answer_is_one_line_with_one_action(
    server: FakeServer, _what: str, reply: Reply, kind: type[RemoteError]
) -> None:
    engine = connect(server, patience=QUICK if kind is TooSlow else PATIENT)
    server.answers(reply)
    with pytest.raises(kind) as caught:  # after a silence that was waited for it would be BrokenOff
        ask(engine)
    check_words(caught.value)
    assert len(server.chats) == 1, "an answer is not asked for twice"
    server.answers(GOOD)
    assert end(ask(engine)).text, "the next one is not harmed"


def check_words(error: CoreError) -> None:
    for words in (error.problem, error.hint):
        assert words and words.isprintable() and len(words) < 400 and HIDDEN_KEY not in words


def test_a_busy_server_is_asked_again(server: FakeServer) -> None:
    server.answers(json_reply({}, 503), json_reply({}, 429), GOOD)
    assert end(ask(connect(server))).text == "The light house."
    assert len(server.chats) == 3
    server.answers(json_reply({"error": {"message": "full"}}, 503))
    with pytest.raises(Refused, match="full"):
        ask(connect(server))


def test_a_forgotten_end_is_forgiven(server: FakeServer) -> None:
    server.answers(stream(says("All.", "stop")))
    assert end(ask(connect(server))).text == "All."


def test_a_line_without_an_end_is_not_kept_for_ever(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.remote.client.MOST_LINE", 10_000)
    server.answers(stream(b"data: " + b"x" * 50_000))
    with pytest.raises(Garbage, match="endless"):
        ask(connect(server))


@pytest.mark.parametrize(
    ("reply", "slow"),
    [
        (raw(b"<html>", kind="text/html"), False),
        (json_reply([]), False),
        (json_reply({"data": "x"}), False),
        (json_reply({"data": [5]}), False),
        (json_reply({"data": [{"id": 7}]}), False),
        (raw(b"[" * 100_000), False),
        (json_reply({"data": []}), False),
        (json_reply({}, 404), False),
        (json_reply({"error": "no"}, 401), False),
        (stream(b"x", 9.0), True),
    ],
)
def test_a_server_that_is_none_is_told_at_the_start(server: FakeServer, reply: Reply, slow: bool) -> None:
    server.tells("/v1/models", reply)
    with pytest.raises(CoreError) as caught:
        connect(server, patience=QUICK if slow else PATIENT)
    check_words(caught.value)


def test_nobody_there() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(Unreachable) as caught:
        RemoteEngine.connect(url, key=HIDDEN_KEY, model=None, context=None, patience=QUICK)
    check_words(caught.value)


def test_a_server_that_goes_down_later(server: FakeServer) -> None:
    engine = connect(server)
    server.shutdown()
    server.server_close()
    with pytest.raises(Unreachable):
        ask(engine)


@pytest.mark.parametrize("reply", [endless, stream(300.0), stream(says("The"), 300.0)])
def test_stop_ends_the_connection_at_once(server: FakeServer, reply: Reply) -> None:
    server.answers(reply)
    engine, cancel = connect(server, patience=Patience()), threading.Event()
    threading.Timer(3.0, cancel.set).start()
    started = time.monotonic()
    finished = end(ask(engine, cancel=cancel))
    assert finished.stop_reason == "cancelled" and time.monotonic() - started < 100, "it waited for the server"
    if reply is endless:
        assert server.gone.wait(SECONDS), "the server was not told"
        assert finished.text == "word " * finished.stats.new_tokens != ""


def test_a_closed_generator_ends_the_connection(server: FakeServer) -> None:
    server.answers(endless)
    engine = connect(server)
    events = engine.generate(engine.text.prompt((), Conversation().ask("Who?").turns), GenerationConfig())
    assert isinstance(next(events), PrefillProgress) and isinstance(next(events), RoundDone)
    events.close()  # type: ignore[attr-defined]
    assert server.gone.wait(SECONDS)


# -------------------- addresses and keys


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://localhost:8000", "http://localhost:8000/v1"),
        ("http://localhost:8000/v1/", "http://localhost:8000/v1"),
        ("https://gpu.example/llm/v1", "https://gpu.example/llm/v1"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
        ("localhost:8000", "http://localhost:8000/v1"),
        ("gpu.example/llm/v1", "http://gpu.example/llm/v1"),
        ("[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_an_address_is_made_complete(url: str, base: str) -> None:
    assert Address.of(url).base == base


@pytest.mark.parametrize(
    "url", ["", "/v1", "ftp://x", "http://", "u:p@x", "mailto:x", "http://x?key=1", "http://u:p@x", "http://x:y"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        Address.of(url)
    assert ":p@" not in str(caught.value)


def test_the_key_goes_to_the_server_and_nowhere_else(server: FakeServer) -> None:
    server.answers(GOOD)
    engine = connect(server)
    finished = end(ask(engine))
    assert all(headers.get("authorization") == f"Bearer {HIDDEN_KEY}" for _, _, headers in server.seen)
    assert HIDDEN_KEY not in repr((engine.info, finished, engine.config, server.chats))
    with pytest.raises(InvalidSetting):
        connect(server, key="ä\n")
