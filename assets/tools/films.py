"""Makes demo.gif and presentation.gif of a running app: python -m assets.tools.films [ADDRESS].

The race is run while nobody looks, since taking pictures costs the processor's time, then replayed by the page on the
clocks that it measured. Each frame stays as long as it took until the next.
"""

import io
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from assets.tools.screenshots import FOLDER, asks, away, reads

MOST_BYTES = 2 << 20
WIDTH, COLOURS = 860, 128
SAMPLE = 1  # 32K tokens
STEP_MS, HOLD_MS = 200, 2500  # between two frames at least; of the last frame of a scene
REPLAYED = "!document.querySelector('.race.replaying')"
ANSWERED = "!!document.querySelector('#strip .resting:not(.empty)')"
SCREEN: ViewportSize = {"width": 1920, "height": 1080}
RACES = "document.documentElement.dataset.scene === 'race'"
SURE = "getComputedStyle(document.querySelector('.scene.round .outcome')).opacity === '1'"
FINISHED = f"{REPLAYED} && !!document.querySelector('#race-board .result')"


@dataclass(slots=True)
class Film:
    """Frames, each with the milliseconds that it stays."""

    page: Page
    frames: list[Image.Image] = field(default_factory=list)
    stays: list[int] = field(default_factory=list)

    def shoot(self) -> None:
        """One frame more."""
        picture = Image.open(io.BytesIO(self.page.screenshot()))
        size = (WIDTH, round(picture.height * WIDTH / picture.width))
        self.frames.append(picture.convert("RGB").resize(size, Image.Resampling.LANCZOS))

    def until(self, ended: str = "true", *, hold: bool = True) -> None:
        """Frames until a scene has ended, as an expression of the page tells, and its end for a while."""
        over = False
        while not over:
            began = time.monotonic()
            over = bool(self.page.evaluate(ended))
            self.shoot()
            self.page.wait_for_timeout(max(0, STEP_MS - 1000 * (time.monotonic() - began)))
            self.stays.append(HOLD_MS if over and hold else round(1000 * (time.monotonic() - began)))

    def save(self, file: Path) -> None:
        """One palette for all frames, so that only what changes is stored."""
        size, shown = self.frames[0].size, [self.frames[at * (len(self.frames) - 1) // 11] for at in range(12)]
        sheet = Image.new("RGB", (size[0], size[1] * len(shown)))
        for number, frame in enumerate(shown):
            sheet.paste(frame, (0, number * size[1]))
        palette = sheet.quantize(COLOURS, method=Image.Quantize.FASTOCTREE)
        pictures = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in self.frames]
        pictures[0].save(file, save_all=True, append_images=pictures[1:], duration=self.stays, loop=0, optimize=True)


def raced(browser: Browser, address: str) -> Page:
    """A page with a finished race about a sample book, by the question of the largest gain."""
    page = reads(browser, address, "desktop", "light", SAMPLE)
    page.get_by_role("tab", name="Race").click()
    page.locator("#race-prompts button").first.click()
    page.locator("#race-start").click()
    away(page)
    page.wait_for_selector(".race.resting .scene.closing", state="attached")
    return page


def demo(page: Page) -> Film:
    """The replay of the race, and an answer."""
    film = Film(page)
    page.locator(".replay-button").first.click()
    page.wait_for_selector(".race.replaying")
    film.until(REPLAYED)
    page.get_by_role("tab", name="Read").click()
    asks(page, page.locator("#suggestions button").first.inner_text())
    page.wait_for_selector("#strip .running")
    film.until(ANSWERED)
    return film


def presentation(page: Page) -> Film:
    """The whole show, from the book to the closing card."""
    page.set_viewport_size(SCREEN)
    page.locator("#race-present").click()
    page.wait_for_selector("html[data-scene=opening]")
    film = Film(page)
    film.until()
    page.keyboard.press("r")
    film.until(RACES, hold=False)
    film.until(FINISHED)
    page.keyboard.press("Space")
    page.wait_for_selector("html[data-scene=round]")
    film.until(SURE)
    page.keyboard.press("Space")
    page.wait_for_selector("html[data-scene=closing]")
    film.until()
    return film


def main(address: str) -> int:
    """Returns 1 if a film is too large."""
    sizes = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for make in (demo, presentation):
            film, file = make(raced(browser, address)), FOLDER / f"{make.__name__}.gif"
            film.save(file)
            sizes.append(file.stat().st_size)
            print(f"{file}: {len(film.frames)} frames, {sum(film.stays) / 1000:.0f} s, {sizes[-1]:,} bytes")
        browser.close()
    return int(max(sizes) > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:7860/"))
