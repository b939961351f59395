"""Figures and buttons under a question and an answer. Pure functions to HTML.

Every button names its exchange by its random id, so text of a book or model cannot name one.
"""

from app import formats
from app.conversations.figures import exactness, figures
from app.conversations.tree import Dialogue, Node
from app.runtime.recording import CUT
from app.ui import render
from core.decoding.registry import METHODS, REMOTE

WHY_CUT = {
    "max_new_tokens": "It ended at the limit of new tokens.",
    "cancelled": "It was stopped.",
    "repeating": "It went on repeating itself.",
    "time_up": "Its time was up.",
}


def answer_footer(dialogue: Dialogue, node: Node, *, last: bool, key: str = "") -> str:
    """Figures and buttons under an answer.

    Args:
        last: it ends the shown branch.
        key: HTML of what the lines in the answer mean.
    """
    exchange = node.exchange
    if exchange is None:
        acts = [_button("again", node.id, "Answer it", "Write the answer to this question")]
        acts.append(_button("delete", node.id, "Delete"))
        return f'<div class="foot waits"><span>Not answered.</span><span class="acts">{"".join(acts)}</span></div>'
    tone = "exact" if exchange.finished.exact else "lossy"
    tone = tone if exchange.finished.method in METHODS else REMOTE
    facts = "".join(
        f'<span class="{key}" title="{render.escape(note)}">{render.escape(text)}</span>'
        for key, text, note in figures(exchange)
    )
    facts += f'<span class="{tone}" title="{EXACTNESS[tone]}">{exactness(exchange)}</span>'
    acts = []
    reason = exchange.finished.stop_reason
    if last and reason in CUT and exchange.finished.token_ids:
        acts.append(_button("continue", node.id, "Continue", f"{WHY_CUT[reason]} Go on from its last token", "strong"))
    acts += [
        _button("again", node.id, "Regenerate", "Answer this question once more; this answer stays beside it"),
        "" if last else _button("branch", node.id, "Branch", "Go on from this answer; what follows it stays, too"),
        _button("copy", node.id, "Copy", "Copy the answer as Markdown"),
        _button("card", node.id, "Proof", "Save this answer with its pages and its clock as one small page"),
        _button("delete", node.id, "Delete", "Delete this question, its answer and what follows"),
    ]
    if last and (children := dialogue.children(node.id)):
        more = formats.plural(len(children), "branch goes", "branches go")
        acts.append(_button("switch", children[-1].id, f"{more} on from here &rsaquo;", "Show it", "strong"))
    kind = "foot last" if last else "foot"
    return f'<div class="{kind}">{key}{facts}<span class="acts">{"".join(acts)}</span></div>'


EXACTNESS = {
    "exact": "The text follows the model’s own distribution, as plain decoding does.",
    REMOTE: "A server elsewhere wrote this: how it computes cannot be seen from here.",
    "lossy": "A method that looks at a part of the book only: the text may differ from the model’s own.",
}


def question_footer(dialogue: Dialogue, node: Node) -> str:
    """The number of the shown version, and the button to edit the question."""
    beside = [one.id for one in dialogue.children(node.parent)]
    at = beside.index(node.id)
    turns = ""
    if len(beside) > 1:
        before, after = beside[at - 1] if at else "", beside[at + 1] if at + 1 < len(beside) else ""
        turns = (
            f'<span class="versions">{_turn(before, "&lsaquo;", "Earlier version")}<span>{at + 1}/{len(beside)}</span>'
            f"{_turn(after, '&rsaquo;', 'Later version')}</span>"
        )
    edit = _button("edit", node.id, "Edit", "Change this question; the conversation so far stays as a branch")
    return f'<div class="asked"><span class="acts">{edit}</span>{turns}</div>'


def _turn(node_id: str, label: str, title: str) -> str:
    label += f'<span class="unseen">{title}</span>'
    if not node_id:
        return render.button(label, tone="act", title=title, also="disabled")
    return _button("switch", node_id, label, title)


def _button(verb: str, node_id: str, label: str, title: str = "", tone: str = "") -> str:
    does = {"card": f'data-save="card:{node_id}"', "copy": f'data-copy="{node_id}"', "delete": "data-armed"}
    act = "" if verb in ("card", "copy") else f"{verb}:{node_id}"
    return render.button(label, act, tone=f"act {tone}".strip(), title=title, also=does.get(verb, ""))
