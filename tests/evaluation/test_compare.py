from typing import Any

import numpy as np
import pytest
from evaluation_fakes import accurate, correlated
from scipy import stats

from raysts.errors import InputError
from raysts.evaluation import compare
from raysts.evaluation.compare import OVERALL, Difference, compare_systems, conclusion, format_comparison, margins
from raysts.evaluation.scores import RowScores, result_rows
from raysts.evaluation.statistics import mcnemar, williams

N = 300


def outcome(name: str, noise: float, seed: int, n: int = N, sha256: str = "s") -> RowScores:
    """Similarities whose errors are ``noise`` large, of a set whose gold scores depend on its name alone."""
    gold = np.random.default_rng(len(name) + n).uniform(0, 5, n).round(1)
    values = gold + noise * np.random.default_rng(seed).normal(size=n)
    return correlated(name, values, gold, sha256)


def right(name: str, share: float, seed: int, n: int = N) -> RowScores:
    return accurate(name, np.random.default_rng(seed).random(n) < share)


def by_key(rows: list[dict]) -> dict[tuple[str, str], dict]:
    return {(row["dataset"], row["metric"]): row for row in rows}


def compared(**columns: Any) -> dict[str, Any]:
    """A row of two models on sts12: 70 against 65, [1, 9] above it, p .01 of the bootstrap and of Williams' test."""
    values = {"a": 0.7, "b": 0.65, "a_models": 1, "b_models": 1, "difference": 0.05, "ci_low": 0.01, "ci_high": 0.09}
    tests = {"p": 0.01, "test": "williams", "t": 2.5, "df": 3105, "test_p": 0.01}
    shared = {"dataset": "sts12", "metric": "spearman", "n": 3108, **values, **tests}
    return dict.fromkeys(compare.COLUMNS) | shared | columns


def test_correlations_against_a_plain_bootstrap() -> None:
    a, b = outcome("sts12", 1.0, 1), outcome("sts12", 2.0, 2)
    rows = by_key(compare_systems([{"sts12": a}], [{"sts12": b}], 300))
    found = rows["sts12", "spearman"]
    assert list(found) == list(compare.COLUMNS)
    of_a, of_b = (stats.spearmanr(o.values, o.gold).statistic for o in (a, b))
    assert (found["a"], found["b"], found["difference"]) == pytest.approx((of_a, of_b, of_a - of_b), abs=1e-12)
    rows_RN = np.random.default_rng(7).integers(0, N, (2000, N))
    ranked = [stats.rankdata(values[rows_RN], axis=1) for values in (a.values, b.values, a.gold)]
    in_a, in_b, in_gold = (stats.zscore(ranks, axis=1) for ranks in ranked)
    differences = (in_a * in_gold - in_b * in_gold).mean(axis=1)
    assert (found["ci_low"], found["ci_high"]) == pytest.approx(np.quantile(differences, [0.025, 0.975]), abs=0.015)
    assert found["p"] == pytest.approx(2 / 301), "no resample has B in front"
    expected = williams(found["a"], found["b"], stats.spearmanr(a.values, b.values).statistic, N)
    assert expected is not None and found["test"] == "williams"
    assert (found["t"], found["df"], found["test_p"]) == pytest.approx(tuple(expected)) and a.gold is not None
    perfect = correlated("sts12", a.gold, a.gold)
    row = by_key(compare_systems([{"sts12": a}], [{"sts12": perfect}], 200))["sts12", "pearson"]
    (own,) = (r for r in result_rows(a, 200) if r["metric"] == "pearson")
    ends = (own["ci_low"] - 1, own["ci_high"] - 1)
    assert (row["ci_low"], row["ci_high"]) == pytest.approx(ends, abs=1e-12), "resamples are those of an evaluation"
    assert rows["sts12", "pearson"]["a"] == pytest.approx(stats.pearsonr(a.values, a.gold).statistic)
    assert rows[OVERALL, "spearman"]["difference"] == found["difference"] and rows[OVERALL, "spearman"]["test"] is None


