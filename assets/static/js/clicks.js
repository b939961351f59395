/* A click whose button is drawn anew between press and release of the mouse. This page draws anew several times a second:
   the pressed button is then no longer there, and a browser gives the click to nobody; or it stands for something else now
   (the next row of a list), and the browser takes that one. Here the click goes to the button that stands for the same. */
"use strict";

(() => {
  const NEAR_PX = 10; // a mouse that went further did not click
  let pressed = null; // { button, name, x, y }
  let stranger = null; // the pressed button, when it stands for something else

  // What a button stands for. Its words may change: they tell it only where nothing else does.
  function nameOf(button) {
    const does = [button.value, { ...button.dataset }, button.closest("[data-id]")?.dataset.id, button.form?.dataset.choose];
    const plain = !button.value && !Object.keys(button.dataset).length;
    const words = plain && [button.getAttribute("aria-label"), button.textContent];
    return JSON.stringify([button.closest("[id]")?.id, button.classList[0], does, words]);
  }

  function press(event) {
    const button = event.pointerType === "mouse" && event.button === 0 && event.target.closest?.("button");
    pressed = button ? { button, name: nameOf(button), x: event.clientX, y: event.clientY } : null;
    stranger = null;
  }

  function release(event) {
    const before = pressed;
    if (!before || event.button !== 0) return;
    pressed = null;
    if (before.button.isConnected && nameOf(before.button) === before.name) return; // the browser's own click
    if (before.button.isConnected) stranger = before.button;
    setTimeout(() => (stranger = null)); // its click comes before that, or never
    if (Math.hypot(event.clientX - before.x, event.clientY - before.y) > NEAR_PX) return;
    const same = [...document.querySelectorAll("button")].filter((button) => nameOf(button) === before.name);
    if (same.length === 1) same[0].click(); // of two that stand for the same, nobody knows which was meant
  }

  function spare(event) {
    if (!event.isTrusted || !stranger?.contains(event.target)) return;
    stranger = null;
    event.preventDefault();
    event.stopImmediatePropagation();
  }

  addEventListener("pointerdown", press, true);
  addEventListener("pointerup", release, true);
  addEventListener("pointercancel", () => (pressed = null), true);
  addEventListener("click", spare, true);
})();
