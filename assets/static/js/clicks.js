/* A click whose button is drawn anew between press and release. A browser gives it to nobody, and this page draws anew
   several times a second: here it goes to the button that took the place of the pressed one. */
"use strict";

(() => {
  const NEAR_PX = 10; // a pointer that went further did not click
  let pressed = null; // { button, x, y }

  const nameOf = (button) =>
    JSON.stringify([button.value, { ...button.dataset }, button.getAttribute("aria-label"), button.closest("[data-id]")?.dataset.id, button.textContent]);

  function press(event) {
    const button = event.button === 0 && event.target.closest?.("button");
    pressed = button ? { button, name: nameOf(button), x: event.clientX, y: event.clientY } : null;
  }

  function release(event) {
    const before = pressed;
    pressed = null;
    if (!before || before.button.isConnected) return; // the browser's own click
    if (Math.hypot(event.clientX - before.x, event.clientY - before.y) > NEAR_PX) return;
    const same = [...document.querySelectorAll("button")].filter((button) => nameOf(button) === before.name);
    if (same.length === 1) same[0].click(); // of two that are called the same, nobody knows which was meant
  }

  addEventListener("pointerdown", press, true);
  addEventListener("pointerup", release, true);
  addEventListener("pointercancel", () => (pressed = null), true);
})();
