"""How a click on an element with data-act sends its action to the server (assets/static/js/acts.js)."""

CLICKS = "window.triforceActs.watch(element, () => trigger('click'));"
CLOSES = "element.empty = () => { props.value = ''; };"  # the page beside the chat, which the script closes
# A model that came while the page showed its download: the page looks again, as when the reader returns to it.
MODEL_CAME = '<i class="model-came" hidden></i>'
LOOKS_AGAIN = (
    "watch('value', () => element.querySelector('.model-came') && document.querySelector('#returned')?.click());"
)
# The script keeps keyboard focus when a component is redrawn, and scrolls an opened page to its first mark.
REDRAWN = "watch('value', () => window.triforceActs.redrawn(element));"
FOLDED = "window.triforceFolds.ready(element);"  # the button of a fold is there (assets/static/js/folds.js)
# The total of a checklist that was drawn anew.
SUMMED = "window.triforceChecklist.drawn(element);watch('value', () => window.triforceChecklist.drawn(element));"
WITH_ACT = "(id, act) => [window.triforceSession(), window.triforceActs.act]"
