"""Journeys of books: several in order, chapters and pages chosen, words found, evidence and the page it stands on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.app.documents.conftest import MakePdf, make_pdf, writer  # noqa: F401
from tests.app.fakes import FakeEngine, write_book
from tests.browser.journeys.page import EVIL, JOURNEY, PHONE, STORY, Page, expect

pytestmark = JOURNEY
# Titles and characters; the fake model has 4,096 tokens of one character, so that the storm does not fit alone
CHAPTERS = {"Harbour": 600, "Quay": 800, "Storm": 5000, "Teapot": 900, "Choir": 700, "Morning": 1000}
LINES = [f"This is line {number}, of which nobody ever said anything." for number in range(20)]
QUOTE = "The carved teapot was lost in the great"


def test_a_file_that_is_dropped_while_another_is_on_its_way_comes_too(page: Page, tmp_path: Path) -> None:
    coming = list[Any]()
    page.tab.route("**/upload?*", lambda route: coming.append(route) if not coming else route.continue_())
    page.opens(write_book(tmp_path, "The book one. " * 20, "one.txt"))
    expect(page.button("Open books")).to_have_count(0)
    page.tab.evaluate(
        """() => {
            const dataTransfer = new DataTransfer();
            dataTransfer.items.add(new File(["The book two. ".repeat(20)], "two.txt"));
            document.querySelector("main").dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true }));
        }"""
    )
    coming[0].continue_()
    expect(page.book).to_contain_text("2 documents, read in this order")


def test_several_documents_are_ordered_looked_into_and_removed(page: Page, tmp_path: Path) -> None:
    one, two = (write_book(tmp_path, f"The book {name}. " * 20, f"{name}.txt") for name in ("one", "two"))
    titles = page.documents.get_by_role("heading", level=4)
    page.reads(one, two)
    expect(page.book).to_contain_text("2 documents, read in this order")
    page.presses("Choose pages and order")
    expect(titles).to_have_text(["one", "two"])
    page.presses("Move two up")
    expect(titles).to_have_text(["two", "one"])
    page.presses("Preview one")
    expect(page.text_of_page).to_contain_text("The book one.")
    page.opens(one, by="Add to the library")
    expect(page.tab.get_by_text("one.txt is already there.").filter(visible=True)).to_be_visible()
    page.reloads()
    page.goes_to("Library")
    expect(titles).to_have_text(["two", "one"])
    page.presses("Remove one")
    expect(titles).to_have_text(["two"])
    page.presses("Undo")
    expect(titles).to_have_text(["two", "one"])
    page.presses("Start over")
    expect(page.heading("Nothing in the library yet")).to_be_visible()


def test_chapters_of_a_long_book_are_ticked_and_only_they_are_read(
    page: Page, engine: FakeEngine, tmp_path: Path
) -> None:
    text = "".join(f"# {title}\n\n{f'A line of {title}. ' * (size // 15)}\n\n" for title, size in CHAPTERS.items())
    page.opens(write_book(tmp_path, text, "long.md"))
    expect(page.book.get_by_role("alert")).to_contain_text("Too long to read at once")
    page.presses("Choose what is read")
    expect(page.heading("Choose what is read")).to_be_focused()
    boxes = {title: page.choice.get_by_role("checkbox", name=f". {title}") for title in CHAPTERS}
    total, go = page.choice.get_by_role("status"), page.button("Read what is ticked")
    expect(boxes["Harbour"]).to_be_checked()
    expect(boxes["Storm"]).to_be_disabled()
    for title in ("Teapot", "Choir", "Morning"):
        boxes[title].check()
    expect(total).to_contain_text("does not fit")
    expect(go).to_be_disabled()
    boxes["Harbour"].uncheck()
    boxes["Morning"].uncheck()
    expect(total).to_contain_text("ticked: fits")
    go.click()
    page.has_read()
    expect(page.choice).to_have_count(0)
    expect(page.book).to_contain_text("chapters 2, 4–5")
    page.hears(engine, "Of what?", "Of a teapot.")
    prompt = engine.text.decode(engine.prompts[-1])
    assert [title for title in CHAPTERS if f"A line of {title}." in prompt] == ["Quay", "Teapot", "Choir"]


def test_pages_of_a_long_book_are_chosen_and_turned(page: Page, tmp_path: Path) -> None:
    pages = [f"This is page {number}. {'Nothing happens on it. ' * 70}" for number in range(1, 9)]
    page.opens(write_book(tmp_path, "\f".join(pages), "long.txt"))
    for name, number in (("Pages", "3"), ("to", "4")):
        page.choice.get_by_role("spinbutton", name=name).fill(number)
    expect(page.choice.get_by_role("status")).to_contain_text("2 pages ticked: fits")
    page.presses("Read what is ticked")
    page.has_read()
    expect(page.book).to_contain_text("pages 3–4")
    page.goes_to("Library")
    page.documents.get_by_text("Read pages 3–4: choose pages or chapters").click()
    part = page.documents.get_by_role("textbox", name="Pages or chapters")
    part.fill("3-99")
    part.press("Enter")
    expect(page.alert.filter(visible=True)).to_contain_text("has no part “3-99”")
    part.fill("p. 3")
    part.press("Enter")
    expect(page.documents).to_contain_text("Read page 3: choose pages or chapters")
    page.presses("Preview long")
    expect(page.text_of_page).to_contain_text("This is page 1.")
    number = page.tab.get_by_role("spinbutton", name="Page")
    number.fill("4")
    number.press("Enter")
    expect(page.text_of_page).to_contain_text("This is page 4.")
    page.presses("Next page")
    expect(page.text_of_page).to_contain_text("This is page 5.")
    expect(number).to_have_value("5")
    page.presses("Previous page")
    expect(page.text_of_page).to_contain_text("This is page 4.")


def test_words_are_found_in_the_book_by_keys(page: Page, engine: FakeEngine, tmp_path: Path) -> None:
    engine.reading.clear()  # Find does not wait until the book is read
    page.opens(write_book(tmp_path, f"{EVIL} {STORY}\nA Café. {STORY * 200}", "story.txt"))
    page.presses("Find", page.book)
    field, found = page.place("searchbox", "Find in all open documents"), page.place("region", "Hits")
    hits = found.get_by_role("listitem").get_by_role("button")
    expect(field).to_be_focused()
    page.tab.keyboard.type("cafe")
    page.types("Enter")
    expect(found).to_contain_text("1 hit")
    expect(hits).to_contain_text("page 1, line 2")
    page.place("checkbox", "Case and accents").check()
    expect(found).to_contain_text("Nothing found in the open document.")
    page.place("checkbox", "Case and accents").uncheck()
    field.fill("teapot")
    page.types("Enter")
    expect(found).to_contain_text("201 hits, the first 100 below")
    page.presses("Show more")
    expect(hits).to_have_count(200)
    field.focus()
    page.types("ArrowDown", "ArrowDown", "ArrowDown")
    expect(hits.nth(2)).to_be_focused()
    page.types("Enter")
    expect(page.text_of_page.get_by_role("mark")).to_have_text("teapot")
    page.types("ArrowUp")
    expect(hits.nth(1)).to_be_focused()
    page.types("Escape")
    expect(field).to_be_focused()
    page.types("Escape")
    expect(hits).to_have_count(0)
    page.goes_to("Read")
    page.types("Control+Shift+F")
    expect(field).to_be_focused()
    page.tab.keyboard.type("img src")
    page.types("Enter")
    expect(hits.get_by_role("mark").first).to_have_text("img src")
    assert page.tab.evaluate("window.hacked") is None
    page.tab.set_viewport_size(PHONE)
    hits.first.click()
    expect(page.text_of_page.get_by_role("mark")).to_be_in_viewport()
    page.fits_its_width()
    engine.reading.set()


def test_a_quotation_of_a_pdf_shows_the_page_itself(
    visit: Callable[..., Page],
    engine: FakeEngine,
    make_pdf: MakePdf,  # noqa: F811
) -> None:
    engine.context = 200_000
    page = visit(width=1400, height=900)
    page.reads(make_pdf(LINES, [*LINES, STORY.strip(), *LINES], LINES))
    engine.enqueue('So: "the carved teapot was lost in the great".')
    page.asks("When?")
    page.answers("So:")
    page.presses("page 2", page.conversation)
    image = page.place("img", "Page 2 of book")
    expect(image).to_be_in_viewport()
    assert image.evaluate("(image) => image.decode().then(() => image.naturalWidth)") > 300
    expect(page.leaf(2)).to_contain_text("The marked words stand in the answer.")
    page.presses("Page or text")
    expect(page.text_of_page.get_by_role("mark")).to_have_text(QUOTE)
    expect(image).to_be_hidden()
    page.presses("Page or text")
    expect(image).to_be_visible()
    page.presses("Larger")
    expect(page.leaf(2).get_by_role("status")).to_have_text("125%")
    page.presses("Smaller")
    expect(page.leaf(2).get_by_role("status")).to_have_text("100%")
    page.presses("Next page")
    expect(page.leaf(3)).to_be_visible()
    expect(page.button("Next page")).to_be_disabled()
    page.place("img", "Page 3 of book").click()
    page.types("ArrowLeft")
    expect(page.leaf(2)).to_be_visible()
    page.presses("Close the page")
    expect(page.leaf(2)).to_have_count(0)


def test_a_removed_book_comes_back_with_its_conversation_and_an_old_one_opens_its_book_again(
    page: Page, engine: FakeEngine, tmp_path: Path
) -> None:
    page.reads(write_book(tmp_path))
    page.presses("Keep its text")
    expect(page.book).to_contain_text("Its text is kept: its conversations open it again")
    page.hears(engine, "Dark?", "Quite dark.")
    start_over = page.tab.get_by_role("button", name="Start over")
    start_over.click()
    expect(page.says("Removed book.")).to_be_visible()
    expect(page.conversation).not_to_contain_text("Quite dark.")
    page.presses("Undo", page.book)
    expect(page.conversation).to_contain_text("Quite dark.")
    page.has_read()
    expect(page.says("Removed book.")).to_have_count(0)
    start_over.click()
    expect(page.book).to_contain_text("Removed book")
    page.conversations.get_by_role("button", name="Dark?").click()
    expect(page.says("This conversation is about book (book.txt)")).to_be_visible()
    page.presses("Open it again")
    page.has_read()
    expect(page.says("This conversation is about")).to_have_count(0)
    page.hears(engine, "Still dark?", "Still.", shown=2)
    expect(page.conversation).to_contain_text("Quite dark.")