def test_accuracies() -> None:
    a, b = right("snli-2way", 0.8, 1), right("snli-2way", 0.6, 2)
    (row, whole) = compare_systems([{"snli-2way": a}], [{"snli-2way": b}], 400)
    assert (row["metric"], row["test"], row["aggregation"], row["t"]) == ("accuracy", "mcnemar", None, None)
    assert (row["a"], row["b"]) == (a.values.mean(), b.values.mean())
    only_a, only_b = int(((a.values == 1) & (b.values == 0)).sum()), int(((a.values == 0) & (b.values == 1)).sum())
    assert (row["only_a"], row["only_b"], row["test_p"]) == (only_a, only_b, mcnemar(only_a, only_b))
    variance = (only_a + only_b - (only_a - only_b) ** 2 / N) / N**2
    assert row["ci_high"] - row["ci_low"] == pytest.approx(2 * 1.96 * variance**0.5, rel=0.15)
    assert (whole["dataset"], whole["aggregation"]) == (OVERALL, None)
    assert conclusion("x", "y", [row, whole]).startswith("x is better than y: the accuracy on snli-2way is")


def test_overall_is_the_mean_over_sets_and_leaves_a_set_inside_another_out() -> None:
    names = ("sts12", "stsb", "sickr", "sickr-all")
    sizes = {"sts12": 100, "stsb": 200, "sickr": 60, "sickr-all": 90}
    a = {name: outcome(name, 1.0, i, sizes[name]) for i, name in enumerate(names, 1)}
    b = {name: outcome(name, 1.2, i, sizes[name]) for i, name in enumerate(names, 9)}
    rows = by_key(compare_systems([a], [b], 200))
    whole = rows[OVERALL, "spearman"]
    assert whole["a"] == pytest.approx(np.mean([rows[name, "spearman"]["a"] for name in names[:3]]))
    assert (whole["n"], whole["aggregation"]) == (360, "all")
    assert "the mean spearman over 3 sets is" in conclusion("x", "y", [*rows.values()])
    assert [(row["unit"], row["n"]) for row in margins([*rows.values()], 0.02, draw_sets=True)][-1] == ("sets", 3)
    inner = compare_systems(*([{name: scores[name] for name in names[2:]}] for scores in (a, b)), 20)
    assert "the spearman on sickr is" in conclusion("x", "y", inner)
    # independent sets: the variances add up
    widths = [rows[name, "spearman"]["ci_high"] - rows[name, "spearman"]["ci_low"] for name in names[:3]]
    assert whole["ci_high"] - whole["ci_low"] == pytest.approx(np.linalg.norm(widths) / 3, rel=0.3)
    only = compare_systems([{"sickr-all": a["sickr-all"]}], [{"sickr-all": b["sickr-all"]}], 20)
    assert [row["dataset"] for row in only] == ["sickr-all", "sickr-all", OVERALL, OVERALL]


def test_several_models_have_mean_deviation_and_a_wider_interval() -> None:
    good, bad, other = outcome("sts12", 1.0, 1), outcome("sts12", 4.0, 2), outcome("sts12", 2.0, 3)
    both = by_key(compare_systems([{"sts12": good}, {"sts12": bad}], [{"sts12": other}], 300))["sts12", "spearman"]
    values = [stats.spearmanr(o.values, o.gold).statistic for o in (good, bad)]
    assert both["a"] == pytest.approx(np.mean(values)) and both["a_std"] == pytest.approx(np.std(values, ddof=1))
    assert (both["a_models"], both["b_models"], both["b_std"], both["test"]) == (2, 1, None, None)
    # half of the draws of two models are one model twice
    assert both["ci_low"] < values[1] - both["b"] + 0.05 and both["ci_high"] > values[0] - both["b"] - 0.05
    assert both["p"] > 0.2


