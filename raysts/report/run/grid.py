"""The pipeline as it ran: a row for each member, a column for each stage, then teacher, student and evaluation."""

from collections.abc import Sequence
from itertools import accumulate

from markupsafe import Markup

from raysts.report.charts.svg import drawing, tag
from raysts.report.run.data import NodeSummary
from raysts.training.monitor import duration

_WIDTH, _LINE, _LETTERS = 140.0, 13.0, 17
_COLUMN_GAP, _ROW_GAP, _MARGIN = 32.0, 10.0, 8.0
_SIGNS = {"done": "✓", "failed": "✕", "waiting": "…"}


def cells(nodes: Sequence[NodeSummary]) -> dict[str, tuple[int, int]]:
    """Column and row of each node: to the right of what it needs, in the row of what it goes on from.

    The nodes come in an order in which they can run.
    """
    placed: dict[str, tuple[int, int]] = {}
    taken: set[tuple[int, int]] = set()
    shared = {node.id for node in nodes if node.kind == "tokens"}  # of all members: no row goes on from them
    for node in nodes:
        before = [need for need in node.needs if need in placed]
        column = max((placed[need][0] + 1 for need in before), default=0)
        row = next((placed[need][1] for need in before if need not in shared), 0)
        while (column, row) in taken:
            row += 1
        placed[node.id] = column, row
        taken.add((column, row))
    return placed


def pipeline_grid(name: str, nodes: Sequence[NodeSummary]) -> Markup:
    """Every node as a box with title, kind, id, seconds and status, and its needs as lines behind the boxes."""
    if not nodes:
        return tag("p", "The pipeline has no nodes.", class_="empty")
    placed, titles = cells(nodes), {node.id: _title(node.title) for node in nodes}
    heights = [0.0] * (1 + max(row for _, row in placed.values()))
    for node_id, (_, row) in placed.items():
        heights[row] = max(heights[row], 37 + _LINE * len(titles[node_id]))
    tops = list(accumulate((height + _ROW_GAP for height in heights), initial=_MARGIN))
    boxes = {
        node_id: (_MARGIN + column * (_WIDTH + _COLUMN_GAP), tops[row], heights[row])
        for node_id, (column, row) in placed.items()
    }
    edges = [_edge(boxes[need], boxes[node.id]) for node in nodes for need in node.needs if need in boxes]
    said = "; ".join(f"{node.title} ({node.status}, {duration(node.seconds)})" for node in nodes)
    width = max(x for x, _, _ in boxes.values()) + _WIDTH + _MARGIN
    parts = [tag("g", *edges, class_="edges"), *(_box(node, titles[node.id], *boxes[node.id]) for node in nodes)]
    height = tops[-1] - _ROW_GAP + _MARGIN
    return drawing(name, "The pipeline as it ran", said, parts, width, height, class_="graph")


def _edge(first: tuple[float, float, float], second: tuple[float, float, float]) -> Markup:
    x1, y1, x2, y2 = first[0] + _WIDTH, first[1] + first[2] / 2, second[0], second[1] + second[2] / 2
    bend = x2 - _COLUMN_GAP / 2  # where it passes columns it does so in the row that it comes from
    return tag("path", d=f"M{x1:g},{y1:g} H{bend - _COLUMN_GAP / 2:g} C{bend:g},{y1:g} {bend:g},{y2:g} {x2:g},{y2:g}")


def _box(node: NodeSummary, title: Sequence[str], x: float, y: float, height: float) -> Markup:
    below = y + 3 + _LINE * len(title)
    took = duration(node.seconds) if node.seconds is not None else "" if node.status == "done" else node.status
    what = " · ".join(part for part in (node.kind, took) if part)
    said = f"{node.title} · {node.kind} · {node.id} · {node.status} · {duration(node.seconds)}\n{node.detail}"
    return tag(
        "g",
        tag("title", said),
        tag("rect", x=x, y=y, width=_WIDTH, height=height, rx=6, class_="box"),
        tag("rect", x=x, y=y + 6, width=4, height=height - 12, class_="stripe"),
        *(tag("text", line, x=x + 12, y=y + 3 + _LINE * (i + 1), class_="name") for i, line in enumerate(title)),
        tag("text", _shortened(what, 20), x=x + 12, y=below + 14, class_="what"),
        tag("text", _shortened(node.id, 20), x=x + 12, y=below + 27, class_="id"),
        tag(
            "text",
            _SIGNS.get(node.status, node.status),
            x=x + _WIDTH - 8,
            y=below + 14,
            text_anchor="end",
            class_="sign",
        ),
        class_=f"node kind-{node.kind} is-{node.status}",
    )


def _title(text: str) -> list[str]:
    if len(text) <= _LETTERS:
        return [text]
    # Break after a space, comma or slash; a title without one is broken anywhere.
    end = max((text.rfind(mark, 0, _LETTERS + 1) for mark in " /,-"), default=-1) + 1 or _LETTERS
    return [text[:end].rstrip(), _shortened(text[end:].lstrip(), _LETTERS)]


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
