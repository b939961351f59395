"""One conversation that two programs write: what both wrote is kept, what one of them removed is gone.

A merge of three states, as of three versions of a text: the one on disk when this program last looked (`base`), the one
on disk now, and this program's own. Only nodes and the title can differ; a node's question never changes.
"""

from dataclasses import replace

from app.dialogue import ROOT, Dialogue, Node


def merge(mine: Dialogue, base: Dialogue, disk: Dialogue, removed: frozenset[str]) -> Dialogue:
    """This program's state with what another one has changed on disk since `base`.

    An answer is never lost: a new node keeps the questions before it, even where the other program removed them.

    Args:
        removed: ids of nodes that this program took away.
    """
    known, left = {node.id: node for node in base.nodes}, {node.id: node for node in disk.nodes}
    gone = removed | (known.keys() - left.keys())
    kept = _with_ancestors(mine, {node.id for node in mine.nodes if node.id not in gone | known.keys()})
    nodes = [
        _newer(node, known.get(node.id), left.get(node.id))
        for node in mine.nodes
        if node.id in kept or node.id not in gone
    ]
    merged = replace(mine, nodes=tuple(nodes)).joined(disk, gone)
    merged = replace(merged, changed=max(mine.changed, disk.changed))
    if mine.title == base.title:
        merged = replace(merged, title=disk.title)
    if merged.head != ROOT and merged.find(merged.head) is None:
        merged = replace(merged, head=merged.newest_below(ROOT))
    return merged


def _with_ancestors(dialogue: Dialogue, ids: set[str]) -> set[str]:
    return {node.id for one in ids for node in dialogue.path_to(one)}


def _newer(mine: Node, base: Node | None, disk: Node | None) -> Node:
    """The node with the answer that was changed last, this program's where both changed it."""
    if disk is None or disk.exchange is None or (base is not None and mine.exchange not in (None, base.exchange)):
        return mine
    return disk if mine.exchange is None or (base is not None and mine.exchange == base.exchange) else mine