def test_equal_systems_show_no_difference_and_nothing_is_tested_without_resamples() -> None:
    a = {"sts12": outcome("sts12", 1.0, 1), "snli-2way": right("snli-2way", 0.7, 3)}
    rows = compare_systems([a], [a], 50)
    for row in rows:
        assert row["difference"] == row["ci_low"] == row["ci_high"] == 0 and row["p"] == 1
        assert row["test_p"] in (None, 1.0)
    said = conclusion("x", "y", rows)
    assert said.startswith("No difference is shown between x and y: the spearman on sts12")
    assert "x is better on 0, y on 0, neither on 1" in said
    without = compare_systems([a], [a], 0)
    assert {row["p"] for row in without} == {row["ci_low"] for row in without} == {None}
    assert "nothing is concluded" in conclusion("x", "y", without) and "sts12" in format_comparison("x", "y", without)
    other = {"sts12": outcome("sts12", 1.0, 1, sha256="t")}
    with pytest.raises(InputError, match="sts12: the two systems were measured on different rows"):
        compare_systems([{"sts12": a["sts12"]}], [other], 10)


def test_the_table_shows_every_row() -> None:
    """With the columns of tests, if there is room and some row has one: several models have none."""
    accuracy = {"dataset": "snli-2way", "metric": "accuracy", "n": 9824, "test": "mcnemar", "t": None, "df": None}
    rows = [compared(), compared(**accuracy, only_a=100, only_b=198, p=1e-4, test_p=9e-5)]
    lines = [
        "dataset    metric        n      A      B  A - B   95 % interval       p  test            t (df)  p of test",
        "-" * 106,
        "sts12      spearman  3,108  70.00  65.00  +5.00  [+1.00, +9.00]    0.01  williams  +2.50 (3105)       0.01",
        "snli-2way  accuracy  9,824  70.00  65.00  +5.00  [+1.00, +9.00]  0.0001  mcnemar        100:198      <1e-4",
    ]
    assert format_comparison("x", "y", rows, width=106) == "\n".join(["A: x", "B: y", "x100", *lines])
    short = [line[:71] for line in lines]
    assert format_comparison("x", "y", rows, width=105).splitlines()[3:] == short
    several = compared(b_models=2, b_std=0.0123, test=None, t=None, df=None, test_p=None)
    assert format_comparison("x", "y", [several]).splitlines()[3:] == [
        "dataset  metric        n      A                B  A - B   95 % interval     p",
        "-" * 77,
        "sts12    spearman  3,108  70.00  65.00 ±1.23 (2)  +5.00  [+1.00, +9.00]  0.01",
    ]


def test_of_an_interval_and_a_p_that_disagree_the_more_careful_one_counts() -> None:
    def said(**columns: Any) -> str:
        return conclusion("x", "y", [compared(**columns), compared(**columns, dataset=OVERALL)])

    numbers = "the spearman on sts12 is 70.00 against 65.00 (x100), a difference of +5.00"
    assert said() == (
        f"x is better than y: {numbers} (95 % interval +1.00 to +9.00, p = 0.01, paired bootstrap). Set by set (Williams' "
        "test, p < 0.05 after Holm's correction): x is better on 1, y on 0, neither on 0."
    )
    for careful in ({"p": 0.05}, {"ci_low": 0.0}, {"ci_low": -0.09, "ci_high": 0.0}):
        assert said(**careful).startswith("No difference is shown between x and y: the spearman")
    assert said(test_p=0.05).endswith("x is better on 0, y on 0, neither on 1.")


@pytest.mark.parametrize("sign", [1, -1])
def test_a_difference_that_rounds_to_zero_has_one_look(sign: int) -> None:
    gap = Difference(sign * 1e-6, -2e-6, 2e-6)
    assert gap.describe("it") == "not shown to differ from it (+0.00 [0.00, 0.00])"
    assert Difference(sign * 0.01, *sorted([0.0, sign * 0.02])).sign == 0, "an interval that ends at 0 shows nothing"
    assert Difference(0.01, None, None).describe("it") == "with no interval that would tell it from it (+1.00)"
    values = {"difference": gap.value, "ci_low": gap.low, "ci_high": gap.high}
    rows = [compared(**values, dataset=name) for name in ("sts12", OVERALL)]
    assert "a difference of +0.00 (95 % interval +0.00 to +0.00, p" in conclusion("A", "B", rows)
    assert " +0.00  [+0.00, +0.00]" in format_comparison("A", "B", rows)
    assert "A is 0.00 points above B" in compare.margin_sentence("A", "B", margins(rows, 0.02)[0])


