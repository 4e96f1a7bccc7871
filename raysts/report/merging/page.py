"""The page about merging, and its tables as Markdown."""

from collections.abc import Sequence
from pathlib import Path

from raysts.report import html
from raysts.report.html import hundredfold, with_spread
from raysts.report.merging.data import DISTANCES, REFERENCE, SYSTEMS, Cell, MergingData, said
from raysts.storage.store import Store

Rows = Sequence[Sequence[str]]


def write_report(data: MergingData, folder: Path) -> Path:
    """Write the page, and ``tables.md`` beside it, into ``folder``; the page's path."""
    with Store.of(folder).put(folder / "tables.md") as draft:
        draft.write_text(markdown(data), encoding="utf-8")
    return html.write_page(render(data), folder)


def render(data: MergingData) -> str:
    """The page as HTML."""
    return html.render("merging/page.html", data=data, tables=tables(data), distances=DISTANCES, systems=SYSTEMS)


def tables(data: MergingData) -> list[tuple[str, Rows]]:
    """Caption and rows of every table, the head first."""
    regimes = list(data.table)
    count = len({each.seed for each in data.configurations})
    scores = [["System", *regimes]]
    scores += [[system, *(_score(data.table[regime][system]) for regime in regimes)] for system in SYSTEMS]
    scores += [
        [f"distance: {text}", *(_distance(*data.distances[regime][distance]) for regime in regimes)]
        for distance, text in DISTANCES.items()
    ]
    rules = [["Distance", "Rule, fitted to all configurations"]]
    rules += [[DISTANCES[distance], said(rule)] for distance, rule in data.rules.items()]
    whole = len(data.configurations)
    judged = [["What chooses", "Not fitted on", "Best way", "Lost", "Lost at most"]]
    judged += [
        [each.rule, each.held_out, f"{each.right} of {whole}", hundredfold(each.lost), hundredfold(each.worst)]
        for each in data.judged
    ]
    return [
        (
            f"Spearman x 100, mean of {', '.join(data.sets)} test ± deviation over {count} seeds; in brackets the paired 95 % "
            f"interval of the difference from the {REFERENCE} on the development set, bold where it does not hold 0",
            scores,
        ),
        ("A rule says from the distance of the members, before a student is trained, how they are merged", rules),
        (
            "Rules on configurations that they were not fitted on, and every way taken always: how often the way is the best on "
            "the test sets, and how much lower it scores than the best (x 100)",
            judged,
        ),
    ]


def markdown(data: MergingData) -> str:
    """The tables to be pasted."""
    parts = [f"`{data.command}`\n\n{data.members} members from {data.backbone}, {data.created_at}\n"]
    parts += [f"{caption}\n\n{html.markdown_table(rows)}" for caption, rows in tables(data)]
    return "\n".join(parts)


def _score(cell: Cell) -> str:
    text = with_spread(cell.mean, cell.std)
    if cell.difference is None or cell.low is None or cell.high is None:
        return text
    difference = f"{100 * cell.difference:+.2f} [{100 * cell.low:+.2f}, {100 * cell.high:+.2f}]"
    return f"{text} ({f'**{difference}**' if cell.shown else difference})"


def _distance(mean: float, std: float | None) -> str:
    return f"{mean:.3g}" + ("" if std is None else f" ± {std:.2g}")
