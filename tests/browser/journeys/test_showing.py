"""Journeys of what is shown: a race to its verdict, stopped, replayed; the presenter; inside of an answer."""

from pathlib import Path

from app.context.samples import load_samples, named
from tests.app.fakes import FakeEngine, write_book
from tests.browser.journeys.page import JOURNEY, PHONE, SAMPLE, Page, expect

pytestmark = JOURNEY
WORDS = "The night was dark and stormy, and the harbour lay in it. "  # 12 tokens
SAME = "All {} tokens are the same as plain decoding’s."


def at_the_race(page: Page, tmp_path: Path) -> None:
    """A book is read; plain decoding and TriForce are to race about it."""
    page.reads(write_book(tmp_path))
    page.goes_to("Race")
    third = page.place("checkbox", "TriForce + lookup")
    expect(third).to_be_checked()
    third.uncheck()


def starts(page: Page) -> None:
    page.question.fill("How was it?")
    page.presses("Start")


def test_a_race_is_stopped_and_another_ends_with_a_verdict_and_is_replayed(
    page: Page, engine: FakeEngine, tmp_path: Path
) -> None:
    at_the_race(page, tmp_path)
    for hold in ("| ", ""):
        engine.enqueue(WORDS + hold + "End")
    starts(page)
    expect(page.lane("TriForce")).to_contain_text("The night was dark")
    expect(page.race).to_contain_text("Racing, in fair turns")
    page.presses("Stop")
    expect(page.race).to_contain_text("Stopped · the book was read once")  # the race, not only a lane
    expect(page.button("Start")).to_be_visible()
    engine.writing.set()
    for _ in range(2):
        engine.enqueue(WORDS * 12)
    starts(page)
    expect(page.race).to_contain_text("Finished · the book was read once for all lanes")
    expect(page.race).to_contain_text(SAME.format(144))
    expect(page.place("complementary", "TriForce against plain decoding")).to_contain_text("4.00×")
    result = page.race.get_by_role("status")
    expect(result).to_contain_text("earlier. All 144 tokens are the same")
    page.presses("Replay 1×")
    expect(page.lane("Plain decoding")).to_contain_text("Replay")
    expect(result).to_be_hidden()  # the end is not told before it
    page.presses("4×")
    expect(page.race).to_contain_text("Replay, 4 times as fast")
    expect(page.race).to_contain_text("Finished")
    expect(result).to_be_visible()
    page.reloads()
    page.goes_to("Race")
    expect(page.race).to_contain_text(SAME.format(144))


def test_the_presenter_shows_the_book_the_race_one_round_and_the_end(page: Page, engine: FakeEngine) -> None:
    first, second, *_ = named(load_samples(), "harbour-8k.pdf").raced
    engine.context = 200_000
    page.tab.get_by_role("button", name=SAMPLE).click()
    page.has_read()
    page.goes_to("Race")
    expect(page.question).to_have_value(first)
    page.presses("Present")
    expect(page.heading(SAMPLE)).to_be_visible()
    expect(page.place("tab", "Race")).to_have_count(0)  # what the show covers cannot be reached
    page.types("2")
    expect(page.question).to_have_value(second)
    for hold in ("| ", "", ""):
        engine.enqueue(WORDS * 2 + hold)
    page.types("Space")
    expect(page.lane("TriForce")).to_contain_text("The night was dark")
    expect(page.heading(SAMPLE)).to_be_hidden()
    page.fits_its_width()
    page.types("Space")
    expect(page.race).to_contain_text("Stopped · the book was read once")  # the race, not only a lane
    engine.writing.set()
    for _ in range(3):
        engine.enqueue(WORDS * 2)
    page.types("Space")
    expect(page.race).to_contain_text(SAME.format(24))
    page.types("Space")
    expect(page.heading("One round in slow motion")).to_be_visible()
    page.types("Space")
    expect(page.race.get_by_text("identical, token for token")).to_be_visible()
    expect(page.heading("One round in slow motion")).to_be_hidden()
    page.types("Space")
    expect(page.heading(SAMPLE)).to_be_visible()
    page.types("Escape")
    expect(page.heading(SAMPLE)).to_be_hidden()
    expect(page.button("Present")).to_be_visible()


def test_inside_follows_an_answer_and_explains_every_token(page: Page, engine: FakeEngine, tmp_path: Path) -> None:
    at_the_race(page, tmp_path)
    page.goes_to("Inside")
    expect(page.inside).to_contain_text("Ask a question or run a race")
    for hold in ("| ", ""):
        engine.enqueue(WORDS + hold + "End")
    page.goes_to("Race")
    starts(page)
    expect(page.lane("TriForce")).to_contain_text("The night was dark")
    page.goes_to("Inside")
    expect(page.inside).to_contain_text("Writing · 12 tokens")
    engine.writing.set()
    expect(page.inside).to_contain_text("Complete · 13 tokens")
    expect(page.inside).to_contain_text("75%")
    note, word = page.tab.get_by_role("tooltip"), page.place("region", "Who wrote what").get_by_text("The", exact=True)
    word.scroll_into_view_if_needed()  # scrolling would close the note
    word.hover()
    expect(note).to_contain_text("Draft, accepted")
    expect(note).to_contain_text("round 1 · p 0.90 · q 0.80")
    word.click()
    page.types("ArrowRight", "ArrowRight")
    expect(note).to_contain_text("Corrected by the retrieval cache")
    page.place("radio", "Race: Plain decoding").check()
    expect(page.inside).to_contain_text("Plain decoding")
    page.goes_to("Read")
    page.hears(engine, "And then?", "A later answer.")
    page.goes_to("Inside")
    expect(page.inside).to_contain_text("And then?")
    page.tab.set_viewport_size(PHONE)
    page.fits_its_width()