def test_spread_of_models() -> None:
    """Standard deviations of the means over the sets; the interval is that of other rows, with the same models."""
    far, near = (
        [{name: outcome(name, 1 + width * i, 10 * i + len(name)) for name in ("sts12", "stsb")} for i in range(4)]
        for width in (1.0, 0.01)
    )
    found = compare.compare_spread(far, near, 200)
    values = [
        [[stats.spearmanr(o.values, o.gold).statistic for o in model.values()] for model in m] for m in (far, near)
    ]
    of_a, of_b = (np.std(np.mean(side, axis=1), ddof=1) for side in values)
    assert (found["a"], found["b"], found["difference"]) == pytest.approx((of_a, of_b, of_a - of_b))
    assert 0 < found["ci_low"] < found["difference"] < found["ci_high"] and found["p"] == pytest.approx(2 / 201)
    assert compare.compare_spread(near, far, 0)["ci_low"] is None
    with pytest.raises(InputError, match="different rows"):
        compare.compare_spread([{"stsb": outcome("stsb", 1, 1, sha256="x")}] * 2, [{"stsb": near[0]["stsb"]}] * 2, 0)


def test_a_margin_is_kept_broken_or_not_shown() -> None:
    gaps = [Difference(-0.012, -0.019, -0.005), Difference(-0.06, -0.09, -0.03), Difference(-0.01, -0.03, 0.01)]
    assert [gap.within(0.02) for gap in gaps] == [True, False, None]
    ends = [Difference(-0.01, -0.02, 0.01), Difference(-0.03, -0.04, -0.02)]
    assert [gap.within(0.02) for gap in ends] == [None, None], "an interval that ends at the margin shows nothing"
    assert Difference(-0.01, None, None).within(0.02) is Difference(-0.01, None, None).rows_needed(0.02, 100) is None
    assert gaps[1].rows_needed(0.02, 100) is None, "below the margin: more rows would only show that"
    assert Difference(-0.02, -0.03, -0.01).rows_needed(0.02, 100) is None, "nor at the margin itself"
    error = 0.04 / 2 / 1.959964
    assert gaps[2].rows_needed(0.02, 300) == pytest.approx(300 * ((1.959964 + 0.841621) * error / 0.01) ** 2, abs=1)
    alone = [compared(metric="ndcg@10", dataset=name) for name in ("x", OVERALL)]
    assert [row["unit"] for row in margins(alone, 0.02)] == ["queries"], "the mean over one set says nothing more"


def test_drawn_sets_widen_the_interval_of_their_mean() -> None:
    """Two sets that disagree: the next set may be like either."""
    names = ("sts12", "stsb")
    a = {"sts12": outcome("sts12", 0.2, 1), "stsb": outcome("stsb", 3.0, 2)}
    b = {"sts12": outcome("sts12", 3.0, 3), "stsb": outcome("stsb", 0.2, 4)}
    rows, drawn = (compare_systems([a], [b], 400, ("spearman",), draw_sets=draw) for draw in (False, True))
    assert "A is better on 1, B on 1, neither on 0" in conclusion("A", "B", rows)
    assert rows[:2] == drawn[:2] and rows[2]["difference"] == drawn[2]["difference"]
    assert drawn[2]["ci_low"] < rows[2]["ci_low"] < rows[2]["ci_high"] < drawn[2]["ci_high"]
    low, high = sorted(rows[i]["difference"] for i in range(2))
    assert drawn[2]["ci_low"] == pytest.approx(low, abs=0.1) and drawn[2]["ci_high"] == pytest.approx(high, abs=0.1)
    decided = margins(drawn, 0.02, draw_sets=True)
    assert [(row["dataset"], row["unit"], row["n"]) for row in decided[-1:]] == [(OVERALL, "sets", len(names))]
