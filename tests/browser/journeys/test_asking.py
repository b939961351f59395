"""Journeys of a question: a greeting, a book, an answer; stopped, continued, changed, asked again, branched."""

from pathlib import Path
from typing import Any

from tests.app.fakes import FakeEngine, write_book
from tests.browser.journeys.page import JOURNEY, SAMPLE, Page, expect

pytestmark = JOURNEY
PROPOSED = "When was the carved teapot lost?"  # the first question of the sample


def two_answers(page: Page, engine: FakeEngine, tmp_path: Path) -> None:
    page.reads(write_book(tmp_path))
    for number, (question, answer) in enumerate((("How was it?", "It was dark."), ("And then?", "It rained.")), 1):
        page.hears(engine, question, answer, shown=number)


def test_the_page_greets_says_that_it_needs_a_book_and_opens_one(page: Page, tmp_path: Path) -> None:
    expect(page.tab).to_have_title("TriForce Reader")
    expect(page.heading("Ask a whole book")).to_be_visible()
    expect(page.book).to_contain_text("No book yet")
    expect(page.facts).to_contain_text("exact")
    page.asks("Who are you?")
    expect(page.alert).to_contain_text("There is no book yet")
    expect(page.question).to_have_value("Who are you?")
    page.presses("Dismiss")
    expect(page.alert).to_be_hidden()
    page.opens(write_book(tmp_path, "\n\n", "blank.txt"))
    expect(page.book.get_by_role("alert")).to_contain_text("blank.txt")
    page.reads(write_book(tmp_path))
    expect(page.book.get_by_role("alert")).to_have_count(0)
    expect(page.book.get_by_role("heading", name="book", exact=True)).to_be_visible()
    expect(page.book).to_contain_text("1 page · 256 tokens")


def test_a_press_counts_though_the_page_moves_under_it_and_not_where_the_hand_left(
    page: Page, engine: FakeEngine, tmp_path: Path
) -> None:
    def press(button: Any, *, aside: bool = False, key: Any = "left") -> None:
        mouse = page.tab.mouse
        button.hover()
        mouse.down(button=key)
        while key == "left" and not button.evaluate("button => button.matches(':active')"):  # it moved before
            mouse.move(0, 0)
            mouse.up()
            button.hover()
            mouse.down()
        button.evaluate("button => { button.closest('.block').style.marginTop = '250px'; }")
        if aside:
            mouse.move(2, 2)
        mouse.up(button=key)
        button.evaluate("button => { button.closest('.block').style.marginTop = ''; }")

    with page.tab.expect_file_chooser() as chooser:
        press(page.button("Open books"))
    chooser.value.set_files(str(write_book(tmp_path)))
    page.has_read()
    page.hears(engine, "How was it?", "It was dark.")
    press(page.button("New"), aside=True)
    press(page.button("New"), key="right")
    page.hears(engine, "And then?", "It rained.", shown=2)
    press(page.button("New"))
    expect(page.conversation).not_to_contain_text("It rained.")


def test_a_sample_book_is_opened_and_proposes_questions(page: Page, engine: FakeEngine) -> None:
    engine.context = 200_000
    page.tab.get_by_role("button", name=SAMPLE).click()
    page.has_read()
    expect(page.book.get_by_role("heading", name=SAMPLE)).to_be_visible()
    engine.enqueue("On the 20th of January.")
    page.presses(PROPOSED)
    expect(page.conversation).to_contain_text(PROPOSED)
    page.answers("On the 20th of January.")
    expect(page.button(PROPOSED)).to_have_count(0)


def test_an_answer_is_stopped_and_continued(page: Page, engine: FakeEngine, tmp_path: Path) -> None:
    page.reads(write_book(tmp_path))
    engine.enqueue("One two | three.")
    page.asks("Count to four!")
    expect(page.conversation).to_contain_text("One two")
    expect(page.figures).to_contain_text("Writing · 2 tokens")
    page.presses("Stop the answer")
    expect(page.figures).to_contain_text("Stopped · 2 tokens")
    expect(page.button("Send the question")).to_be_visible()
    expect(page.conversation).not_to_contain_text("three")
    engine.writing.set()
    engine.enqueue("three four.")
    page.presses("Continue")
    page.answers("One two three four.")
    expect(page.conversation).to_contain_text("4 tokens in")
    expect(page.button("Continue")).to_have_count(0)


