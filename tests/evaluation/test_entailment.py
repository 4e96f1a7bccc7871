from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from evaluation_fakes import HashedWords, measured, write_table

from raysts.data.corpora import Corpus
from raysts.evaluation.dev import load_dev
from raysts.evaluation.entailment import DEV, ENTAILMENT_TASKS, GRID, right_by_model
from raysts.evaluation.statistics import UndefinedCorrelationError, best_threshold, precision_recall_areas
from raysts.evaluation.sts import Pairs
from raysts.evaluation.tasks import Representation
from raysts.models.head import gaussian_similarity as similarity
from raysts.ops.similarity import cosine_of_vectors
from raysts.schema import NLI_LABELS

LABELS = np.array(["entailment", "neutral", "contradiction"])
SIMILARITIES = {"gauss": partial(similarity, kind="per_dimension"), "cosine": cosine_of_vectors}


class HashedGaussians(HashedWords):
    """A mean per word and a variance that grows with the words: longer sentences are wider."""

    def represent(self, texts: Sequence[str]) -> dict[str, np.ndarray]:  # type: ignore[override]
        vectors = super().represent(list(texts))["vectors"]
        log_var = np.array([[0.2 * len(text.split())] * vectors.shape[1] for text in texts], np.float32)
        return {"vectors": 0.3 * vectors, "log_var": log_var + 0.1 * vectors**2}

    @property
    def similarities(self) -> dict[str, Any]:
        return SIMILARITIES


def pairs(rows: int, seed: int) -> dict[str, list[Any]]:
    """Hypotheses of words of their premise; with others too, and longer than it, where it is no entailment, and in a fifth of the
    entailments."""
    rng = np.random.default_rng(seed)
    table: dict[str, list[Any]] = {"premise": [], "hypothesis": [], "label": []}
    for number in range(rows):
        label = LABELS[number % 3]
        premise = rng.choice([f"w{i}" for i in range(30)], size=rng.integers(3, 7), replace=False)
        new = [f"w{i}" for i in rng.integers(30, 60, size=3)] if label != "entailment" or rng.random() < 0.2 else []
        kept = premise[: len(premise) - int(rng.integers(1, 3))]
        table["premise"].append(" ".join(premise))
        table["hypothesis"].append(" ".join([*kept, *new]))
        table["label"].append(label)
    return table


def sick(rows: int, seed: int) -> dict[str, list[Any]]:
    found = pairs(rows, seed)
    back = ["B_entails_A" if number % 2 else "B_neutral_A" for number in range(rows)]
    return {
        "sentence1": found["premise"], "sentence2": found["hypothesis"], "score": [3.0] * rows,
        "label": [label.upper() for label in found["label"]], "entailment_ab": ["A_" + x for x in found["label"]],
        "entailment_ba": back,
    }  # fmt: skip


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    write_table(tmp_path, DEV, pairs(90, 0))
    write_table(tmp_path, "nli/snli_test", pairs(120, 1))
    write_table(tmp_path, "sick/sick_trial", sick(60, 2))
    write_table(tmp_path, "sick/sick_test", sick(99, 3))
    return Corpus(tmp_path)


def score(corpus: Corpus, task: str, resamples: int = 10) -> list[dict[str, Any]]:
    model = HashedGaussians()
    return measured(ENTAILMENT_TASKS[task], corpus, model.represent, model.similarities, resamples)


def by_hand(corpus: Corpus, table: str, called: str) -> tuple[np.ndarray, np.ndarray]:
    """sim(hypothesis || premise) of every row, and whether it is entailment."""
    rows = corpus.read(table).to_pydict()
    premise, hypothesis = rows.get("premise") or rows["sentence1"], rows.get("hypothesis") or rows["sentence2"]
    model = HashedGaussians()
    scores = SIMILARITIES[called](model.represent(hypothesis), model.represent(premise))
    return scores, np.array([label.lower() == "entailment" for label in rows["label"]])


