"""Reading in a real browser: evidence in the answer and its page beside it, room for the chat, a phone, 200 % zoom."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.documents.conftest import MakePdf, make_pdf, writer  # noqa: F401
from tests.app.fakes import GRADIO_WARNINGS, FakeEngine, write_book
from tests.browser.test_page import Reader, browser, playwright, visit  # noqa: F401

pytestmark = [pytest.mark.browser, *GRADIO_WARNINGS]
LINES = [f"This is line {number}, of which nobody ever said anything." for number in range(30)]
PHONE, ZOOMED, DESKTOP = {"width": 390, "height": 844}, {"width": 680, "height": 430}, {"width": 1360, "height": 860}


def box_of(reader: Reader, selector: str) -> dict[str, float]:
    """The bounds of what is shown."""
    shown = reader.page.locator(selector).first
    playwright.expect(shown).to_be_visible()
    bounds = shown.bounding_box()
    assert bounds is not None
    return dict(bounds)


def reads(reader: Reader, engine: FakeEngine, book: Path) -> None:
    engine.context = 200_000
    reader.drops(book)
    reader.sees("#book", "Read once")


def asks(reader: Reader, engine: FakeEngine, question: str, answer: str) -> None:
    ended = reader.page.locator("#chat .foot", has_text="tokens/s")
    before = ended.count()
    engine.enqueue(answer)
    reader.asks(question)
    playwright.expect(ended).to_have_count(before + 1)
    reader.sees("#strip", "Answer complete")
    reader.sees("#chat .foot.last", "exact")


def test_a_copied_answer_has_its_pages_and_one_opens_beside_it_with_the_words_marked(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    make_pdf: MakePdf,  # noqa: F811
) -> None:
    reader = visit()
    page = reader.page
    page.set_viewport_size(DESKTOP)
    said = ["The carved teapot was lost in spring.", "Nobody saw it again at the quay."]
    reads(reader, engine, make_pdf(LINES, [*LINES[:20], *said, *LINES[20:]], LINES))
    asks(reader, engine, "When?", f"{' '.join(said)} I made this sentence up myself. <b>Bold</b> words are not run.")
    chips = page.locator("#chat .quote")
    playwright.expect(chips).to_have_count(1)  # both sentences are one passage
    playwright.expect(chips).to_have_text("page 2")
    assert page.locator("#chat .stands").inner_text().startswith(" ".join(said))
    own = page.locator("#chat .own")
    playwright.expect(own.first).to_have_text("I made this sentence up myself.")
    playwright.expect(own.first).to_have_attribute(
        "title", "These words do not stand in the book: the model’s own wording"
    )
    assert own.first.evaluate("(span) => getComputedStyle(span).textDecorationLine") == "underline"
    assert page.locator("#chat .stands").evaluate("(span) => getComputedStyle(span).textDecorationLine") == "none"
    chips.click()
    mark = page.locator("#where-page .sheet i.quoted")
    playwright.expect(mark.first).to_be_in_viewport()
    beside, chat = box_of(reader, "#where-page .card"), box_of(reader, "#chat")
    assert beside["x"] >= chat["x"] + chat["width"], "beside the chat, not above it"
    assert beside["y"] + beside["height"] <= 860
    playwright.expect(chips).to_be_in_viewport()
    page.set_viewport_size(PHONE)
    close = page.locator("#where-page [data-act=close]")
    playwright.expect(close).to_be_in_viewport()
    close.click()
    playwright.expect(page.locator("#where-page .card")).to_have_count(0)


def test_a_page_stands_on_the_line_of_the_last_word_of_its_sentence(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    make_pdf: MakePdf,  # noqa: F811
) -> None:
    reader = visit()
    said = [f"The carved teapot {number} was lost in the spring tide." for number in range(8)]
    reads(reader, engine, make_pdf(said[::2], said[1::2]))
    asks(reader, engine, "When?", " ".join(said))
    playwright.expect(reader.page.locator("#chat .quote.found")).to_have_count(8)
    for width in range(360, 720, 12):
        reader.page.set_viewport_size({"width": width, "height": 844})
        apart = reader.page.evaluate(
            """() => [...document.querySelectorAll('#chat .stands')].filter((sentence) => {
                const chip = sentence.querySelector('.quote');
                const words = document.createRange();
                words.setStart(sentence, 0);
                words.setEndBefore(chip);
                const last = [...words.getClientRects()].at(-1);
                return chip.getBoundingClientRect().top >= last.bottom;
            }).length"""
        )
        assert apart == 0, f"at {width} pixels"


def test_a_refusal_shows_no_places(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = visit()
    reads(
        reader, engine, write_book(tmp_path, "The carved teapot was lost in the great spring tide of that year. " * 40)
    )
    engine.weights = [0.4, 0, 0, 0, 0.3, *[0] * 280, 0.1]
    asks(reader, engine, "When?", "In the great spring tide of that year.")
    reader.sees("#where .top", "page 1")
    asks(reader, engine, "Why?", "The book does not say.")
    playwright.expect(reader.page.locator("#where .where")).to_have_count(0)
    playwright.expect(reader.page.locator("#chat .own, #chat .own-key")).to_have_count(0)
    asks(reader, engine, "And?", "Nobody ever sold it for a crown.")
    reader.sees("#chat .own-key", "Underlined: not in the book word for word")
    playwright.expect(reader.page.locator("#chat .own")).to_have_count(1)


def test_figures_are_one_line_that_opens_and_the_browser_remembers(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = visit()
    page, fold = reader.page, reader.page.locator("[data-fold=figures]")
    page.set_viewport_size(DESKTOP)
    reads(
        reader, engine, write_book(tmp_path, "The carved teapot was lost in the great spring tide of that year. " * 40)
    )
    engine.weights = [0.4, 0, 0, 0, 0.3, *[0] * 280, 0.1]
    asks(reader, engine, "When?", "In the great spring tide of that year.")
    assert box_of(reader, "#figures")["height"] <= 44, "one line"
    assert box_of(reader, "#chat")["height"] >= 480, "most of 860"
    reader.sees("#figures .brief", "tokens/s")
    playwright.expect(fold).to_have_attribute("aria-expanded", "false")
    playwright.expect(page.locator("#strip .tiles")).to_be_hidden()
    page.locator("#where .top button").first.click()  # pages can be opened from the line
    reader.sees("#where-page h3", "Page 1")
    page.keyboard.press("Escape")
    fold.click()
    playwright.expect(fold).to_have_attribute("aria-expanded", "true")
    playwright.expect(page.locator("#strip .tile.speed")).to_be_visible()
    playwright.expect(page.locator("#where .bar-page").first).to_be_visible()
    page.reload()
    playwright.expect(page.locator("#strip .tile.speed")).to_be_visible()
    playwright.expect(fold).to_have_attribute("aria-expanded", "true")
    fold.click()
    page.reload()
    reader.sees("#chat", "spring tide")
    playwright.expect(page.locator("#strip .tiles")).to_be_hidden()


def test_nothing_of_the_figures_is_cut_in_half(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    make_pdf: MakePdf,  # noqa: F811
    tmp_path: Path,
) -> None:
    reader = visit()
    page = reader.page
    page.set_viewport_size(DESKTOP)
    engine.context = 200_000
    reader.drops(make_pdf(*[LINES[:14]] * 6))
    reader.sees("#book", "Read once")
    reader.drops(write_book(tmp_path, "Nobody saw it. " * 40, "two.txt"))
    reader.sees("#book", "2 documents")
    reader.sees("#book", "Read once")
    engine.weights = [*([0] * 30 + [0.4] + [0] * 69) * 6]  # about one chunk a page
    asks(reader, engine, "When?", "In the great spring tide of that year.")
    cut = """() => {
        const row = document.querySelector('#where .top'), inside = row.getBoundingClientRect();
        const chips = [...row.querySelectorAll('button')], status = document.querySelector('#strip .status');
        const seen = chips.filter((chip) => chip.getBoundingClientRect().top < inside.bottom);
        const whole = seen.filter((chip) => {
            return chip.getBoundingClientRect().right <= inside.right + 1 && chip.scrollWidth <= chip.clientWidth;
        });
        return [whole.length, seen.length, chips.length, status.scrollWidth - status.clientWidth];
    }"""
    whole, seen, chips, hidden = page.evaluate(cut)
    assert whole == seen >= 1 and chips >= 3 and hidden <= 0, (whole, seen, chips, hidden)
    brief = page.locator("#strip .brief")
    brief.evaluate("(brief) => brief.insertAdjacentText('beforeend', 'and words, '.repeat(2))")  # as of other methods
    whole, seen, chips, hidden = page.evaluate(cut)
    assert whole == seen == 0 and chips >= 3 and hidden <= 0, (whole, seen, chips, hidden)
    words = page.locator("#where .top .words")
    assert words.evaluate("(words) => words.offsetTop > words.parentElement.clientHeight"), "words without a page"
    page.locator("[data-fold=figures]").click()
    page.locator("#where .top button").first.click()
    reader.sees("#where-page h3", "page")
    playwright.expect(page.locator("#strip .tile.speed")).to_be_visible()
    whole, seen, chips, hidden = page.evaluate(cut)
    assert whole == seen >= 1 and chips >= 3 and hidden <= 0, (whole, seen, chips, hidden)


@pytest.mark.parametrize("size", [PHONE, ZOOMED], ids=["phone", "200 % zoom"])
def test_on_a_small_screen_the_question_stays_below_the_chat_and_the_book_is_a_chip(
    size: "playwright.ViewportSize",
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = visit()
    page, fold = reader.page, reader.page.locator("[data-fold=side]")
    page.set_viewport_size(size)
    playwright.expect(page.locator("#drop")).to_be_visible()  # there is no book yet
    playwright.expect(fold).to_be_hidden()
    reads(
        reader, engine, write_book(tmp_path, "The carved teapot was lost in the great spring tide of that year. " * 40)
    )
    asks(reader, engine, "When?", " ".join(f"This is sentence {number} of a long answer." for number in range(30)))
    assert page.evaluate("document.scrollingElement.scrollHeight - innerHeight") <= 0, "nothing to scroll but the chat"
    assert page.evaluate("document.scrollingElement.scrollWidth - innerWidth") <= 0
    chat, question, chip = box_of(reader, "#chat"), box_of(reader, "#question"), box_of(reader, "#book .card")
    assert chip["height"] <= 48 and chat["height"] >= 0.45 * size["height"]
    assert chip["y"] + chip["height"] <= chat["y"]
    assert chat["y"] + chat["height"] <= question["y"] and question["y"] + question["height"] <= size["height"]
    fold.click()
    playwright.expect(page.locator("#drop")).to_be_visible()
    playwright.expect(page.locator("#settings")).to_be_attached()
    playwright.expect(page.locator("#chat")).to_be_hidden()
    playwright.expect(page.locator("#question textarea")).to_be_in_viewport()
    fold.click()
    playwright.expect(page.locator("#chat")).to_be_visible()
    playwright.expect(page.locator("#drop")).to_be_hidden()
    page.get_by_role("tab", name="System").click()
    playwright.expect(page.locator("#system-view")).to_be_visible()
    page.locator("#system-view").evaluate("(view) => view.scrollIntoView({ block: 'end' })")
    assert page.locator("#system-view").evaluate("(view) => view.getBoundingClientRect().bottom <= innerHeight + 2")
