"""Tables and sentences of results, as the golden record has them."""

from __future__ import annotations

from golden.golden import Golden
from report_samples import report_data, score_rows

from raysts.evaluation.compare import Difference, margin_sentence, margins
from raysts.evaluation.standings import format_results, main_standings
from raysts.report.scores import as_text, headline


def test_tables_of_results(golden: Golden) -> None:
    documents = {"dataset": "retrieval:docs", "aggregation": None, "metric": "ndcg@10", "value": 0.6, "n": 40}
    samples = {
        "several": [*report_data().rows, score_rows("student")[0] | documents],
        "student": score_rows("student"),
        "teacher": score_rows("teacher some/encoder"),
    }
    gaps = {"stsb": Difference(0.01, 0.004, 0.02), "sickr": Difference(-0.01, -0.02, 0.01)}
    for name, rows in samples.items():
        table = main_standings(rows, 1, ("mean", 1))
        assert table is not None
        texts = [as_text(table, 60), as_text(table, 200), format_results(rows), format_results(rows, brief=True)]
        words = ["".join(sentence) for sentence in headline(table, {"backbone": gaps, "member": gaps})]
        golden.check(f"pages/tables-{name}", [*"\n\n".join(texts).splitlines(), *words])


def test_differences_in_words(golden: Golden) -> None:
    sets = (("stsb", "spearman"), ("sts12", "spearman"), ("docs", "ndcg@10"), ("overall", "spearman"))
    found = {}
    for value, half in ((0.02, 0.01), (0.005, 0.01), (-0.02, 0.01), (-0.004, 0.003), (-0.004, 0.02), (0.0, 0.0)):
        gap = {"difference": value, "ci_low": value - half, "ci_high": value + half, "n": 1000}
        rows = [gap | {"dataset": name, "metric": metric} for name, metric in sets]
        words = [margin_sentence("A", "B", row) for row in margins(rows, 0.01)]
        found[f"{value} +- {half}"] = [Difference.of(gap).describe("B"), *words]
    golden.check("pages/differences", found)
