"""What is delivered: its card, and that no sentence says more than the paired interval holds."""

from __future__ import annotations

import ast
import re
from typing import Any

import numpy as np
import pytest
import yaml
from evaluation_fakes import correlated
from report_samples import exact
from scipy import stats

from raysts.evaluation.compare import Difference, difference
from raysts.evaluation.scores import RowScores
from raysts.evaluation.standings import standings, views
from raysts.evaluation.statistics import resample_set
from raysts.pipeline.deliver import render
from raysts.pipeline.verdict import Delivered
from raysts.report.scores import headline
from raysts.schema import RESULTS

RESAMPLES = 100
ROLES = ("member", "ensemble", "backbone")


def _scores(values: np.ndarray, gold: np.ndarray) -> dict[str, RowScores]:
    return {"stsb": correlated("stsb", values, gold)}


def _interval(a: np.ndarray, b: np.ndarray, gold: np.ndarray) -> tuple[float, float]:
    """The paired 95 % interval of the difference of two rank correlations: of the rows that were drawn, ranked by scipy."""
    counts_RN = resample_set("stsb/test/all", len(gold), RESAMPLES).T
    rows_RN = np.stack([np.repeat(np.arange(len(gold)), counts) for counts in counts_RN])
    of_a, of_b, of_gold = (stats.zscore(stats.rankdata(values[rows_RN], axis=1), axis=1) for values in (a, b, gold))
    low, high = np.quantile((of_a * of_gold - of_b * of_gold).mean(axis=1), [0.025, 0.975])
    return low, high


def test_no_sentence_claims_what_the_paired_interval_does_not_hold() -> None:
    """40 outcomes: what comes out is closer to the gold scores than the other, farther from them, or neither."""
    said_of: dict[int, int] = {-1: 0, 0: 0, 1: 0}
    for number in range(40):
        dice = np.random.default_rng(number)
        gold = dice.normal(size=int(dice.integers(30, 120)))
        common = dice.normal(size=len(gold))
        student, other = (gold + common + dice.normal(0, dice.choice([0.2, 0.5, 1.5]), len(gold)) for _ in range(2))
        low, high = _interval(student, other, gold)
        shown = 1 if low > 0 else -1 if high < 0 else 0
        said_of[shown] += 1
        tested = difference([_scores(student, gold)], [_scores(other, gold)], ["stsb"], RESAMPLES)
        assert (tested.low, tested.high) == pytest.approx((low, high), abs=1e-9)
        known = gap(tested.value, tested.low, tested.high)
        sentence = Delivered(what="student", layers=1, by="system", beats_input=shown > 0, **known).sentence
        assert ("is better than the starting model by" in sentence) == (shown > 0)
        assert ("The starting model is better: use it, or train" in sentence and "below it" in sentence) == (shown < 0)
        assert ("No difference is shown" in sentence) == (shown == 0)
        role = ROLES[number % 3]
        rows = exact("student", 0.7 + tested.value) + exact(role, 0.7, 0 if role == "member" else None)
        ((_, said),) = headline(standings(rows, views(rows, 1)[0]), {role: {"stsb": tested}})
        assert (" above the " in said) == (shown > 0) and (" below the " in said) == (shown < 0)
        assert ("not shown to differ from the " in said) == (shown == 0)
        assert not any(word in f"{sentence} {said}" for word in (" best", "worse", "equal", "improve"))
    assert min(said_of.values()) > 3, said_of
    without_interval = Difference(0.2, None, None).describe("the backbone")
    assert "above" not in without_interval and "no interval" in without_interval


def gap(value: float, low: float | None = None, high: float | None = None, on: str = "stsb") -> dict[str, Any]:
    return {"difference": value, "ci_low": low, "ci_high": high, "on": on}


def below(value: float, low: float, high: float, within: bool | None = None) -> dict[str, Any]:
    """The best teacher of a student, and whether the student is within a point of it."""
    best = {"model": "minilm", "value": 0.931, "delivered": 0.667, "n": 100, **gap(value, low, high, "faq")}
    return {"margin": 0.01, "within": within, "reference": best}