def accuracy_by_hand(scores: np.ndarray, positive: np.ndarray, threshold: float) -> float:
    return float(np.mean([(s >= threshold) == p for s, p in zip(scores, positive, strict=True)]))


# -- precision, recall, threshold ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("ties", [False, True])
def test_areas_against_scikit_learn(ties: bool) -> None:
    """Without a positive row they are not defined."""
    metrics, rng = pytest.importorskip("sklearn.metrics"), np.random.default_rng(0)
    positive = rng.random(200) < 0.3
    scores = rng.normal(size=200) + positive
    scores = scores.round(1) if ties else scores
    counts = rng.integers(0, 3, size=(200, 130)).astype(np.uint8)
    counts[:, 0] = 1
    counts[np.argsort(-scores)[:5], 1] = 0  # nothing counts at the top
    counts[positive, 2] = 0
    trapezoid, average = precision_recall_areas(scores, positive, counts)
    assert np.isnan(trapezoid[2]) and np.isnan(average[2])
    for column in (0, 1, *range(3, 130, 8)):
        known = {"sample_weight": counts[:, column].astype(float)}
        precision, recall, _ = metrics.precision_recall_curve(positive, scores, **known)
        assert trapezoid[column] == pytest.approx(metrics.auc(recall, precision), abs=1e-12)
        assert average[column] == pytest.approx(metrics.average_precision_score(positive, scores, **known), abs=1e-12)


def test_threshold_is_the_first_of_the_best() -> None:
    for seed in range(2):
        rng = np.random.default_rng(seed)
        positive = rng.random(40) < 0.4
        scores = np.clip(rng.normal(0.4, 0.1, 40) + 0.1 * positive, 0, 1).round(2)
        for candidates in (GRID, np.append(np.unique(scores), np.inf)):
            accuracies = [accuracy_by_hand(scores, positive, threshold) for threshold in candidates]
            assert best_threshold(scores, positive, candidates) == candidates[int(np.argmax(accuracies))]
    scores = np.array([0.3, 0.7])
    for right, grid, best in ((True, GRID, 0.0), (False, GRID, 0.701), (False, np.append(scores, np.inf), np.inf)):
        assert best_threshold(scores, np.array([right, right]), grid) == best


# -- two-way inference ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("dataset", "table", "source"), [
    ("snli-2way", "nli/snli_test", DEV), ("sick-2way-own", "sick/sick_test", "sick/sick_trial"),
])  # fmt: skip
def test_accuracy_at_the_threshold_of_other_pairs(dataset: str, table: str, source: str, corpus: Corpus) -> None:
    """The areas beside it: test_tasks.py."""
    rows = score(corpus, dataset.removesuffix("-own"))
    found = {(row["dataset"], row["similarity"], row["metric"]): row for row in rows}
    assert len(found) == len(rows) == (6 if dataset == "snli-2way" else 8)
    for called in SIMILARITIES:
        on_source, source_positive = by_hand(corpus, source, called)
        scores, positive = by_hand(corpus, table, called)
        threshold = GRID[np.argmax([accuracy_by_hand(on_source, source_positive, t) for t in GRID])]
        row = found[dataset, called, "accuracy"]
        assert row["value"] == pytest.approx(accuracy_by_hand(scores, positive, threshold), abs=1e-12)
        assert (row["split"], row["n"], row["subset"]) == ("test", len(scores), None)
        assert row["dataset_sha256"] == corpus.fingerprint(table) and row["ci_low"] < row["value"] < row["ci_high"]


