"""The headline of a run's page: the result in the words that paired intervals allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from raysts.evaluation.compare import Difference
from raysts.evaluation.standings import AGREEMENT, AVERAGE, TEACHER, Standing, Standings, Value, pooled
from raysts.pipeline.verdict import ROLE_NAMES, TITLES
from raysts.report.run.summary import RETRIEVAL, metric_of


def headline(table: Standings | None, differences: Mapping[str, Mapping[str, Difference]]) -> list[str]:
    """Return the result in words: a sentence on the main set, and perhaps one on the average.

    ``differences``: by role and set, how far what comes out is above the others (:func:`raysts.pipeline.verdict.Verdict`).
    """
    roles = ("student", "soup", "greedy-soup", "ensemble", "member", "baseline", "backbone")
    subject = next((standing for role in roles if table and (standing := table.first(role))), None)
    if table is None or subject is None:
        return ["There is no result on a test set yet."]
    tests = [name for name in table.columns if name in subject.mean and name != AGREEMENT]
    if not tests:
        return [
            f"There are no scored pairs to test on. Agreement of the {subject.role} with {_judge(table)}: "
            f"{_number(subject.mean[AGREEMENT])} (× 100)."
        ]
    own = sorted(set(tests) - {*TITLES, AVERAGE}, key=lambda name: (name.startswith(RETRIEVAL), tests.index(name)))
    main = next(name for name in (*own, "stsb", *tests) if name in tests)  # of pairs, which are compared row by row
    return [_sentence(table, subject, column, differences) for column in (main, AVERAGE) if column in subject.mean]


def _sentence(
    table: Standings, subject: Standing, column: str, differences: Mapping[str, Mapping[str, Difference]]
) -> str:
    view = table.view
    role = ROLE_NAMES.get(str(subject.role), subject.role)
    who, verb = (f"{subject.n} {role}s", "score") if subject.n > 1 else (role, "scores")
    result = f"{who} {verb} {_number(subject.mean[column])}"
    against = _against(table, subject, column, differences)
    if column == AVERAGE:
        return f"Averaged over {len(table.averaged)} sets, the {result}{against}."
    aggregation = None if column.startswith(RETRIEVAL) else view.aggregation
    how = ", ".join(part for part in (aggregation, metric_of(table, column), pooled(view.layers)) if part)
    return f"The {result} on {column} {view.split} ({how}){against}."


def _number(value: Value) -> str:
    return f"{value.with_spread} on average" if value.n > 1 else f"{value.number} {value.interval}".rstrip()


def _against(
    table: Standings, subject: Standing, column: str, differences: Mapping[str, Mapping[str, Difference]]
) -> str:
    """Return the words for the other roles that the paired intervals allow; values alone without."""
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
        who = f"the best teacher, {best.removeprefix(TEACHER)}" if len(named) > 1 else f"the {best}"
        names = {best: lambda value: f"{who} ({value.number})", **names}
    for role, name in names.items():
        other = table.first(role, column)
        again = role == "ensemble" and _judge(table) != "the ensemble"
        if other is not None and role != subject.role and not again:
            tested = differences.get(role, {}).get(column)
            said = name(other.mean[column])
            parts.append(tested.over(said) if tested else f"beside {said}, not compared row by row")
    *first, last = parts or [""]
    return f": {' and '.join(filter(None, [', '.join(first), last]))}" if last else ""


def _judge(table: Standings) -> str:
    """Return the words for the ensemble, which may be a single teacher."""
    members = [line.n for line in table.lines if str(line.role).startswith((TEACHER, "member"))]
    return "the teacher" if sum(members) == 1 else "the ensemble"


def _members(value: Value) -> str:
    return f"the members' mean {value.with_spread} (n={value.n})" if value.n > 1 else f"the member ({value.number})"