UNTESTED = "The student is delivered. No test set compares it with the starting model; --test NAME=FILE gives one."


@pytest.mark.parametrize(
    ("what", "known", "expected"),
    [
        ("soup", gap(-0.016, -0.02, -0.01, "sts12"),
         "The starting model is better: use it, or train with more text or steps. The weight average is 1.60 [1.00, 2.00] below "
         "it on STS12 test."),
        ("member", gap(0.0013, -0.004, 0.0066),
         "No difference is shown between the member and the starting model: +0.13 [-0.40, 0.66] on STS-B test."),
        ("backbone", {"by": "stsb-dev", **gap(0.0, 0.0, 0.0)},
         "The starting model is delivered: no trained model scores higher on stsb-dev."),
        ("student", gap(0.3),
         "The student differs from the starting model by +30.00 on STS-B test. Without an interval (evaluation.resamples=0) "
         "nothing is concluded from it."),
        ("student", {**gap(0.2, 0.1, 0.3, "faq"), **below(-0.264, -0.3, -0.2, within=False)},
         "The student is better than the starting model by 20.00 [10.00, 30.00] on faq test. It is more than 1.00 below the "
         "teacher minilm on faq test: -26.40 [-30.00, -20.00]. The teacher still scores higher: 93.10 against 66.70. More text "
         "or more steps bring the student nearer."),
        ("student", below(0.001, -0.005, 0.006, within=True),
         f"{UNTESTED} It is not more than 1.00 below the teacher minilm on faq test: +0.10 [-0.50, 0.60]."),
        ("student", below(0.0, -0.02, 0.02),
         f"{UNTESTED} Nothing shows whether it is more than 1.00 below the teacher minilm on faq test: +0.00 [-2.00, 2.00]. The "
         f"test has 100 rows; about 818 would show it in 80 of 100 tests."),
        ("member", {"teacher": "minilm", **gap(0.0, -0.1, 0.1, "faq")},
         "No difference is shown between the teacher minilm and the starting model: +0.00 [-10.00, 10.00] on faq test."),
    ],
)  # fmt: skip
def test_the_sentence(what: str, known: dict[str, Any], expected: str) -> None:
    delivered = Delivered(**({"what": what, "layers": 1, "by": "system"} | known))
    assert delivered.sentence == expected
    few_have = {"agreement", "judge", "teacher", "reference"} - known.keys()
    assert delivered.as_plain().keys() == {*Delivered.__slots__} - few_have


# -- the card ------------------------------------------------------------------------------------------------------------


def row(dataset: str, value: float, **columns: Any) -> dict[str, Any]:
    given = {
        "dataset": dataset, "value": value, "metric": "spearman", "aggregation": "all", "split": "test", "rows": "all",
        "layers": "1", "similarity": "cosine", "ci_low": value - 0.01, "ci_high": value + 0.01, "n": 1379,
    }  # fmt: skip
    return dict.fromkeys(RESULTS.names) | given | columns


def card(**changes: Any) -> str:
    given: dict[str, Any] = {
        "name": "quickstart", "path": "models/my student", "system": "nli-ct-sed", "role": "student", "members": 4,
        "taught": "mean embeddings of 4 members",
        "backbone": "tiny", "dimension": 128, "max_length": 40, "pooling": "mean", "layers": 1,
        "data": [{"stage": "nli", "table": "nli/train", "rows": 12_000, "sha256": "ab" * 32}],
        "recipe_yaml": "name: quickstart\n", "rows": [row("stsb", 0.71234)], "command": "raysts run quickstart",
        "similarity": "cosine", "language": "en", "teachers": (), "datasets": (), "notes": (), "models": (),
        **dict.fromkeys(("source", "base_model", "licence", "compared", "selected_by", "versions")),
    }  # fmt: skip
    return render(given | changes)


def front(text: str) -> dict[str, Any]:
    empty, head, body = text.split("---\n", 2)
    assert empty == "" and body.startswith("\n# ")
    return yaml.safe_load(head)


