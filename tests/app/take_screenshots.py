"""Takes the pictures in assets/screenshots of a running app: python -m tests.app.take_screenshots [ADDRESS]."""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

FOLDER = Path(__file__).resolve().parents[2] / "assets" / "screenshots"
SIZES = {"desktop": (1360, 860, 1), "phone": (390, 844, 2)}
FIRST, SECOND = "When was the carved teapot lost?", "Tell everything the book says about Jonas Lovell."
WRITING = """() => document.querySelector('#strip .status').innerText.startsWith('Writing')
    && parseInt(document.querySelector('#strip .status').innerText.slice(10)) > 24"""
LONG = 120_000  # milliseconds: a book is read, on a slow machine


def take(browser: Browser, address: str, size: str, scheme: str) -> Path:
    """One picture, in the middle of the second answer about the first sample book."""
    width, height, scale = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, device_scale_factor=scale
    )
    page = context.new_page()
    page.set_default_timeout(LONG)
    page.goto(address)
    page.wait_for_function("document.querySelector('#masthead')?.innerText.includes('tokens of context')")
    page.locator("#samples button").first.click()
    page.wait_for_selector("#book .step.done")
    box = page.locator("#question textarea")
    box.fill(FIRST)
    box.press("Enter")
    page.wait_for_selector("#strip .running")
    page.wait_for_selector("#strip .resting:not(.empty)")
    page.wait_for_timeout(500)
    page.mouse.move(width - 5, 5)
    if size == "phone":
        page.evaluate("document.querySelector('#strip').scrollIntoView({block: 'start'})")
    box.fill(SECOND)
    box.press("Enter")
    page.wait_for_function(WRITING, polling=20)
    file = FOLDER / f"{size}-{scheme}.png"
    page.screenshot(path=file)
    context.close()
    return file


def main(address: str) -> None:
    """All four."""
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for size in SIZES:
            for scheme in ("light", "dark"):
                print(take(browser, address, size, scheme))
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:7860/")
