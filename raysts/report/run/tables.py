"""Tables of scores and of time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from raysts.models.layers import as_layers, in_words
from raysts.report.charts.markup import Markup, hundredfold, join, quantity, tag
from raysts.report.run.data import Node, Run, failed
from raysts.report.run.scores import Standing, Table, Value, View
from raysts.training.monitor import duration


def scores_table(table: Table) -> Markup:
    """Systems x data sets, values times 100."""
    systems = {standing.system for standing in table.standings if standing.role != "backbone"}
    rows: list[Markup] = []
    for standing in table.standings:
        rows.append(_standing_row(standing, table, len(systems) > 1))
        if standing.role in ("member", "student") and standing.n > 1:
            note = "chosen on this very test set, per set: an upper bound"
            rows.append(_row(f"Best {standing.role}", note, table.columns, standing.best, "best"))
    head = [tag("th", "System", scope="col")]
    for column in table.columns:
        size = tag("small", f"n = {table.sizes[column]:,}") if column in table.sizes else None
        head.append(tag("th", column, size, scope="col", class_="number"))
    return _table(describe(table.view), tag("tr", *head), rows)


def describe(view: View) -> str:
    """A view in words, as a table's caption."""
    how = {"all": "all subsets concatenated", "mean": "mean of the subsets", "wmean": "subsets weighted by their pairs"}
    names = {"auc_pr": "PR-AUC", "average_precision": "Average precision"}
    parts = [
        f"{names.get(view.metric, view.metric.capitalize())} × 100 on {view.split}",
        how.get(view.aggregation or "", view.aggregation),
        pooled(view.layers),
        "rows that do not occur in the training text" if view.rows == "clean" else None,
    ]
    return ", ".join(part for part in parts if part)


def pooled(layers: str | None) -> str:
    """How many layers were pooled, in words; empty when that is not recorded."""
    if layers is None:
        return ""
    return f"{in_words(as_layers(layers))} pooled"


def _standing_row(standing: Standing, table: Table, name_system: bool) -> Markup:
    several = standing.n > 1
    label = f"{standing.role.capitalize()}{'s' if several else ''}"
    if several:
        label += f", mean ± std (n = {standing.n})"
    remarks = [standing.system if name_system else "", *standing.remarks]
    if sum(other.role == standing.role and other.system == standing.system for other in table.standings) > 1:
        remarks.insert(1, f"similarity {standing.similarity}")
    note = "; ".join(remark for remark in remarks if remark)
    return _row(label, note, table.columns, standing.mean, standing.role, standing.n)


def _row(label: str, note: str, columns: Sequence[str], values: Mapping[str, Value], kind: str, n: int = 1) -> Markup:
    head = tag("th", label, tag("small", note) if note else None, scope="row")
    cells = (tag("td", *_cell(values.get(column), n), class_="number") for column in columns)
    return tag("tr", head, *cells, class_=f"role-{kind}")


def _cell(value: Value | None, n: int) -> list[object]:
    if value is None:
        return [""]
    spread = None
    if value.std is not None:
        spread = f"± {hundredfold(value.std)}"
    elif value.low is not None and value.high is not None:
        spread = f"[{hundredfold(value.low)}, {hundredfold(value.high)}]"
    fewer = f" (n = {value.n})" if value.n != n else ""
    return [hundredfold(value.value), tag("small", (spread or "") + fewer) if spread or fewer else None]


def time_table(runs: Sequence[Run]) -> Markup:
    """Time and throughput of each stage, means over its runs."""
    stages: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        stages.setdefault((run["stage"], run["role"]), []).append(run)
    rows = [_stage_row(stage, role, group) for (stage, role), group in stages.items()]
    numbers = ["Examples / s", "Steps", "Training", "Start-up"]
    head = _head(["Stage", "Runs", *numbers, "Where", "Device", "Threads", "Precision"], numbers)
    return _table("Training: means over the runs of a stage; examples per second while stepping", head, rows)


def _stage_row(stage: str, role: str, runs: Sequence[Run]) -> Markup:
    records = [run["record"] for run in runs]
    layouts = [record.get("layout") or {} for record in records]
    timings = [record.get("timings") or {} for record in records]
    bad = sum(map(failed, runs))
    done = sum(record.get("status") == "done" for record in records)
    count = f"{done} of {len(runs)} {role}{'s' if len(runs) > 1 else ''}" + (f", {bad} failed" if bad else "")
    threads = [
        f"{layout['threads']}" + (f" × {layout['world_size']} workers" if layout.get("world_size", 1) > 1 else "")
        for layout in layouts
        if layout.get("threads") is not None
    ]
    cells: list[tuple[str, bool]] = [
        (count, False),
        (quantity(_mean(throughput(run["metrics"]) for run in runs)), True),
        (quantity(_mean(_steps(run) for run in runs)), True),
        (duration(_mean(timing.get("train_seconds") for timing in timings)), True),
        (duration(_mean(timing.get("startup_seconds") for timing in timings)), True),
        (_distinct(record.get("where") for record in records), False),
        (_distinct(record.get("device") for record in records), False),
        (_distinct(threads), False),
        (_distinct(layout.get("precision") for layout in layouts), False),
    ]
    return tag(
        "tr",
        tag("th", stage, scope="row"),
        *(tag("td", text, class_="number" if number else None) for text, number in cells),
    )


def nodes_table(nodes: Sequence[Node]) -> Markup | None:
    """Time of the nodes that do not train; None when there are none."""
    others = [node for node in nodes if node["kind"] != "train"]
    if not others:
        return None
    rows = [
        tag(
            "tr",
            tag("th", node["title"], scope="row"),
            tag("td", node["kind"]),
            tag("td", duration(node["seconds"]), class_="number"),
            tag("td", node["status"]),
            tag("td", node["detail"]),
        )
        for node in others
    ]
    return _table("Everything else", _head(["Node", "Kind", "Time", "Status", "What"], numbers=["Time"]), rows)


def throughput(metrics: Sequence[Mapping[str, Any]]) -> float | None:
    """Examples per second over all logged steps (time adds up, rates do not); None when nothing was logged."""
    steps = seconds = 0.0
    before = 0
    for line in metrics:
        rate = line.get("examples_per_second")
        if rate is not None and rate > 0:
            steps += line["step"] - before
            seconds += (line["step"] - before) / rate
        before = line["step"]
    return steps / seconds if seconds else None


def _steps(run: Run) -> int | None:
    return run["record"].get("steps") or (run["metrics"][-1]["step"] if run["metrics"] else None)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _distinct(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None)) or "–"


def _head(heads: Sequence[str], numbers: Sequence[str] = ()) -> Markup:
    return tag("tr", *(tag("th", head, scope="col", class_="number" if head in numbers else None) for head in heads))


def _table(caption: str, head: Markup, rows: Sequence[Markup]) -> Markup:
    table = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", join(*rows)))
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)


def facts_table(caption: str, facts: Mapping[str, str]) -> Markup:
    """Names and values."""
    rows = [tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in facts.items()]
    return _table(caption, _head(["What", "Value"]), rows)
