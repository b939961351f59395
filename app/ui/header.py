"""The model's state at the edges of the page: what runs, how exact it is, on which machine, and what is wrong."""

from app import formats
from app.runtime.events import LoadFailed, Loading, ModelState, Ready
from app.ui import render

PAGE_TOKENS = 500  # of a printed page, which has 300 to 500 words

MARK = (
    '<svg class="mark" viewBox="0 0 24 24" aria-hidden="true">'
    '<rect x="9" y="3" width="6" height="4.6" rx="1.2"/><rect x="5.5" y="9.7" width="13" height="4.6" rx="1.2"/>'
    '<rect x="2" y="16.4" width="20" height="4.6" rx="1.2"/></svg>'
)
SKIP = '<a class="skip" href="#question">Skip to the content</a>'
COLOURS = (  # the script marks the chosen one
    '<div class="colours" role="group" aria-label="Colours">'
    '<button type="button" data-colours="light" title="Light" aria-label="Light"><svg viewBox="0 0 24 24" '
    'aria-hidden="true"><circle cx="12" cy="12" r="4"/><path d="M12 3v1M12 20v1M3 12h1M20 12h1M5.6 5.6l.7.7M17.7 '
    '17.7l.7.7M5.6 18.4l.7-.7M17.7 6.3l.7-.7"/></svg></button>'
    '<button type="button" data-colours="system" title="As the system" aria-label="As the system"><svg '
    'viewBox="0 0 24 24" aria-hidden="true"><circle cx="12" cy="12" r="8"/><path class="half" d="M12 4a8 8 0 0 1 0 '
    '16z"/></svg></button>'
    '<button type="button" data-colours="dark" title="Dark" aria-label="Dark"><svg viewBox="0 0 24 24" '
    'aria-hidden="true"><path d="M19 14.5A8 8 0 0 1 9.5 5a7.5 7.5 0 1 0 9.5 9.5z"/></svg></button></div>'
)
KEYS = (
    '<div id="keys-help" role="dialog" aria-label="Keys" popover><h2>Keys</h2><dl>'
    "<dt><kbd>Enter</kbd></dt><dd>send the question</dd>"
    "<dt><kbd>Shift</kbd> <kbd>Enter</kbd></dt><dd>a new line</dd>"
    "<dt><kbd>Esc</kbd></dt><dd>stop the answer</dd>"
    "<dt><kbd>/</kbd> or <kbd>Ctrl</kbd> <kbd>K</kbd></dt><dd>go to the question</dd>"
    "<dt><kbd>Ctrl</kbd> <kbd>Shift</kbd> <kbd>F</kbd></dt><dd>find words in all open documents</dd>"
    "<dt><kbd>Alt</kbd> <kbd>N</kbd></dt><dd>a new conversation</dd>"
    "<dt><kbd>?</kbd></dt><dd>these keys</dd>"
    '</dl><button popovertarget="keys-help" popovertargetaction="hide" autofocus>Close</button></div>'
)
KEYS_BUTTON = render.button("?", tone="keys-button", title="Keys (?)", name="Keys", also='popovertarget="keys-help"')


def masthead(state: ModelState) -> str:
    """The header for a model state."""
    match state:
        case Loading():
            what, far = render.escape(state.model) or "the model", formats.loading(state.progress)
            chips = f'<span class="chip busy"><span class="spinner"></span>Loading {what}… {far}</span>'
        case LoadFailed():
            chips = render.chip("No model", tone="bad")
        case Ready():
            chips = _facts(state)
    remote = isinstance(state, Ready) and state.info.elsewhere
    about = "Whole books, read by a remote server" if remote else "Whole books, exact answers, on this machine"
    return (
        f'{SKIP}<header class="masthead">{MARK}<div class="name"><h1>TriForce Reader</h1>'
        f'<p class="quiet">{about}</p></div><div class="chips" role="group" aria-label="Model and machine">{chips}'
        f"</div>{COLOURS}</header>"
    )


def notice(state: ModelState) -> str:
    """The error that ended the model's loading, or why a GPU of this machine is not used; else nothing."""
    if isinstance(state, LoadFailed):
        return render.problem(state.error)
    if not isinstance(state, Ready):
        return ""
    unused = state.machine.unused_gpu
    if unused is None or state.info.elsewhere or state.info.plan.device.because != unused.because:  # the CPU was chosen
        return ""
    return render.box(unused.because, f"<span>{render.escape(unused.hint)}</span>", tone="calm", role="status")


def limits_note(limits: str) -> str:
    """What a model cannot do, in one line."""
    return f"{limits}; load a full model for other texts." if limits else ""


def _facts(ready: Ready) -> str:
    info, machine = ready.info, ready.machine
    context, largest = f"{ready.context:,} tokens of context", "Largest text at once"
    if info.elsewhere:
        return (
            render.chip(info.model, tone="model", title=info.description)
            + render.chip("remote server", title=info.elsewhere)
            + render.chip(context, title=f"{largest}, as --context or the server says")
        )
    plan = info.plan
    most, _, others = info.weights.partition(", ")
    dtype = f"{'mostly ' if others else ''}{most} weights, {plan.precision}" if info.quantised else plan.precision
    where, more = f"CPU · {formats.plural(machine.num_cores, 'core')}", machine.cpu
    if plan.device.value == "cuda" and machine.gpus:
        where, more = machine.gpus[0].name, f"{formats.size(machine.gpus[0].total_bytes)} of device memory"
    draft = "with its draft model" if info.has_draft else "without a draft model"
    exact = f"Every method follows the target model's own distribution, with its {info.weights} weights."
    pages = max(1, ready.context // PAGE_TOKENS)
    return (
        render.chip(info.model, tone="model", title=f"{info.description} Runs {draft}.")
        + render.chip(f"exact · {dtype}", tone="exact", title=exact)
        + render.chip(where, title=f"{more}, {formats.size(machine.ram_bytes)} of memory.")
        + render.chip(context, title=f"{largest}, about {pages} pages: {plan.context.because}.")
    )
