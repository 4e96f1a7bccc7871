"""The first table of a run, one score of each system on each test set, and its result in words."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence

from raysts.evaluation.compare import Difference
from raysts.evaluation.standings import (
    AGREEMENT,
    AVERAGE,
    RETRIEVAL,
    TEACHER,
    Standing,
    Standings,
    Value,
    describe_pooled,
)
from raysts.pipeline.verdict import TITLES
from raysts.recipes.recipe import ROLE_NAMES


def metric_of(table: Standings, column: str) -> str:
    """Return the name of the metric of a column."""
    return "nDCG@10" if column.startswith(RETRIEVAL) else table.view.metric.capitalize()


def caption(table: Standings) -> str:
    """Return the caption of the table."""
    metrics = dict.fromkeys(metric_of(table, column) for column in table.columns if column != AVERAGE)
    return table.view.description.replace(table.view.metric.capitalize(), " and ".join(metrics), 1)


def label(line: Standing) -> str:
    """Return the name of a system: ``student``, ``members (4)``, ``teacher minilm``."""
    role = str(line.role)
    if role.startswith(TEACHER):
        return role
    return f"{ROLE_NAMES.get(role, role)}s ({line.n})" if line.n > 1 else ROLE_NAMES.get(role, role)


def as_text(table: Standings, width: int) -> str:
    """Return the table as text of at most ``width`` characters: a row for each set, the user's first.

    Systems that do not fit stand in another block below.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    names = sorted(table.columns, key=lambda name: (name in (*TITLES, AGREEMENT, AVERAGE), name == AVERAGE))
    heads = [f"{name} nDCG@10" if name.startswith(RETRIEVAL) else name for name in names]
    heads = [f"mean of {len(table.averaged)}" if head == AVERAGE else head for head in heads]
    systems = [
        [label(line).replace(" ", "\n"), *(value.cell if value else "" for value in map(line.mean.get, names))]
        for line in table.plot_lines
    ]
    console = Console(file=io.StringIO(), width=width, highlight=False, color_system=None)
    console.print(caption(table))
    for block in _blocks(systems, width - 3 - max(map(len, heads))):
        grid = Table(box=SIMPLE_HEAD)
        for name, *_ in [["set"], *block]:
            is_set = name == "set"
            grid.add_column(name, justify="left" if is_set else "right", no_wrap=not is_set, overflow="fold")
        for head, *values in zip(heads, *(values for _, *values in block), strict=True):
            grid.add_row(head, *values)
        console.print(grid)
    assert isinstance(console.file, io.StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    return "\n".join(line for line in lines if line)


def _blocks(systems: Sequence[list[str]], room: int) -> Iterator[list[list[str]]]:
    """Yield the columns that fit into ``room`` characters together, the first in every block."""
    block = [systems[0]]
    for column in systems[1:]:
        widths = [2 + max(len(line) for cell in cells for line in cell.split("\n")) for cells in [*block, column]]
        if len(block) > 1 and sum(widths) > room:
            yield block
            block = [systems[0]]
        block.append(column)
    yield block


# -- in words ------------------------------------------------------------------------------------------------------------


def headline(table: Standings | None, differences: Mapping[str, Mapping[str, Difference]]) -> list[list[str]]:
    """Return the result on the main set and on the average: a sentence, then phrases on other systems.

    ``differences``: by role and set, how far the delivered model is above the others
    (:func:`raysts.pipeline.verdict.Verdict`).
    """
    roles = ("student", "soup", "greedy-soup", "ensemble", "member", "baseline", "backbone")
    subject = next((standing for role in roles if table and (standing := table.first(role))), None)
    if table is None or subject is None:
        return [["There is no result on a test set yet."]]
    tests = [name for name in table.columns if name in subject.mean and name != AGREEMENT]
    if not tests:
        words = f"There are no scored pairs to test on. Agreement of the {subject.role} with {_judge(table)}: "
        return [[f"{words}{_number(subject.mean[AGREEMENT])} (× 100)."]]
    user_sets = [name for name in tests if name not in (*TITLES, AVERAGE)]
    user_sets.sort(key=lambda name: name.startswith(RETRIEVAL))  # pairs are compared row by row
    main = next(name for name in (*user_sets, "stsb", *tests) if name in tests)
    return [
        [_sentence(table, subject, column), *_against(table, subject, column, differences)]
        for column in (main, AVERAGE)
        if column in subject.mean
    ]


def _sentence(table: Standings, subject: Standing, column: str) -> str:
    view = table.view
    role = ROLE_NAMES.get(str(subject.role), subject.role)
    subjects, verb = (f"{subject.n} {role}s", "score") if subject.n > 1 else (role, "scores")
    result = f"{subjects} {verb} {_number(subject.mean[column])}"
    if column == AVERAGE:
        return f"Averaged over {len(table.averaged)} sets, the {result}."
    aggregation = None if column.startswith(RETRIEVAL) else view.aggregation
    details = ", ".join(part for part in (aggregation, metric_of(table, column), describe_pooled(view.layers)) if part)
    return f"The {result} on {column} {view.split} ({details})."


def _number(value: Value) -> str:
    if value.n > 1:
        return f"{value.spread_text} on average"
    return f"{value.number} {value.interval}".rstrip()


def _against(
    table: Standings, subject: Standing, column: str, differences: Mapping[str, Mapping[str, Difference]]
) -> list[str]:
    """Return the words for the other roles that the paired intervals allow, else their values alone."""
    names: dict[str, Callable[[Value], str]] = {
        "member": _members,
        "soup": lambda value: f"the weight average ({value.number})",
        "greedy-soup": lambda value: f"the greedy weight average ({value.number})",
        "ensemble": lambda value: f"the ensemble ({value.number})",
        "backbone": lambda value: f"the starting model ({value.number})",
    }
    parts = []
    named = [other for other in table.lines if str(other.role).startswith(TEACHER) and column in other.mean]
    if named:
        best = str(max(named, key=lambda other: other.mean[column].value).role)
        teacher = f"the best teacher, {best.removeprefix(TEACHER)}" if len(named) > 1 else f"the {best}"
        names = {best: lambda value: f"{teacher} ({value.number})", **names}
    for role, name in names.items():
        if role == "ensemble" and _judge(table) != "the ensemble":
            continue  # the same model again
        other = table.first(role, column)
        if other is not None and role != subject.role:
            tested = differences.get(role, {}).get(column)
            text = name(other.mean[column])
            parts.append(tested.describe(text) if tested else f"beside {text}, not compared row by row")
    return parts


def _judge(table: Standings) -> str:
    """Return the words for the ensemble, which may be a single teacher."""
    members = [line.n for line in table.lines if str(line.role).startswith((TEACHER, "member"))]
    return "the teacher" if sum(members) == 1 else "the ensemble"


def _members(value: Value) -> str:
    if value.n == 1:
        return f"the member ({value.number})"
    return f"the members' mean {value.spread_text} (n={value.n})"
