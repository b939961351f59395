"""Journeys of everybody: with the keyboard alone, on a phone; axe finds nothing serious in any main state."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.fakes import FakeEngine, write_book
from tests.browser.journeys.page import JOURNEY, PHONE, SLOWED, STORY, Page, expect

axe = pytest.importorskip("axe_playwright_python.base", reason="axe-playwright-python is not installed")
pytestmark = JOURNEY
RULES = {
    "resultTypes": ["violations"],
    "preload": False,  # of style sheets and media, which none of these rules reads
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
}
CONTRAST = RULES | {"runOnly": {"type": "rule", "values": ["color-contrast"]}}  # all that other colours change


def test_the_keyboard_alone_is_enough(page: Page, engine: FakeEngine, tmp_path: Path) -> None:
    with page.tab.expect_file_chooser() as chooser:
        page.tabs_to(page.button("Open books"))
        page.types("Enter")
    chooser.value.set_files(str(write_book(tmp_path, STORY * 30)))
    page.has_read()
    page.reloads()
    page.types("Tab")
    skip = page.place("link", "Skip to the content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.types("Enter")
    expect(page.question).to_be_focused()
    engine.enqueue('It says "the carved teapot was lost in the great" | and more.')
    page.tab.keyboard.type("one")
    page.types("Shift+Enter")
    page.tab.keyboard.type("two?")
    expect(page.question).to_have_value("one\ntwo?")
    page.types("Enter")
    expect(page.conversation).to_contain_text("great")
    page.types("Escape")
    expect(page.figures).to_contain_text("Stopped · 10 tokens")
    engine.writing.set()
    page.tabs_to(page.button("page 1", page.conversation))
    page.types("Enter")
    expect(page.leaf(1)).to_be_visible()
    page.types("Escape")
    expect(page.leaf(1)).to_have_count(0)
    page.types("?")
    keys = page.place("dialog", "Keys")
    expect(keys).to_contain_text("send the question")
    page.types("Escape")
    expect(keys).to_be_hidden()
    for shortcut in ("/", "Control+k"):
        page.place("tab", "Read").focus()
        page.types(shortcut)
        expect(page.question).to_be_focused()
    page.types("Alt+n")
    expect(page.conversation).not_to_contain_text("It says")
    expect(page.question).to_be_focused()
    page.tabs_to(page.place("tab", "System"))
    page.types("Enter")
    expect(page.place("region", "Model and memory")).to_be_visible()


def test_a_phone_shows_all_of_it_within_its_width(
    visit: Callable[..., Page], engine: FakeEngine, tmp_path: Path
) -> None:
    page = visit(**PHONE, fingers=1)
    page.reads(write_book(tmp_path, name="a_rather_long_file_name_without_any_place_to_break_it_at_all_01234567.txt"))
    engine.enqueue("A word " + "y" * 120)
    page.asks("x" * 200)
    page.answers("yyy")
    page.fits_its_width()
    for one in (page.question, page.button("Regenerate")):
        expect(one).to_be_in_viewport(ratio=1)
    expect(page.button("Open books")).to_be_hidden()
    page.presses("Books")
    expect(page.button("Open books")).to_be_visible()
    expect(page.conversation).to_be_hidden()
    page.conversations.get_by_label("More about").first.click()
    page.fits_its_width()
    for one in (page.question, page.button("Export JSON", page.conversations)):
        expect(one).to_be_in_viewport(ratio=1)
    page.presses("Books")
    expect(page.conversation).to_be_visible()
    for name in ("Library", "Race", "Inside", "System"):
        page.goes_to(name)
        page.fits_its_width()


@pytest.mark.parametrize("screen", [PHONE, {"width": 1280, "height": 480}])
def test_what_has_no_room_on_a_narrow_or_low_screen_is_scrolled_to(
    visit: Callable[..., Page], screen: dict[str, int], tmp_path: Path
) -> None:
    page = visit(**screen)
    chapters = "".join(f"# Part {number}\n\n{'A line of it. ' * 60}\n\n" for number in range(40))
    page.opens(write_book(tmp_path, chapters, "long.md"))
    page.heading("Choose what is read").hover()
    page.tab.mouse.wheel(0, 9000)
    for one in (page.button("Read what is ticked"), page.question):
        expect(one).to_be_in_viewport(ratio=1)


# -------------------- axe


def faults(page: Page, where: str, opened_by: str = "") -> list[str]:
    """What axe finds in both colours that is serious or critical, or a heading out of order.

    `opened_by`: the button of a dialog that covers the switch of colours.
    """
    page.tab.emulate_media(reduced_motion="reduce")  # no colour is on its way to another
    page.slows_down(1)  # axe takes its time as it is, and races with nothing
    page.tab.evaluate(f"() => window.axe || (() => {{ {axe.AXE_SCRIPT} }})()")
    found = []
    for colours in ("Light", "Dark"):
        page.presses(colours)
        expect(page.tab.get_by_role("document")).to_have_css("color-scheme", colours.lower())
        if opened_by:
            page.presses(opened_by)
            expect(page.tab.get_by_role("dialog")).to_be_visible()
        rules = RULES if colours == "Light" else CONTRAST
        for violation in page.tab.evaluate("async (rules) => (await axe.run(rules)).violations", rules):
            if violation["impact"] in ("serious", "critical") or violation["id"] == "heading-order":
                for node in violation["nodes"]:
                    why = (node["any"] + node["all"] + node["none"] or [{"message": ""}])[0]["message"]
                    found.append(f"{where}, {colours}: {violation['id']}: {node['html'][:160]}: {why}")
        if opened_by:
            page.types("Escape")
    page.slows_down(SLOWED)
    return found


@pytest.mark.slow
def test_axe_finds_nothing_serious_on_any_tab(page: Page, engine: FakeEngine, tmp_path: Path) -> None:
    found = faults(page, "empty page")
    for name in ("Library", "Race", "Inside", "System"):
        page.goes_to(name)
        found += faults(page, f"{name}, empty")
    page.goes_to("Read")
    page.reads(write_book(tmp_path))
    engine.enqueue("It was a “dark and stormy night” and nothing else. " * 3)
    page.asks("How was it?")
    page.answers("It was a")
    found += faults(page, "Read")
    page.tab.get_by_role("button", name="Settings").click()
    found += faults(page, "Settings")
    page.goes_to("Library")
    page.presses("Preview book")
    expect(page.text_of_page).to_contain_text("stormy")
    found += faults(page, "Library")
    page.goes_to("Race")
    for _ in range(3):
        engine.enqueue("The night was dark. " * 6)
    page.question.fill("How was it?")
    page.presses("Start")
    expect(page.race).to_contain_text("are the same as plain")
    found += faults(page, "Race")
    page.goes_to("Inside")
    expect(page.inside).to_contain_text("Complete")
    found += faults(page, "Inside")
    page.goes_to("System")
    expect(page.place("region", "Model and memory")).to_be_visible()
    found += faults(page, "System")
    assert not found, "\n".join(found)


def test_axe_finds_nothing_serious_while_something_waits_for_the_reader(page: Page, tmp_path: Path) -> None:
    chapters = "".join(f"# Part {number}\n\n{'A line of it. ' * 60}\n\n" for number in range(8))
    page.opens(write_book(tmp_path, chapters, "long.md"), write_book(tmp_path, "", "0"))
    expect(page.choice).to_be_visible()
    expect(page.alert.filter(has_text="0 is empty.")).to_be_visible()
    found = faults(page, "too long")
    page.goes_to("Library")
    found += faults(page, "too long, Library")
    page.goes_to("Read")
    found += faults(page, "keys", opened_by="Keys")
    assert not found, "\n".join(found)
