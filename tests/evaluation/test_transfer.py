from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from evaluation_fakes import HashedWords, measured, write_table
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transfer_fakes import NLI, judged, related, write_sets

from raysts.data.corpora import Corpus
from raysts.errors import InputError
from raysts.evaluation import harness, probes
from raysts.evaluation.statistics import UndefinedCorrelationError, pearson
from raysts.evaluation.tasks import Task
from raysts.evaluation.transfer import TRANSFER, TRANSFER_SETS
from raysts.pipeline.plan import Plan
from raysts.recipes.names import pipeline

Values = dict[tuple[str, str], dict[str, Any]]
"""Rows by set and metric."""


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return write_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module")
def evaluated(sets: Corpus) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """What a model was asked for, and its rows on all sets."""
    model = HashedWords()
    return model.calls, harness.evaluate(model, sets, ["transfer"], layers=(1,), resamples=0)


@pytest.fixture(scope="module")
def values(evaluated: tuple[Any, list[dict[str, Any]]]) -> Values:
    return {(row["dataset"], row["metric"]): row for row in evaluated[1]}


def vectors(texts: Sequence[str]) -> np.ndarray:
    return HashedWords().represent(list(texts))["vectors"]


def score(corpus: Corpus, *names: str, resamples: int = 0) -> Values:
    """Rows of the named sets by set and metric."""
    task = Task("transfer", tuple(each for each in TRANSFER_SETS if each.name in names))
    rows = measured(task, corpus, HashedWords().represent, {}, resamples)
    return {(row["dataset"], row["metric"]): row for row in rows}


def edited(corpus: Corpus, root: Path, table: str, **columns: list[Any]) -> Corpus:
    """A copy of the corpus in which columns of a table are others."""
    for name in corpus.tables():
        write_table(root, name, corpus.read(name).to_pydict() | (columns if name == table else {}))
    return Corpus(root)


def pairs(table: dict[str, list[Any]]) -> np.ndarray:
    u, v = vectors(table["sentence1"]), vectors(table["sentence2"])
    return np.hstack([abs(u - v), u * v])


def reference(strength: float = 1.0) -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(C=strength, tol=probes.TOLERANCE, max_iter=200))


def searched(features: np.ndarray, labels: np.ndarray) -> GridSearchCV:
    inner = StratifiedKFold(5, shuffle=True, random_state=0)
    return GridSearchCV(reference(), {"logisticregression__C": list(probes.GRID)}, cv=inner).fit(features, labels)


# -- against scikit-learn -------------------------------------------------------------------------------------------------
def test_cross_validation_against_scikit_learn(sets: Corpus, values: Values) -> None:
    table = sets.read("senteval/mr").to_pydict()
    features, labels = vectors(table["text"]), np.array(table["label"])
    outer = list(StratifiedKFold(10, shuffle=True, random_state=0).split(features, labels))
    ours = probes.classify(features, labels, probes.folds(labels, 10))
    for probe, (fit, asked) in list(zip(ours, outer, strict=True))[:1]:
        direct = searched(features[fit], labels[fit])
        assert probe.strength == direct.best_params_["logisticregression__C"]
        assert (probe.predicted == direct.predict(features[asked])).all()
    assert len({probe.strength for probe in ours}) > 1, "the grid matters here"
    row = values["mr", "accuracy"]
    right = [probe.predicted == labels[asked] for probe, (_, asked) in zip(ours, outer, strict=True)]
    assert row["value"] == pytest.approx(np.concatenate(right).mean(), abs=1e-12) and row["value"] > 0.6
    assert (row["split"], row["n"], row["similarity"], row["aggregation"]) == ("cv", 120, None, None)


def test_folds_of_the_training_rows_against_scikit_learn(sets: Corpus, values: Values) -> None:
    for name, features_of in (("trec", lambda table: vectors(table["text"])), ("mrpc", pairs)):
        train, test = (sets.read(f"senteval/{name}_{split}").to_pydict() for split in ("train", "test"))
        fitted = searched(features_of(train), np.array(train["label"]))
        row = values[name, "accuracy"]
        assert row["value"] == pytest.approx(fitted.score(features_of(test), np.array(test["label"])), abs=1e-12)
        assert (row["split"], row["n"]) == ("test", 90) and row["value"] > 0.4


