"""Makes assets/screenshots/demo.gif of a running app: python -m tests.browser.take_animation [ADDRESS].

The race is run while nobody looks, since taking pictures costs the processor's time, then replayed by the page on the
clocks that it measured. Each frame stays as long as it took until the next.
"""

import io
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from tests.browser.take_screenshots import FOLDER, asks, away, reads

FILE = FOLDER / "demo.gif"
MOST_BYTES = 2 << 20
WIDTH, COLOURS = 860, 128
SAMPLE = 1  # 32K tokens
STEP_MS, HOLD_MS = 200, 2500  # between two frames at least; of the last frame of a scene
REPLAYED = "!document.querySelector('.race.replaying')"
ANSWERED = "!!document.querySelector('#strip .resting:not(.empty)')"


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

    def until(self, ended: Callable[[], bool], *, hold: bool = True) -> None:
        """Frames until a scene has ended, and its end for a while."""
        over = False
        while not over:
            began = time.monotonic()
            over = ended()
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


def main(address: str) -> int:
    """Returns 1 if the picture is too large."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = reads(browser, address, "desktop", "light", SAMPLE)
        film = Film(page)
        page.get_by_role("tab", name="Race").click()
        page.locator("#race-prompts button").first.click()
        page.locator("#race-start").click()
        away(page)
        page.wait_for_selector(".race.resting .verdict:not(.pending)")
        page.locator(".replay-button").first.click()
        page.wait_for_selector(".race.replaying")
        film.until(lambda: bool(page.evaluate(REPLAYED)))
        page.get_by_role("tab", name="Read").click()
        asks(page, page.locator("#suggestions button").first.inner_text())
        page.wait_for_selector("#strip .running")
        film.until(lambda: bool(page.evaluate(ANSWERED)))
        film.save(FILE)
        browser.close()
    size = FILE.stat().st_size
    print(f"{FILE}: {len(film.frames)} frames, {sum(film.stays) / 1000:.0f} s, {size:,} bytes")
    return int(size > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:7860/"))
