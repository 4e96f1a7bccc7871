"""Dot plot of one data set: every individual a dot, means and intervals, drawn as static SVG."""

from collections.abc import Sequence

from markupsafe import Markup

from raysts.evaluation.standings import TEACHER, Standing, Value, kind_of
from raysts.recipes.recipe import ROLE_NAMES
from raysts.report.charts import Scale, across, drawing, fit_scale, tag

WIDTH = 628
_LEFT, _RIGHT = 164, 164
_ROW, _MEMBER_ROW, _TOP, _BOTTOM = 24.0, 10.0, 8.0, 24.0
_FAR = 1.5
"""A single standing this many spans of the others away from them is shown by an arrow, so that the rest has room."""

_LONGEST = 21
"""Letters of a name that there is room for."""

_SHAPES = {"ensemble": "M-4.5,-4.5 h9 v9 h-9 z", "student": "M0,-6 l6,6 l-6,6 l-6,-6 z"}
_CIRCLE = "M-5,0 a5,5 0 1,0 10,0 a5,5 0 1,0 -10,0 z"


def dot_plot(name: str, dataset: str, standings: Sequence[Standing]) -> Markup:
    """Draw the standings that have a value on ``dataset``, one band each. ``name`` is unique in the page."""
    shown = [standing for standing in standings if standing.individuals.get(dataset)]
    reach = {id(s): _reach(s.individuals[dataset]) for s in shown}
    near = [s for s in shown if not _is_far(s, shown, reach)]
    scale = fit_scale([v for s in near for v in reach[id(s)]], _LEFT, WIDTH - _RIGHT, pad=0.05)
    heights = [max(_ROW, _MEMBER_ROW * len(s.individuals[dataset]) + 6) for s in shown]
    height = _TOP + sum(heights) + _BOTTOM
    parts, top = across(scale, _TOP, height - _BOTTOM), _TOP
    for standing, band in zip(shown, heights, strict=True):
        parts += _band(standing, dataset, scale, top, band, standing not in near)
        top += band
    text = "; ".join(f"{_label(s, dataset)}: {s.mean[dataset].text}" for s in shown)
    return drawing(name, f"Scores on {dataset}", text, parts, WIDTH, height)


def _reach(values: Sequence[Value]) -> tuple[float, float]:
    """Return the smallest and the largest of values and interval ends, times 100."""
    ends = [end for v in values for end in (v.value, v.low, v.high) if end is not None]
    return 100 * min(ends), 100 * max(ends)


def _is_far(standing: Standing, shown: Sequence[Standing], reach: dict[int, tuple[float, float]]) -> bool:
    rest = [reach[id(other)] for other in shown if other is not standing]
    if standing.role not in ("backbone", "baseline") or not rest:
        return False
    low, high = min(end[0] for end in rest), max(end[1] for end in rest)
    return reach[id(standing)][1] < low - _FAR * (high - low)


def _band(standing: Standing, dataset: str, scale: Scale, top: float, band: float, far: bool) -> list[Markup]:
    values, mean, middle = standing.individuals[dataset], standing.mean[dataset], top + band / 2
    label = _label(standing, dataset)
    marks = [
        tag("text", label, x=_LEFT - 10, y=middle + 4, text_anchor="end", class_="label strong"),
        tag("text", mean.text, x=WIDTH - _RIGHT + 12, y=middle + 4, class_="number"),
    ]
    if far:
        marks.append(tag("path", d=f"M{_LEFT + 14},{middle} h-12 m5,-4 l-5,4 l5,4", class_="arrow"))
        return [tag("g", tag("title", f"{label}: {mean.text}, outside the axis"), *marks)]
    is_group = len(values) > 1
    for index, value in enumerate(values):
        y = middle + (index - (len(values) - 1) / 2) * _MEMBER_ROW
        marks.append(_mark(str(standing.role), is_group, value, scale, y))
    if is_group:
        x = scale(100 * mean.value)
        marks.append(
            tag("line", tag("title", f"mean {mean.text}"), x1=x, x2=x, y1=top + 3, y2=top + band - 3, class_="mean")
        )
    return [tag("g", *marks, class_=f"role-{kind_of(standing.role)}")]


def _mark(role: str, is_group: bool, value: Value, scale: Scale, y: float) -> Markup:
    x = scale(100 * value.value)
    interval = None
    if value.low is not None and value.high is not None:
        ends = {"x1": scale(100 * value.low), "x2": scale(100 * value.high)}
        interval = tag("line", **ends, y1=y, y2=y, class_="interval thin" if is_group else "interval")
    place = f"translate({x:.2f},{y:.2f}) scale({0.7 if is_group else 1})"
    mark = tag("path", d=_SHAPES.get(role, _CIRCLE), transform=place, class_="mark")
    model = role if value.member is None else f"{role} {value.member}"
    return tag("g", tag("title", f"{model}: {value.text}"), interval, mark)


def _label(standing: Standing, dataset: str) -> str:
    count, name = len(standing.individuals[dataset]), str(standing.role).removeprefix(TEACHER)
    if name != standing.role:
        return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
    name = ROLE_NAMES.get(name, name)
    return f"{name}s ({count})" if count > 1 else name
