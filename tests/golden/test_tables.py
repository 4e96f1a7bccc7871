"""Tables and sentences of results, as the golden record has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from golden.golden import Golden
from report_samples import report_data, score_rows

from raysts.errors import InputError
from raysts.evaluation.compare import Difference, margin_sentence, margins
from raysts.evaluation.standings import format_results, main_standings
from raysts.recipes.names import RECIPES, SCALES, pipeline
from raysts.recipes.tree import leaves, to_plain
from raysts.report.scores import as_text, headline
from raysts.search.search import SEARCHES, find_search


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


def test_recipes_at_every_scale(golden: Golden) -> None:
    """Of each recipe what differs from those before it, or why it does not exist."""
    before: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for name in scaled(RECIPES):
        try:
            settings = leaves(to_plain(pipeline(name)))
        except InputError as error:
            found[name] = str(error)
            continue
        found[name] = {key: value for key, value in settings.items() if before.get(key, name) != value}
        before |= settings
    golden.check("recipes", found)


def test_searches_at_every_scale(golden: Golden) -> None:
    found: dict[str, Any] = {}
    for name in scaled(SEARCHES):
        try:
            search = find_search(name)
        except InputError as error:
            found[name] = str(error)
            continue
        settings = {
            key: getattr(search, key) for key in ("seeds", "num_samples", "keep", "by", "sampler", "cost", "race")
        }
        space = {key: dimension.text for key, dimension in search.space.items()}
        found[name] = settings | {"space": space, "recipe": search.pipeline.name}
    golden.check("searches", found)


def scaled(names: Iterable[str]) -> list[str]:
    return [*names, *(f"{name}@{scale}" for scale in SCALES for name in names)]
