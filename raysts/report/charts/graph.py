"""The pipeline as it ran: a graph from left to right, drawn as static SVG."""

from __future__ import annotations

from collections.abc import Sequence

from raysts.report.charts.layout import Place, lay_out
from raysts.report.charts.markup import Markup, tag
from raysts.report.run.data import Node
from raysts.training.monitor import duration

BOX_WIDTH = 140.0
_LINE = 13.0
_LETTERS = 17
_COLUMN_GAP, _ROW_GAP, _MARGIN = 32.0, 10.0, 8.0
_SIGNS = {"done": "✓", "failed": "✕", "waiting": "…"}


def pipeline_graph(name: str, nodes: Sequence[Node]) -> Markup:
    """Every node as a box with title, kind, id, seconds and status, and its needs as edges.

    Args:
        name: unique in the page; the SVG's title and description are referred to by it.
        nodes: see :data:`raysts.report.run.data.Node`.
    """
    if not nodes:
        return tag("p", "The pipeline has no nodes.", class_="empty")
    titles = {node["id"]: _title(node["title"]) for node in nodes}
    heights = {node_id: 37 + _LINE * len(lines) for node_id, lines in titles.items()}
    places = lay_out({node["id"]: node["needs"] for node in nodes}, heights, _ROW_GAP)
    by_id = {node["id"]: node for node in nodes}
    width = 2 * _MARGIN + (max(p.column for p in places) + 1) * (BOX_WIDTH + _COLUMN_GAP) - _COLUMN_GAP
    height = 2 * _MARGIN + max(p.y + p.height / 2 for p in places)
    said = "; ".join(f"{node['title']} ({node['status']}, {duration(node['seconds'])})" for node in nodes)
    return tag(
        "svg",
        tag("title", "The pipeline as it ran", id=f"{name}-t"),
        tag("desc", said, id=f"{name}-d"),
        tag("g", *(_edge(place, after) for place in places for after in place.after), class_="edges"),
        *(_box(place, by_id[place.id], titles[place.id]) for place in places if not place.is_point),
        viewBox=f"0 0 {width:g} {height:.0f}",
        width=f"{width:g}",
        height=f"{height:.0f}",
        role="img",
        aria_labelledby=f"{name}-t {name}-d",
        class_="graph",
    )


def _left(place: Place) -> float:
    return _MARGIN + place.column * (BOX_WIDTH + _COLUMN_GAP)


def _edge(first: Place, second: Place) -> Markup:
    x1, y1, x2, y2 = _left(first) + BOX_WIDTH, first.y + _MARGIN, _left(second), second.y + _MARGIN
    middle = (x1 + x2) / 2
    path = f"M{x1:g},{y1:.1f} C{middle:g},{y1:.1f} {middle:g},{y2:.1f} {x2:g},{y2:.1f}"
    return tag("path", d=path + (f" h{BOX_WIDTH:g}" if second.is_point else ""))


def _box(place: Place, node: Node, title: list[str]) -> Markup:
    x, y = _left(place), place.y - place.height / 2 + _MARGIN
    status, below = node["status"], y + 3 + _LINE * len(title)
    what = " · ".join(part for part in (node["kind"], _time(node)) if part)
    said = f"{node['title']} · {node['kind']} · {node['id']} · {status} · {duration(node['seconds'])}\n{node['detail']}"
    return tag(
        "g",
        tag("title", said),
        tag("rect", x=x, y=y, width=BOX_WIDTH, height=place.height, rx=6, class_="box"),
        tag("rect", x=x, y=y + 6, width=4, height=place.height - 12, class_="stripe"),
        *(tag("text", line, x=x + 12, y=y + 3 + _LINE * (i + 1), class_="name") for i, line in enumerate(title)),
        tag("text", _cut(what, 20), x=x + 12, y=below + 14, class_="what"),
        tag("text", _cut(node["id"], 20), x=x + 12, y=below + 27, class_="id"),
        tag("text", _SIGNS.get(status, status), x=x + BOX_WIDTH - 8, y=below + 14, text_anchor="end", class_="sign"),
        class_=f"node kind-{node['kind']} is-{status}",
    )


def _time(node: Node) -> str:
    if node["seconds"] is not None:
        return duration(node["seconds"])
    return "" if node["status"] == "done" else node["status"]


def _title(text: str) -> list[str]:
    """A title in one or two lines."""
    if len(text) <= _LETTERS:
        return [text]
    # Break after a space, comma or slash; a title without one is broken anywhere.
    place = max((text.rfind(mark, 0, _LETTERS + 1) for mark in " /,-"), default=-1) + 1 or _LETTERS
    return [text[:place].rstrip(), _cut(text[place:].lstrip(), _LETTERS)]


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
