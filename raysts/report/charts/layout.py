"""Places of a layered graph's nodes, left to right: columns by depth, few crossings, straight chains.

An edge that skips columns passes through invisible points, one a column; edges to the same node share them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_POINT_HEIGHT = 8.0
_SWEEPS = 16


@dataclass(slots=True)
class Place:
    """One node, or a point that edges pass through (``is_point``); ``y`` is its middle."""

    id: str
    column: int
    height: float
    is_point: bool = False
    y: float = 0.0
    before: list[Place] = field(default_factory=list, repr=False)
    after: list[Place] = field(default_factory=list, repr=False)


def lay_out(needs: Mapping[str, Sequence[str]], heights: Mapping[str, float], gap: float) -> list[Place]:
    """Places of all nodes and points; columns from 0, the topmost box ends at y = 0.

    Args:
        needs: by node, the nodes it needs; unknown ones and cycles are ignored.
        heights: by node.
        gap: between nodes of a column.
    """
    known = _without_cycles({node: [n for n in dict.fromkeys(ids) if n in needs] for node, ids in needs.items()})
    column = _columns(known)
    places = {node: Place(node, column[node], heights[node]) for node in known}
    points: dict[tuple[str, int], Place] = {}
    for node, ids in known.items():
        for need in ids:
            last = places[need]
            for c in range(column[need] + 1, column[node]):
                point = points.setdefault((node, c), Place(f"{node}@{c}", c, _POINT_HEIGHT, True))
                _connect(last, point)
                last = point
            _connect(last, places[node])
    everything = [*places.values(), *points.values()]
    by_column: dict[int, list[Place]] = defaultdict(list)
    for place in everything:
        by_column[place.column].append(place)
    _settle([by_column[c] for c in sorted(by_column)], gap)
    top = min((place.y - place.height / 2 for place in everything), default=0.0)
    for place in everything:
        place.y -= top
    return everything


def _connect(first: Place, second: Place) -> None:
    if second not in first.after:
        first.after.append(second)
        second.before.append(first)


def _without_cycles(needs: dict[str, list[str]]) -> dict[str, list[str]]:
    """The same graph in topological order; an edge that would close a cycle is dropped."""
    ordered: dict[str, list[str]] = {}
    left = dict(needs)
    while left:
        ready = [node for node, ids in left.items() if all(need in ordered for need in ids)]
        for node in ready or list(left)[:1]:
            ordered[node] = [need for need in left.pop(node) if need in ordered]
    return ordered


def _columns(needs: dict[str, list[str]]) -> dict[str, int]:
    """As early as possible; a node without needs right before the first that needs it."""
    column: dict[str, int] = {}
    for node, ids in needs.items():
        column[node] = max((column[need] + 1 for need in ids), default=0)
    for node, ids in needs.items():
        users = [user for user, theirs in needs.items() if node in theirs]
        if not ids and users:
            column[node] = min(column[user] for user in users) - 1
    return column


def _settle(columns: list[list[Place]], gap: float) -> None:
    for places in columns:
        _stack(places, gap)
    for sweep in range(2 * _SWEEPS):
        # First the order in each column, from one side at a time, then the places in that order, from both.
        ordering, forward = sweep < _SWEEPS, sweep % 2 == 0
        for places in columns if forward else reversed(columns):
            wanted = {id(p): _wanted(p, forward or not ordering, not forward or not ordering) for p in places}
            if ordering:
                # Nodes without needs (tokens) go below, so that the members' chains stay together.
                places.sort(key=lambda p: (p.column > 0 and not p.before, wanted[id(p)][0]))
                _stack(places, gap)
            _approach(places, [wanted[id(p)] for p in places], gap)


def _stack(places: list[Place], gap: float) -> None:
    y = -(sum(place.height + gap for place in places)) / 2
    for place in places:
        place.y = y + place.height / 2
        y += place.height + gap


def _wanted(place: Place, before: bool, after: bool) -> tuple[float, float]:
    """(mean of the neighbours' places, weight of that wish).

    The only link of two nodes counts most, so that chains become straight; tokens and points follow, they do not lead.
    """
    pull = total = 0.0
    if not place.before and not place.after:
        return 0.0, 1e-9
    links = [(other, place, other) for other in place.before if before]
    links += [(place, other, other) for other in place.after if after]
    for first, second, other in links:
        weight = (len(first.after) * len(second.before)) ** -2.0
        if not first.before or first.is_point or second.is_point:
            weight *= 1e-3
        pull += weight * other.y
        total += weight
    return (pull / total, total) if total else (place.y, 1e-9)


def _approach(places: list[Place], wanted: list[tuple[float, float]], gap: float) -> None:
    """Move the places of a column, in their order and without overlap, as near as can be to where they want to be.

    Weighted least squares under order constraints: isotonic regression by pooling neighbours that would overlap.
    """
    offsets, offset = [], 0.0
    for i, place in enumerate(places):
        if i:
            offset += (places[i - 1].height + place.height) / 2 + gap
        offsets.append(offset)
    blocks: list[tuple[float, float, int]] = []
    for (want, weight), offset in zip(wanted, offsets, strict=True):
        mean, count = want - offset, 1
        while blocks and blocks[-1][0] >= mean:
            other, others, size = blocks.pop()
            mean = (mean * weight + other * others) / (weight + others)
            weight, count = weight + others, count + size
        blocks.append((mean, weight, count))
    settled = [mean for mean, _, count in blocks for _ in range(count)]
    for place, mean, offset in zip(places, settled, offsets, strict=True):
        place.y = mean + offset
