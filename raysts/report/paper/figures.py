"""The papers' figures from what a storage holds: scores by layer (Latte-Mix 2 and 3), ratios of lengths (GaussCSE 3)."""

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from raysts.report.paper.match import MeasuredRow, PaperTable

PUBLISHED = "published"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line, or one group of bars: (place on the horizontal axis, value, standard deviation if there is one)."""

    name: str
    points: tuple[tuple[int, float, float | None], ...]
    published: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines, or bars, over the places of an axis, each with its label."""

    title: str
    quantity: str
    across: str
    places: tuple[str, ...]
    lines: tuple[Line, ...]
    bars: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure; without charts nothing was measured, and ``how`` says what would."""

    number: int
    about: str
    how: str
    charts: tuple[Chart, ...]


def figures(paper: str, tables: Sequence[PaperTable], of_subsets: Sequence[MeasuredRow]) -> list[Figure]:
    """The figures of a paper; ``of_subsets`` are the measurements of parts of data sets."""
    if paper == "latte-mix":
        by_number = {shown.table.number: shown for shown in tables}
        words, texts = ([by_number[number] for number in numbers] for numbers in ((8, 10), (7, 9)))
        return [
            Figure(
                number=2,
                about="words as first principal components, by layer",
                how="raysts evaluate MODEL --tasks words",
                charts=_by_layer(words, "MSR", lambda system: ""),
            ),
            Figure(
                number=3,
                about="sentences by layer, mean pooling and Latte-Mix",
                how="raysts evaluate MODEL --layer all",
                charts=_by_layer(texts, "STSb", lambda system: ": mean" if system == "raw" else ": Latte-Mix"),
            ),
        ]
    if paper == "gausscse":
        return [
            Figure(
                number=3,
                about="ratios of the lengths of premise and hypothesis, and who is right about the direction",
                how="raysts evaluate MODEL --tasks snli-direction,sick-direction",
                charts=_by_ratio(of_subsets),
            )
        ]
    return []


def _by_layer(tables: Sequence[PaperTable], first: str, suffix: Callable[[str], str]) -> tuple[Chart, ...]:
    """A chart per column that has measurements, the paper's own first: what was measured, and what was published."""
    charts = []
    columns = [column.name for column in tables[0].table.columns]
    for name in sorted(columns, key=lambda name: name != first):
        metric, lines = "", dict[tuple[bool, str], dict[int, tuple[float, float | None]]]()
        for shown in tables:
            j = [column.name for column in shown.table.columns].index(name)
            metric = shown.table.columns[j].metrics[0]
            for i, row in enumerate(shown.table.rows):
                value = row.cells[j][0]
                layers = value.measures[0].layers if value and value.measures else None
                layer = re.fullmatch(r"only-(\d+)", layers or "")
                if value is None or layer is None or row.system is None:
                    continue
                place, after = int(layer[1]), suffix(row.system)
                lines.setdefault((True, f"{row.backbone}{after}"), {})[place] = (value.value, value.std)
                for backbone, beside in shown.measured.get((i, j, 0), {}).items():
                    std = None if beside.std is None else 100 * beside.std
                    lines.setdefault((False, f"{backbone}{after}"), {})[place] = (100 * beside.value, std)
        if all(published for published, _ in lines):
            continue
        depth = max(place for points in lines.values() for place in points)
        charts.append(
            Chart(
                title=name,
                quantity=f"{metric} × 100",
                across="layer",
                places=tuple(map(str, range(1, depth + 1))),
                lines=tuple(
                    Line(
                        name=f"{line}, {PUBLISHED}" if published else line,
                        points=tuple((place - 1, *points[place]) for place in sorted(points)),
                        published=published,
                    )
                    for (published, line), points in sorted(lines.items())
                ),
            )
        )
    return tuple(charts)


_CLASS = re.compile(r"log length ratio \[(\S+), (\S+)\)")
_SETS = {"snli-direction": "SNLI", "sick-direction": "SICK"}
_PAIRS = "pairs of entailment"
_LONGER = "the longer sentence is the premise"


def _by_ratio(rows: Sequence[MeasuredRow]) -> tuple[Chart, ...]:
    """The histogram of both sets, and per set the accuracy in each class of ratios; of each set the data measured last."""
    rows = sorted((row for row in rows if row.row["dataset"] in _SETS), key=lambda row: row.created_at)
    by_class = [(row, edges) for row in rows if (edges := _CLASS.fullmatch(row.row["subset"]))]
    last = {row.row["dataset"]: row.row["dataset_sha256"] for row, _ in by_class}
    counts: dict[str, dict[float, int]] = {}
    shares: dict[str, dict[str, dict[float, dict[tuple[object, ...], float]]]] = {}
    for measured, edges in by_class:
        row = measured.row
        if row["dataset_sha256"] != last[row["dataset"]]:
            continue
        low, high = float(edges[1]), float(edges[2])
        centre = high - 0.25 if low == float("-inf") else low + 0.25
        counts.setdefault(row["dataset"], {})[centre] = row["n"]
        system, model = _LONGER, tuple[object, ...]()
        if row["role"] != "baseline":
            system = f"{measured.system or row['system']} on {measured.backbone}, {row['similarity']}"
            model = (measured.run, row["run_id"], row["member"], row["seed"])
        shares.setdefault(row["dataset"], {}).setdefault(system, {}).setdefault(centre, {})[model] = row["value"]
    if not counts:
        return ()
    centres = sorted(set().union(*counts.values()))
    places = tuple(
        f"≤ {centre + 0.25:g}" if centre < -1.75 else f"≥ {centre - 0.25:g}" if centre > 1.75 else f"{centre:g}"
        for centre in centres
    )
    across = "ln(words of the premise / words of the hypothesis)"

    def points(values: Mapping[float, tuple[float, float | None]]) -> tuple[tuple[int, float, float | None], ...]:
        return tuple((centres.index(centre), *values[centre]) for centre in sorted(values))

    def chart(title: str, quantity: str, values: Mapping[str, Mapping[float, tuple[float, float | None]]]) -> Chart:
        lines = tuple(Line(name=name, points=points(by_centre)) for name, by_centre in values.items())
        bars = quantity == _PAIRS
        return Chart(title=title, quantity=quantity, across=across, places=places, lines=lines, bars=bars)

    present = [name for name in _SETS if name in counts]
    histogram = {_SETS[name]: {c: (float(n), None) for c, n in counts[name].items()} for name in present}
    return chart("SNLI and SICK", _PAIRS, histogram), *(
        chart(_SETS[name], "accuracy × 100", {
            system: {c: _over_models(list(values.values())) for c, values in by_centre.items()}
            for system, by_centre in sorted(shares[name].items())
        })
        for name in present
    )  # fmt: skip


def _over_models(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation (ddof 1) times 100."""
    return 100 * statistics.fmean(values), 100 * statistics.stdev(values) if len(values) > 1 else None
