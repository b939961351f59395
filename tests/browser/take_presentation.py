"""Makes assets/screenshots/presentation.gif of a running app: python -m tests.browser.take_presentation [ADDRESS].

The whole show, from the book to the closing card. The race is run while nobody looks, since taking pictures costs the
processor's time; the show replays it on the clocks that it measured.
"""

import shutil
import sys

from playwright.sync_api import Page, sync_playwright

from tests.browser.take_animation import MOST_BYTES, Film
from tests.browser.take_screenshots import FOLDER, away, reads

FILE = FOLDER / "presentation.gif"
SAMPLE = 1  # 32K tokens
SIZE = {"width": 1920, "height": 1080}
SURE = "getComputedStyle(document.querySelector('.scene.round .outcome')).opacity === '1'"
FINISHED = "!document.querySelector('.race.replaying') && !!document.querySelector('#race-board .result')"


def at(page: Page, scene: str) -> None:
    """Wait for a scene."""
    page.wait_for_selector(f"html[data-scene={scene}]")


def main(address: str) -> int:
    """Returns 1 if the picture is too large."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = reads(browser, address, "desktop", "light", SAMPLE)
        page.set_viewport_size(SIZE)
        page.get_by_role("tab", name="Race").click()
        page.locator("#race-prompts button").first.click()  # the one of the largest gain
        page.locator("#race-start").click()
        away(page)
        page.wait_for_selector(".race.resting .scene.closing", state="attached")
        page.locator("#race-present").click()
        at(page, "opening")
        film = Film(page)
        film.until(lambda: True)
        page.keyboard.press("r")
        film.until(lambda: bool(page.evaluate("document.documentElement.dataset.scene === 'race'")), hold=False)
        film.until(lambda: bool(page.evaluate(FINISHED)))
        page.keyboard.press("Space")
        at(page, "round")
        film.until(lambda: bool(page.evaluate(SURE)))
        page.keyboard.press("Space")
        at(page, "closing")
        film.until(lambda: True)
        film.save(FILE)
        browser.close()
    size = FILE.stat().st_size
    print(f"{FILE}: {size / 1e6:.2f} MB, {sum(film.stays) / 1000:.0f} s")
    return int(size > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:7860/"))