def test_similarities_that_the_grid_cannot_part_are_searched_at_their_values(corpus: Corpus) -> None:
    """As 1 / (1 + sum of 768 divergences) is: the grid has nothing between its values but 0 and 0.001. The pair that gives the
    threshold is in the test set, and is entailment by it."""
    write_table(corpus.root, "nli/snli_test", pairs(90, 0))
    model, corpus = HashedGaussians(), Corpus(corpus.root)
    tiny = {"gauss-paper": lambda a, b: SIMILARITIES["gauss"](a, b) * 1e-4}
    rows = measured(ENTAILMENT_TASKS["snli-2way"], corpus, model.represent, tiny)
    on_dev, dev_positive = by_hand(corpus, DEV, "gauss")
    scores, positive = by_hand(corpus, "nli/snli_test", "gauss")
    best = max(np.unique(on_dev), key=lambda threshold: accuracy_by_hand(on_dev, dev_positive, threshold))
    (accuracy,) = (row for row in rows if row["metric"] == "accuracy")
    assert accuracy["value"] == pytest.approx(accuracy_by_hand(scores, positive, best)) and accuracy["ci_low"] is None
    assert accuracy["value"] > 1 - positive.mean(), "better than calling nothing entailment"


@pytest.mark.parametrize("value, said", [(0.5, "all 90 are 0.5: the model has collapsed"), (np.nan, "90 of 90 are")])
def test_a_collapsed_model_has_no_score(corpus: Corpus, value: float, said: str) -> None:
    """The trapezoidal area of a constant, (1 + share of entailment) / 2, would beat every honest model."""

    class Collapsed(HashedGaussians):
        @property
        def similarities(self) -> dict[str, Any]:
            return {"gauss": lambda a, b: np.full(len(a["vectors"]), value)}

    with pytest.raises(UndefinedCorrelationError, match=f"{DEV}: .*{said}"):
        load_dev(corpus, DEV).scores(Collapsed())


# -- direction -----------------------------------------------------------------------------------------------------------
PREMISES = ["a b c d", "e f", "a b", "a", "g h i"]
HYPOTHESES = ["a b", "f e", "a b c d", "b", "g h i j k l m n o p q r s t u v w x"]
SPREAD = {"a b c d": 3.0, "a b": 1.0, "e f": 2.0, "f e": 2.0, "a": 1.0, "b": 0.0, "g h i": 9.0}
BACK = ["neutral", "contradiction", "neutral", "neutral", "entailment", "entailment"]


@pytest.fixture(params=[str, NLI_LABELS.index], ids=["names", "codes"])
def by_spread(request: pytest.FixtureRequest, tmp_path: Path) -> Corpus:
    """Five pairs of entailment, the last of them not one-way, and one that is not."""
    texts = {"sentence1": [*PREMISES, "z"], "sentence2": [*HYPOTHESES, "y"], "score": [3.0] * 6}
    labels = {"label": ["entailment"] * 5 + ["neutral"], "entailment_ba": [request.param(label) for label in BACK]}
    write_table(tmp_path, "sick/sick_test", texts | labels)
    return Corpus(tmp_path)


def spread(texts: Sequence[str]) -> Representation:
    values = np.array([[SPREAD.get(text, 0.0)] for text in texts], np.float32)
    return {"vectors": np.zeros_like(values), "log_var": values}


def test_direction_by_hand(by_spread: Corpus) -> None:
    represent = Mock(side_effect=spread)
    rows = measured(ENTAILMENT_TASKS["sick-direction"], by_spread, represent, SIMILARITIES, 200)
    (asked,) = represent.call_args.args
    assert "z" not in asked and len(asked) == len({*PREMISES, *HYPOTHESES})
    found = {(row["similarity"], row["subset"]): row for row in rows}
    # Wider premise: yes, tie, no, yes, yes. Longer premise: yes, tie, no, tie, no. Ties are wrong.
    for called in ("gauss", "variance"):
        assert found[called, None]["value"] == pytest.approx(3 / 5)
        assert found[called, "one-way"]["value"] == pytest.approx(2 / 4)
    assert found["length", None]["value"] == pytest.approx(1 / 5)
    assert found["length", None]["role"] == "baseline" and "role" not in found["gauss", None]
    assert not any(called == "cosine" for called, _ in found), "a symmetric similarity says nothing about direction"
    ratios = {"[-inf, -1.75)": (1, 1), "[-0.75, -0.25)": (0, 1), "[-0.25, 0.25)": (0.5, 2), "[0.25, 0.75)": (1, 1)}
    by_subset = {subset: (row["value"], row["n"]) for (called, subset), row in found.items() if called == "variance"}
    assert {k.removeprefix("log length ratio "): v for k, v in by_subset.items() if k and k != "one-way"} == ratios
    assert all(row["metric"] == "accuracy" and row["split"] == "test" for row in rows)
    assert {row["n"] for (_, subset), row in found.items() if subset is None} == {5}


