"""What is done, as the storage has it: an object store has the last word over its mirror on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from raysts.pipeline.plan import Node
from raysts.storage import runs as stored
from raysts.storage import store as storage


def refresh(nodes: Sequence[Node]) -> None:
    """Make the markers of ``nodes`` on this machine those of an object store; a folder that nodes share is left alone."""
    if nodes and any(storage.place_of(node.marker) for node in nodes):
        storage.at_once(_refresh, nodes)


def _refresh(node: Node) -> None:
    if storage.place_of(node.marker) is None:  # a model from elsewhere
        return
    if node.kind == "train":
        stored.confirm(node.marker.parent)
    elif node.kind in ("tokens", "teacher"):
        if not storage.bring(node.marker):
            node.marker.unlink(missing_ok=True)  # made again: the parts may not be there either
    elif node.kind == "evaluate":
        storage.need(node.marker)
        if node.marker.exists() and storage.remote(node.marker) is None:
            storage.push(node.marker)
