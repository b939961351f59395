"""Takes the pictures in assets/screenshots of a running app: python -m assets.tools.screenshots [ADDRESS]."""

import shutil
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from playwright.sync_api import Browser, Page, TimeoutError, sync_playwright

from app.documents.ocr import is_installed
from assets.tools.documents.scans import make_scan

Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
ASSETS = Path(__file__).resolve().parents[1]
FOLDER, SAMPLE = ASSETS / "screenshots", ASSETS / "books" / "harbour-8k.pdf"
SIZES = {"desktop": (1360, 860, 1), "phone": (390, 844, 2)}
INSIDE_HEIGHT = 1260
QUOTING = "Recite chapter 8 from its beginning."  # its people speak
FIRST, SECOND = "When was the carved teapot lost?", "Tell everything the book says about Jonas Lovell."
ENDED = """(number) => document.querySelectorAll('#chat .foot').length === number
    && !!document.querySelector('#strip .resting:not(.empty)')"""
LONG = 120_000  # milliseconds: a book is read, on a slow machine
MOST_ROUNDS = 12


def visits(browser: Browser, address: str, size: str, scheme: Scheme) -> Page:
    """A page whose model has loaded."""
    width, height, scale = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, device_scale_factor=scale
    )
    page = context.new_page()
    page.set_default_timeout(LONG)
    page.goto(address)
    page.wait_for_function("document.querySelector('#masthead')?.textContent.includes('tokens of context')")
    return page


def reads(browser: Browser, address: str, size: str, scheme: Scheme, sample: int = 0) -> Page:
    """A page on which a sample book was read, the first one unless another is asked for."""
    page = visits(browser, address, size, scheme)
    page.locator("#samples button").nth(sample).click()
    page.wait_for_selector("#book .step.done", state="attached")  # a phone folds it
    return page


def asks(page: Page, question: str) -> None:
    """Send a question."""
    box = page.locator("#question textarea")
    box.fill(question)
    box.press("Enter")


def answers(page: Page, question: str) -> None:
    """Ask, and wait for the end of the answer; a conversation of an earlier picture may stand above it."""
    before = page.locator("#chat .foot").count()
    asks(page, question)
    page.wait_for_function(ENDED, arg=before + 1)


def away(page: Page) -> None:
    """The mouse points at nothing."""
    page.mouse.move(page.viewport_size["width"] - 5 if page.viewport_size else 5, 5)


def opens_marked(page: Page) -> None:
    """Open a page most of which was loaded and on which something is marked: some have only what every answer loads."""
    page.locator("[data-fold=figures]").click()
    for _ in range(MOST_ROUNDS):
        for bar in page.locator("#where .bar-page.most").all():
            bar.click()
            with suppress(TimeoutError):  # the mark is in the text, which an image may hide
                page.wait_for_selector("#where-page mark", state="attached", timeout=LONG / MOST_ROUNDS)
                return
    raise SystemExit("nothing is marked on the pages that were loaded most")


def shoot(page: Page, name: str, scheme: Scheme, wait: int = 500) -> None:
    """One picture, with the mouse on nothing, when everything has settled."""
    away(page)
    page.wait_for_timeout(wait)
    file = FOLDER / f"{name}-{scheme}.png"
    page.screenshot(path=file)
    print(file)


def take(browser: Browser, address: str, size: str, scheme: Scheme) -> None:
    """After the second answer about the first sample book."""
    page = reads(browser, address, size, scheme)
    answers(page, FIRST)
    answers(page, SECOND)
    shoot(page, size, scheme, 1500)
    page.context.close()


def take_race(browser: Browser, address: str, scheme: Scheme) -> None:
    """A finished race about the first sample book, what is inside of it, and the system it ran on."""
    page = reads(browser, address, "desktop", scheme)
    page.get_by_role("tab", name="Race").click()
    page.locator("#race-prompts button").first.click()  # the one of the largest gain
    page.locator("#race-start").click()
    page.wait_for_selector(".race.resting .verdict:not(.pending)")
    shoot(page, "race", scheme)
    page.get_by_role("tab", name="Inside").click()
    page.wait_for_selector(".provenance")
    page.set_viewport_size({"width": SIZES["desktop"][0], "height": INSIDE_HEIGHT})
    shoot(page, "inside", scheme)
    page.get_by_role("tab", name="System").click()
    page.wait_for_selector("#system-view .memory")
    shoot(page, "system", scheme)
    page.context.close()


def take_library(browser: Browser, address: str, scheme: Scheme) -> None:
    """Two sample books in the library with a page of one, where in them an answer was drafted from, and Find."""
    page = reads(browser, address, "desktop", scheme)
    page.locator("#samples summary").click()  # folded since a book is open
    page.locator("#samples button").nth(1).click()
    page.wait_for_selector("#book .titles li:nth-child(2)")
    page.wait_for_selector("#book .step.done")
    answers(page, FIRST)
    opens_marked(page)
    shoot(page, "where", scheme)
    page.get_by_role("tab", name="Library").click()
    page.get_by_role("button", name="Preview").first.click()
    page.wait_for_selector("#library-preview .page-text")
    shoot(page, "library", scheme)
    page.keyboard.press("Control+Shift+F")
    page.wait_for_function("document.activeElement.matches('#find input, #find textarea')")
    page.keyboard.type("carved teapot")
    page.keyboard.press("Enter")
    page.locator("#found .hit").nth(2).click()
    page.wait_for_selector("#library-preview mark")
    shoot(page, "find", scheme)
    page.context.close()


def take_recognition(browser: Browser, address: str, scheme: Scheme, scan: Path) -> None:
    """A scan whose third page is being recognised. Needs requirements-ocr.txt, and a scan never seen before."""
    page = visits(browser, address, "desktop", scheme)
    page.set_input_files("#drop input[type=file]", str(scan))
    page.locator("#book [data-act^=recognise]").click()
    page.wait_for_function("document.querySelector('#book .arrival')?.innerText.includes('page 3 of')")
    shoot(page, "recognition", scheme, 300)
    page.context.close()


def take_page(browser: Browser, address: str, scheme: Scheme) -> None:
    """The page of a quotation, marked, beside the answer."""
    page = reads(browser, address, "desktop", scheme)
    answers(page, QUOTING)
    page.locator("#chat .quote.found").last.click()
    page.wait_for_selector("#where-page .image i.quoted")
    shoot(page, "page", scheme, 1500)
    page.context.close()


def main(address: str) -> None:
    """All of them."""
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for size in SIZES:
            for scheme in SCHEMES:
                take(browser, address, size, scheme)
        for scheme in SCHEMES:
            take_race(browser, address, scheme)
            take_library(browser, address, scheme)
            take_page(browser, address, scheme)
        if is_installed():
            with TemporaryDirectory() as folder:
                for dpi, scheme in zip((200, 190), SCHEMES, strict=True):
                    scan = Path(folder) / "scan.pdf"
                    make_scan(SAMPLE, scan, dpi=dpi)
                    take_recognition(browser, address, scheme, scan)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:7860/")