# -- tables --------------------------------------------------------------------------------------------------------------
def test_tables_and_what_is_not_there_without_its_threshold_or_its_labels(corpus: Corpus) -> None:
    present = {name: task.tables(corpus) for name, task in ENTAILMENT_TASKS.items()}
    assert present == {
        "snli-2way": ("nli/snli_test", DEV), "sick-2way": ("sick/sick_test", DEV, "sick/sick_trial"),
        "snli-direction": ("nli/snli_test",), "sick-direction": ("sick/sick_test",), "xnli-2way": (), "xnli-direction": (),
    }  # fmt: skip
    rows = corpus.read(DEV).to_pydict()
    assert {*rows["premise"], *rows["hypothesis"]} <= set(ENTAILMENT_TASKS["sick-2way"].sets(corpus)[0].texts)
    (corpus.root / "sick/sick_trial.parquet").unlink()
    assert {row["dataset"] for row in score(Corpus(corpus.root), "sick-2way", 0)} == {"sick-2way"}
    (corpus.root / f"{DEV}.parquet").unlink()
    table = corpus.read("sick/sick_test").drop_columns(["label"])
    write_table(corpus.root, "sick/sick_test", {name: table.column(name) for name in table.column_names})
    bare = Corpus(corpus.root)
    assert {name for name, task in ENTAILMENT_TASKS.items() if task.tables(bare)} == {"snli-direction"}
    assert DEV in ENTAILMENT_TASKS["sick-2way"].expected_tables()


@pytest.mark.parametrize("label", ["entailment", "neutral"])
def test_one_class_alone_is_a_problem(tmp_path: Path, label: str) -> None:
    write_table(tmp_path, DEV, pairs(30, 0))
    write_table(tmp_path, "nli/snli_test", pairs(6, 0) | {"label": [label] * 6})
    lonely = Corpus(tmp_path)
    (found,) = ENTAILMENT_TASKS["snli-2way"].problems(lonely)
    assert f"nli/snli_test: {6 if label == 'entailment' else 0} of 6 pairs are entailment" in found
    direction = ["nli/snli_test: no pair is entailment; 'snli-direction' needs some"] if label == "neutral" else []
    assert ENTAILMENT_TASKS["snli-direction"].problems(lonely) == direction


def test_models_whose_texts_have_no_variance() -> None:
    """As points, and as latte-normal, which has Gaussians of a text's tokens: the baseline alone."""
    sides = {"left": np.array([0]), "right": np.array([1])}
    pairs = Pairs(name="direction", sha256="", texts=["a", "b c"], size=1, gold=np.ones(1), **sides)
    of_texts = {"vectors": np.eye(2), "log_var": np.zeros((2, 3))}
    of_tokens = {"vectors": np.eye(2), "log_var": np.array([np.zeros((1, 3)), np.zeros((2, 3))], dtype=object)}
    assert [*right_by_model(pairs, of_texts, {"cosine": cosine_of_vectors})] == ["variance"]
    for representation in (of_tokens, {"vectors": np.eye(2)}):
        assert right_by_model(pairs, representation, {"cosine": cosine_of_vectors}) == {}