@pytest.mark.parametrize("name", ["sst5", "sick-e"])
def test_development_rows_choose(sets: Corpus, values: Values, name: str) -> None:
    tables = ["sick/sick_train", "sick/sick_trial", "sick/sick_test"]
    if name != "sick-e":
        tables = [f"senteval/{name}_{split}" for split in ("train", "dev", "test")]
    read = [sets.read(table).to_pydict() for table in tables]
    features = [pairs(table) if name == "sick-e" else vectors(table["text"]) for table in read]
    labels = [np.array(table["label"]) for table in read]
    fitted = [reference(strength).fit(features[0], labels[0]) for strength in probes.GRID]
    best = max(fitted, key=lambda each: each.score(features[1], labels[1]))
    assert values[name, "accuracy"]["value"] == pytest.approx(best.score(features[2], labels[2]), abs=1e-12)


# -- relatedness ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "low"), [("stsb", 0), ("sickr", 1)])
def test_relatedness_is_that_of_a_softmax_regression(sets: Corpus, values: Values, name: str, low: int) -> None:
    """The chosen probe is the minimum of the cross-entropy with the distribution, written out; its scores are p @ k."""
    tables = [f"sts/stsb_{s}" for s in ("train", "dev", "test")]
    if name == "sickr":
        tables = [f"sick/sick_{s}" for s in ("train", "trial", "test")]
    read = [sets.read(table).to_pydict() for table in tables]
    features, scores = [pairs(table) for table in read], [np.array(table["score"]) for table in read]
    ours = probes.regress_by_dev((features[0], scores[0]), (features[1], scores[1]), features[2])

    scale = StandardScaler().fit(features[0])
    x, asked = (torch.from_numpy(scale.transform(each)).double() for each in (features[0], features[2]))
    numbers = torch.arange(low, 6)
    target = (1 - (torch.from_numpy(scores[0])[:, None] - numbers).abs()).clamp(min=0)  # two weights around the score
    weight = torch.zeros(x.shape[1], len(numbers), dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(len(numbers), dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([weight, bias], max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        solver.zero_grad()
        entropy = -(target * torch.log_softmax(x @ weight + bias, dim=1)).sum()
        value = entropy + (weight**2).sum() / (2 * ours.strength)
        value.backward()
        return value

    solver.step(loss)  # type: ignore[no-untyped-call]
    expected = (torch.softmax(asked @ weight + bias, dim=1) @ numbers.double()).detach().numpy()
    assert ours.predicted == pytest.approx(expected, abs=0.02) and np.ptp(ours.predicted) > 1
    rows = [values[f"{name}-relatedness", metric] for metric in ("pearson", "spearman")]
    assert rows[0]["value"] == pytest.approx(pearson(ours.predicted, scores[2]))
    assert all(row["value"] > 0.5 and row["split"] == "test" for row in rows)


# -- what may not matter --------------------------------------------------------------------------------------------------
def test_labels_may_be_names_or_numbers_of_any_kind(sets: Corpus, values: Values, tmp_path: Path) -> None:
    changed = sets
    for table in ("senteval/trec_train", "senteval/trec_test"):
        names = [("NUM", "DESC", "HUM")[x] for x in sets.read(table).column("label").to_pylist()]
        changed = edited(changed, tmp_path / table.replace("/", "-"), table, label=names)
    for split in ("train", "trial", "test"):
        codes = [NLI.index(x) for x in sets.read(f"sick/sick_{split}").column("label").to_pylist()]
        changed = edited(changed, tmp_path / split, f"sick/sick_{split}", label=codes)
    after = score(changed, "trec", "sick-e")
    for new, old in ((after[name, "accuracy"], values[name, "accuracy"]) for name in ("trec", "sick-e")):
        assert new["value"] == old["value"] and new["dataset_sha256"] != old["dataset_sha256"]


def test_the_number_of_threads_changes_no_digit(sets: Corpus) -> None:
    found = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        found.append(score(sets, "sst2", "stsb-relatedness", resamples=20))
    assert found[0] == found[1] and all(row["ci_low"] < row["value"] < row["ci_high"] for row in found[0].values())


# -- tables ---------------------------------------------------------------------------------------------------------------
def test_what_is_there_runs_and_the_rest_is_named(sets: Corpus, evaluated: tuple[Any, list[dict[str, Any]]]) -> None:
    calls, rows = evaluated
    names = ["mr", "sst2", "sst5", "trec", "mrpc", "sick-e", "sickr-relatedness", "stsb-relatedness"]
    assert [row["dataset"] for row in rows if row["metric"] != "spearman"] == names
    assert len(calls) == 1 and len(set(calls[0])) == len(calls[0]), "every sentence once"
    (line,) = harness.left_out(sets, ["stsb", "transfer"])
    assert line.startswith("transfer: left out cr, mpqa, subj;") and "senteval/cr, senteval/mpqa, senteval/subj" in line
    assert {row["rows"] for row in rows} == {"all"} and all(row["ci_low"] is None for row in rows)


def test_no_files_and_unlabelled_sick(sets: Corpus, tmp_path: Path) -> None:
    write_table(tmp_path, "sts/stsb_test", sets.read("sts/stsb_test").to_pydict())
    for split in ("train", "trial", "test"):
        table = sets.read(f"sick/sick_{split}").drop_columns(["label"])
        write_table(tmp_path, f"sick/sick_{split}", table.to_pydict())
    corpus, task = Corpus(tmp_path), TRANSFER
    assert [each.name for each in task.sets(corpus)] == ["sickr-relatedness"]
    assert task.left_out(corpus)["stsb-relatedness"] == ["sts/stsb_train", "sts/stsb_dev"]
    assert set(task.tables(corpus)) <= set(task.expected_tables())
    for split in ("train", "trial", "test"):
        (tmp_path / f"sick/sick_{split}.parquet").unlink()
    with pytest.raises(InputError, match=r"task 'transfer' has no files .*senteval/mr.parquet.*with files: stsb;"):
        harness.check_tasks(Corpus(tmp_path), ["transfer"])


def test_pipelines_leave_heavy_tasks_out_unless_named(sets: Corpus, tmp_path: Path) -> None:
    pipelines = [pipeline("raw", {"backbone": "tiny", **more}) for more in ({}, {"evaluation.tasks": ["transfer"]})]
    unnamed, named = (Plan(pipeline=each, corpus=sets, storage=tmp_path).tasks for each in pipelines)
    assert "stsb" in unnamed and "transfer" not in unnamed and named == ("transfer",)
    assert "transfer" in harness.default_tasks(sets) and "transfer" in harness.check_tasks(sets)
    assert harness.default_tasks(sets, heavy=False) == harness.check_tasks(sets, heavy=False) == unnamed


def test_rows_that_cannot_be_scored_are_refused_by_number(sets: Corpus, tmp_path: Path) -> None:
    rare = judged(200, 0)
    rare["label"] = [7 if row < 3 else label for row, label in enumerate(rare["label"])]
    write_table(tmp_path, "senteval/mr", rare)
    (row,) = score(Corpus(tmp_path), "mr").values()  # three rows are enough
    assert row["n"] == 200 and 0 <= row["value"] <= 1 and TRANSFER.problems(Corpus(tmp_path)) == []
    folds = [probes.fold_count(10, np.repeat([0, 1], [50, rows])) for rows in (60, 10, 9, 3, 1)]
    assert folds == [10, 10, 9, 3, 2], "a small class makes fewer folds"
    rare["label"][1] = 0
    write_table(tmp_path, "senteval/mr", rare)
    write_table(tmp_path, "senteval/subj", judged(20, 0) | {"label": ["subjective"] * 20})
    for split in ("train", "test"):
        write_table(tmp_path, f"senteval/trec_{split}", judged(60, 5, classes=3))
    test = pq.read_table(tmp_path / "senteval/trec_test.parquet").to_pydict()
    test["label"][:11] = [8] * 5 + [9] * 6
    write_table(tmp_path, "senteval/trec_test", test)
    for split in ("train", "dev", "test"):
        table = related(20, 0, low=0)
        write_table(tmp_path, f"sts/stsb_{split}", table | ({"score": [2.0] * 20} if split == "dev" else {}))
    with pytest.raises(InputError) as caught:
        harness.check_tasks(Corpus(tmp_path), ["transfer"])
    for said in (
        "senteval/mr: label '7' has 2 row(s) (row 0, 2); cross-validation needs at least 3 of every class",
        "senteval/subj: every row has label 'subjective'",
        "senteval/trec_test: label '8' (row 0, 1, 2, 3, 4) does not occur in senteval/trec_train (0, 1, 2)",
        "senteval/trec_test: label '9' (row 5, 6, 7, 8, 9 and 1 more) does not occur",
        "sts/stsb_dev: all 20 scores are 2",
    ):
        assert said in str(caught.value)
    write_table(tmp_path, "senteval/mr", judged(20, 0) | {"text": ["a", " "] * 10})
    with pytest.raises(InputError, match=r"mr.parquet: row 1, column 'text': empty sentence"):
        harness.check_tasks(Corpus(tmp_path), ["transfer"])


@pytest.mark.parametrize(("value", "said"), [(np.nan, "160 of 160|80 of 80"), (1.0, "development rows: all 80")])
def test_a_collapsed_model_has_no_relatedness(sets: Corpus, value: float, said: str) -> None:
    task = Task("transfer", tuple(each for each in TRANSFER_SETS if each.name == "stsb-relatedness"))
    with pytest.raises(UndefinedCorrelationError, match=f"stsb-relatedness.*({said})"):
        measured(task, sets, lambda texts: {"vectors": np.full((len(texts), 4), value, np.float32)}, {})