def test_a_question_that_gets_no_answer_stands_again_before_what_was_typed_since(
    page: Page, engine: FakeEngine, tmp_path: Path
) -> None:
    engine.reading.clear()
    page.opens(write_book(tmp_path))
    page.asks("How was it?")
    expect(page.conversation).to_contain_text("Waiting until the book is read")
    page.question.fill("And then?")
    page.presses("Stop the answer")
    expect(page.question).to_have_value("How was it?\nAnd then?")
    engine.reading.set()


def test_a_look_at_another_tab_leaves_the_chat_at_its_end_and_the_box_as_high_as_its_text(
    page: Page, engine: FakeEngine, tmp_path: Path
) -> None:
    page.reads(write_book(tmp_path))
    engine.enqueue("It is begun | " + "interminably " * 200 + "ended.")
    page.asks("All of it?")
    expect(page.conversation).to_contain_text("It is begun")
    page.goes_to("Inside")
    engine.writing.set()
    expect(page.inside).to_contain_text("interminably interminably")
    page.goes_to("Read")
    page.answers("ended.")
    expect(page.button("Regenerate", page.conversation)).to_be_in_viewport()
    engine.reading.clear()
    page.opens(write_book(tmp_path, "Another book. " * 30, "another.txt"))
    page.asks("How was it?")
    expect(page.conversation).to_contain_text("Waiting until the book is read")
    page.goes_to("Library")
    page.presses("Start over")
    expect(page.heading("Nothing in the library yet")).to_be_visible()
    page.goes_to("Read")
    expect(page.question).to_have_value("How was it?")
    box = page.question.bounding_box()
    assert box is not None and box["height"] > 16
    engine.reading.set()


def test_a_question_is_changed_and_the_old_branch_stays(page: Page, engine: FakeEngine, tmp_path: Path) -> None:
    two_answers(page, engine, tmp_path)
    page.button("Edit").first.click()
    expect(page.says("Changing question 1")).to_be_visible()
    expect(page.question).to_have_value("How was it?")
    expect(page.question).to_be_focused()
    page.presses("Cancel")
    expect(page.says("Changing question 1")).to_have_count(0)
    expect(page.question).to_have_value("")
    page.button("Edit").first.click()
    expect(page.question).to_have_value("How was it?")
    page.hears(engine, "How was it before?", "It was quiet.")
    expect(page.conversation).not_to_contain_text("And then?")
    page.tab.get_by_role("button", name="Earlier version").click()
    expect(page.conversation).to_contain_text("It rained.")
    expect(page.conversation).not_to_contain_text("It was quiet.")


def test_another_answer_stands_beside_the_first_and_is_deleted_at_the_second_press(
    page: Page, engine: FakeEngine, tmp_path: Path
) -> None:
    page.reads(write_book(tmp_path))
    page.hears(engine, "And then?", "Five.")
    engine.enqueue("Six.")
    page.presses("Regenerate")
    page.answers("Six.")
    expect(page.conversation).not_to_contain_text("Five.")
    expect(page.conversation).to_contain_text("2/2")
    page.tab.get_by_role("button", name="Earlier version").click()
    expect(page.conversation).to_contain_text("Five.")
    page.tab.get_by_role("button", name="Later version").click()
    expect(page.conversation).to_contain_text("Six.")
    page.presses("Delete", page.conversation)
    expect(page.conversation).to_contain_text("Six.")
    page.presses("Delete?", page.conversation)
    expect(page.conversation).to_contain_text("Five.")
    expect(page.conversation).not_to_contain_text("Six.")


def test_questions_are_answered_and_a_branch_goes_on_from_an_earlier_answer_and_back(
    page: Page, engine: FakeEngine, tmp_path: Path
) -> None:
    two_answers(page, engine, tmp_path)
    expect(page.question).to_have_value("")
    for words in ("How was it?", "It was dark.", "3 tokens in", "exact", "And then?", "2 tokens in"):
        expect(page.conversation).to_contain_text(words)
    expect(page.figures).to_contain_text("tokens/s")
    for words in ("It was a dark and stormy night.", "How was it?"):
        assert words in engine.text.decode(engine.prompts[-1]), "the model had the book and the conversation"
    page.presses("Branch")
    expect(page.conversation).not_to_contain_text("And then?")
    page.tab.get_by_role("button", name="1 branch goes on from here").click()
    expect(page.conversation).to_contain_text("And then?")
    page.presses("Branch")
    expect(page.conversation).not_to_contain_text("And then?")
    page.hears(engine, "And else?", "It was cold.", shown=2)
    expect(page.conversation).to_contain_text("It was dark.")
    page.tab.get_by_role("button", name="Earlier version").click()
    expect(page.conversation).to_contain_text("It rained.")
    expect(page.conversation).not_to_contain_text("And else?")
