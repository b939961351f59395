"""How a click on an element with data-act sends its action to the server (assets/static/js/shelf.js)."""

CLICKS = "window.triforceShelf.watch(element, () => trigger('click'));"
# The script keeps keyboard focus when a component is redrawn, and scrolls an opened page to its first mark.
REDRAWN = "watch('value', () => window.triforceShelf.redrawn(element));"
WITH_ACT = "(id, act) => [window.triforceSession(), window.triforceShelf.act]"
# The script keeps keyboard focus when HTML is redrawn, and scrolls a page to its first mark.
REDRAWN = "watch('value', () => window.triforceShelf.redrawn(element));"
