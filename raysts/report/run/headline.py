"""The result in words: what was measured, against what, and nothing that was not."""

from __future__ import annotations

from collections.abc import Callable

from raysts.report.html import hundredfold, with_spread
from raysts.report.run.scores import AVERAGE, Standing, Table, Value, pooled

_SUBJECTS = ("student", "ensemble", "member", "baseline", "backbone")


def headline(table: Table | None) -> list[str]:
    """One sentence on the main data set, and one on the average where there is one; for no result, that."""
    if table is None or not table.standings:
        return ["There is no result on a test set yet."]
    for role in _SUBJECTS:
        subject = table.first(role)
        if subject is None:
            continue
        main = "stsb" if "stsb" in subject.mean else next(name for name in table.columns if name in subject.mean)
        sentences = [_sentence(table, subject, main)]
        if AVERAGE in subject.mean:
            sentences.append(_sentence(table, subject, AVERAGE))
        return sentences
    return ["There is no result on a test set yet."]


def _sentence(table: Table, subject: Standing, column: str) -> str:
    view, value = table.view, subject.mean[column]
    if column == AVERAGE:
        who = _who(subject)
        return (
            f"Averaged over {len(table.averaged)} sets, {who[0].lower()}{who[1:]} {_verb(subject)} {_number(value)}"
            f"{_against(table, subject, column)}."
        )
    how = [view.aggregation, view.metric.capitalize(), pooled(view.layers)]
    how_text = ", ".join(part for part in how if part)
    return (
        f"{_who(subject)} {_verb(subject)} {_number(value)} on {column} {view.split} ({how_text})"
        f"{_against(table, subject, column)}."
    )


def _who(subject: Standing) -> str:
    return f"The {subject.n} {subject.role}s" if subject.n > 1 else f"The {subject.role}"


def _verb(subject: Standing) -> str:
    return "score" if subject.n > 1 else "scores"


def _number(value: Value) -> str:
    if value.n > 1:
        return f"{with_spread(value.value, value.std)} on average"
    return f"{hundredfold(value.value)} {value.interval}".rstrip()


def _against(table: Table, subject: Standing, column: str) -> str:
    own = subject.mean[column].value
    names: dict[str, Callable[[Value], str]] = {
        "member": _members,
        "ensemble": lambda value: f"the ensemble ({hundredfold(value.value)})",
        "backbone": lambda value: f"the backbone ({hundredfold(value.value)})",
    }
    parts = []
    for role, name in names.items():
        other = table.first(role, column)
        if other is not None and role != subject.role:
            parts.append(f"{difference(own, other.mean[column].value)} {name(other.mean[column])}")
    if not parts:
        return ""
    return ": " + (parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1])


def _members(value: Value) -> str:
    if value.n == 1:
        return f"the member ({hundredfold(value.value)})"
    return f"the members' mean {with_spread(value.value, value.std)} (n={value.n})"


def difference(a: float, b: float) -> str:
    """``2.10 above``, ``0.30 below``, or ``equal to`` as far as two decimals show."""
    points = round(100 * (a - b), 2)
    if points == 0:
        return "equal to"
    return f"{abs(points):.2f} {'above' if points > 0 else 'below'}"
