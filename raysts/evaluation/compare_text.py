"""A comparison as people read it: a table, and what it shows in a sentence or two."""

from __future__ import annotations

from collections.abc import Sequence

from raysts.evaluation.compare import OVERALL, Row
from raysts.evaluation.paired import holm


def conclusion(a: str, b: str, rows: Sequence[Row], level: float = 0.05) -> str:
    """What the comparison shows, in a sentence or two: which system is better overall, or that neither is shown to be."""
    metric = "spearman" if any(row["metric"] == "spearman" for row in rows) else "accuracy"
    (whole,) = (row for row in rows if row["dataset"] == OVERALL and row["metric"] == metric)
    each = [row for row in rows if row["dataset"] != OVERALL and row["metric"] == metric]
    sets = f"the mean {metric} over {len(each)} sets" if len(each) > 1 else f"the {metric} on {each[0]['dataset']}"
    values = f"{100 * whole['a']:.2f} against {100 * whole['b']:.2f} (x100)"
    numbers = f"{sets} is {values}, a difference of {100 * whole['difference']:+.2f}"
    if whole["p"] is None:
        said = f"No interval was asked for (resamples 0), so nothing is concluded overall about {a} and {b}: {numbers}."
    else:
        interval = f"95 % interval {100 * whole['ci_low']:+.2f} to {100 * whole['ci_high']:+.2f}, p = {whole['p']:.3g}"
        # Of an interval and a p that disagree at the edge, the more careful one counts.
        shown = whole["p"] < level and not whole["ci_low"] <= 0 <= whole["ci_high"]
        better, worse = (a, b) if whole["difference"] > 0 else (b, a)
        verdict = f"{better} is better than {worse}" if shown else f"No difference is shown between {a} and {b}"
        said = f"{verdict}: {numbers} ({interval}, paired bootstrap)."
    tested = [row for row in each if row["test_p"] is not None]
    if tested:
        adjusted = holm([row["test_p"] for row in tested])
        sure = [row for row, p in zip(tested, adjusted, strict=True) if p < level]
        up = sum(row["difference"] > 0 for row in sure)
        test = "Williams'" if metric == "spearman" else "McNemar's"
        said += (
            f" Set by set ({test} test, p < {level:g} after Holm's correction): {a} is better on {up}, {b} on "
            f"{len(sure) - up}, neither on {len(tested) - len(sure)}."
        )
    return said


def format_comparison(a: str, b: str, rows: Sequence[Row]) -> str:
    """The rows as aligned plain text: values and differences times 100."""
    header = ["dataset", "metric", "n", "A", "B", "A - B", "95 % interval", "p", "test", "t (df)", "p of test"]
    lines = [header]
    for row in rows:
        interval = "" if row["ci_low"] is None else f"[{100 * row['ci_low']:+.2f}, {100 * row['ci_high']:+.2f}]"
        statistic = "" if row["test"] is None else f"{row['only_a']}:{row['only_b']}"
        statistic = f"{row['t']:+.2f} ({row['df']})" if row["t"] is not None else statistic
        lines.append(
            [row["dataset"], row["metric"], f"{row['n']:,}", *(_value(row, side) for side in "ab")]
            + [
                f"{100 * row['difference']:+.2f}",
                interval,
                _p(row["p"]),
                row["test"] or "",
                statistic,
                _p(row["test_p"]),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(
            v.ljust(w) if i in (0, 1, 8) else v.rjust(w) for i, (v, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    return "\n".join([f"A: {a}", f"B: {b}", "x100", text[0].rstrip(), "-" * len(text[0]), *map(str.rstrip, text[1:])])


def _value(row: Row, side: str) -> str:
    std = row[f"{side}_std"]
    return f"{100 * row[side]:.2f}" + ("" if std is None else f" ±{100 * std:.2f} ({row[f'{side}_models']})")


def _p(p: float | None) -> str:
    return "" if p is None else f"{p:.2g}" if p >= 1e-4 else "<1e-4"