def test_the_hubs_own_parser_reads_the_front_matter() -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    rows = [row("stsb", 0.71234), row("sts12", 0.3, rows="clean")]
    rows.append(row("retrieval:mine", 0.4, metric="ndcg@10", aggregation=None))
    given = {"licence": "mit", "datasets": ["stanfordnlp/snli"], "base_model": "org/encoder"}
    text = card(rows=rows, teachers=["a/b", "other"], **given)
    found = huggingface_hub.ModelCard(text).data
    assert (found.license, found.datasets, found.base_model) == ("mit", ["stanfordnlp/snli"], "org/encoder")
    assert (found.library_name, found.pipeline_tag) == ("sentence-transformers", "sentence-similarity")
    assert found.language == "en" and found.tags.count("raysts") == 1 and "base_model" not in front(card())
    results = {result.dataset_name: result for result in found.eval_results}
    assert results["stsb"].metric_value == 0.71234 and results["stsb"].metric_type == "spearman_cosine"
    assert results["retrieval:mine"].task_type == "information-retrieval" and "sts12" not in results
    assert "Its teachers: `a/b`, `other`." in text and found.model_name == "quickstart"
    without = huggingface_hub.ModelCard(card(rows=[])).data
    assert without.license is None and without.eval_results is None


def test_the_code_of_the_card_is_python_and_names_the_model() -> None:
    blocks = re.findall(r"```python\n(.*?)\n```", card(path='it\'s "here"'), re.S)
    assert len(blocks) == 2
    for block in blocks:
        texts = [n.value for n in ast.walk(ast.parse(block)) if isinstance(n, ast.Constant)]
        assert 'it\'s "here"' in texts


def test_the_scores_are_those_of_the_rows_that_the_model_has() -> None:
    rows = [
        row("stsb", 0.71234), row("stsb", 0.70004, metric="pearson"), row("sts12", 0.5, ci_low=None, ci_high=None),
        row("stsb", 0.9, layers="2"), row("stsb", 0.8, split="dev"), row("sts12", 0.4, subset="headlines", aggregation=None),
        row("sickr", float("nan")),
    ]  # fmt: skip
    text = card(rows=rows)
    assert "| stsb test | spearman | all | 1 | cosine | 71.23 | 70.23 to 72.23 | 1,379 |" in text
    assert "| sts12 test | spearman | all | 1 | cosine | 50.00 | – | 1,379 |" in text
    assert text.index("70.00") > text.index("Other metrics")
    assert not re.search("90.00|80.00|40.00|nan", text)
    assert "Not measured." in card(rows=[]) and "None: nothing was trained." in card(data=[])


def test_the_card_says_what_a_user_must_know() -> None:
    text = card()
    assert "distilled from the mean embeddings of 4 members" in text
    assert "| nli | `nli/train` | 12,000 | `abababababababab` |" in text
    assert "No labels of an evaluation set chose the checkpoint." in text
    assert "```bash\nraysts run quickstart\n```" in text and "```yaml\nname: quickstart\n```" in text
    text = card(selected_by="stsb-dev", notes=["mind\nthis"], source="SED 5.1", role="member",
                layers=2, versions={"torch": "2.13"})  # fmt: skip
    assert "Labels of stsb-dev chose the checkpoint" in text and "- mind this" in text
    assert "one of 4 members" in text and "the last 2 layers" in text and "SED 5.1" in text and "torch 2.13" in text


def test_names_cannot_break_out_of_their_place() -> None:
    evil = "<script>alert(1)</script>\n# heading | cell ```"
    text = card(name=evil, system=evil, backbone=evil, command=evil, recipe_yaml=evil, notes=[evil], source=evil,
                data=[{"stage": evil, "table": evil, "rows": 1, "sha256": evil}], rows=[row(evil, 0.5)])  # fmt: skip
    outside = re.sub(r"^(`{3,})\w*\n.*?\n\1$", "", text, flags=re.S | re.M)
    assert "<script" not in outside
    (heading,) = (line for line in outside.splitlines() if line.startswith("# "))
    assert heading == "# &lt;script>alert(1)&lt;/script> # heading | cell ```"
    front(text)
