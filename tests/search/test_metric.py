"""What a search goes by: a dev score or the training loss, refused where trials never report it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from run_commands import overrides as sets
from run_commands import raysts

from raysts.commands.options import RunOptions
from raysts.commands.study import plan_study
from raysts.commands.tune import tune as run_search
from raysts.errors import InputError
from raysts.evaluation.dev import RunMetric, rank
from raysts.search.record import Record
from raysts.search.sampler import Sampler
from raysts.search.search import find_search
from raysts.search.study import Study
from raysts.storage.foreign import read_json
from raysts.training.metrics import read_metrics

BOUND = "sts.settings.lower_bound"
DEV = "sts/stsb_dev"
SHORT = {"train.max_steps": 2, "train.max_length": 24, "sts.data.sample": 64, "train.eval_every": 1}
THREE = {**SHORT, "space.lower_bound": "0,0.4,0.8", "seeds": 1}


@pytest.fixture(scope="module")
def without_dev(few_world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The world without STS-B dev."""
    data = Path(shutil.copytree(few_world, tmp_path_factory.mktemp("data") / "world"))
    (data / f"{DEV}.parquet").unlink()
    return data


@pytest.mark.parametrize(
    ("search", "known"), [("lower-bound", ["spearman", "pearson"]), ("gausscse", ["auc_pr", "average_precision"])]
)
def test_a_search_goes_by_what_its_trials_report(search: str, known: list[str]) -> None:
    assert find_search(search).objective.name == known[0]  # what selects checkpoints
    for metric in (*known, "loss"):
        found = find_search(search, {"metric": metric}).objective
        assert found.name == metric and found.mode == ("min" if metric == "loss" else "max")
    wrong = f"{known[0]}s"
    with pytest.raises(InputError, match=rf"metric={wrong}: is never reported.*did you mean '{known[0]}'") as caught:
        find_search(search, {"metric": wrong})
    assert f"they report {known[0]}, {known[1]} (on " in str(caught.value) and str(caught.value).endswith("and loss")


def test_a_metric_that_no_trial_has(few_world: Path, without_dev: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    place: list[object] = ["--storage", storage, "--address", "none"]
    for data, given, why in (
        (few_world, {"metric": "accuracy"}, "they report spearman, pearson (on sts/stsb_dev) and loss"),
        (without_dev, {"metric": "pearson"}, "sts/stsb_dev"),
        (without_dev, {"metric": "pearson", "train.keep": "last"}, "so trials report loss alone"),
        (without_dev, {"metric": "loss", "train.keep": "last", "asha": "true"}, "asha: goes by the evaluations on"),
        (few_world, {"asha": "true"}, "asha, median: need trials that train at once"),
    ):
        arguments = sets({"backbone": tiny_backbone, **THREE, **given})
        outcome = raysts("tune", "lower-bound", "--data", data, *place, *arguments)
        assert outcome.code == 2 and why in outcome.err and not outcome.out and "Traceback" not in outcome.err
    assert not storage.exists()


@pytest.mark.whole
def test_one_grid_by_loss_and_by_pearson_is_trained_once(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    import optuna

    base = {**THREE, "backbone": str(tiny_backbone)}

    def tune(metric: str, **options: Any) -> dict[str, Any]:
        given = {**base, "metric": metric}
        return run_search("lower-bound", given, few_world, tmp_path, address="none", **options)

    found = tune("loss")
    runs = {point["run"]: point for point in found["points"]}
    assert len(runs) == 3 and (found["metric"], found["mode"]) == ("loss", "min")
    logged = {run: read_metrics(tmp_path / "runs" / run / "metrics.jsonl") for run in runs}
    assert {run: point["value"] for run, point in runs.items()} == {run: logged[run][-1]["loss"] for run in runs}
    least = min(runs.values(), key=lambda point: point["value"])
    assert found["best"] == {"overrides": least["overrides"], "value": least["value"]}
    assert [path.parent.name for path in tmp_path.glob("runs/*/model")] == [least["run"]]  # the model that is kept
    (record,) = (read_json(path) for path in Path(found["study"]).glob(f"trials/{least['run']}.json"))
    assert record["curve"] == [[line["step"], line["loss"]] for line in logged[least["run"]] if "dev" in line]
    seen = optuna.load_study(study_name="lower-bound", storage=f"sqlite:///{found['study']}/optuna.db")
    assert seen.direction.name == "MINIMIZE" and seen.best_value == least["value"] and seen.metric_names == ["loss"]
    html = Path(found["report"]).read_text(encoding="utf-8")
    assert "Training loss against" in html and "training loss at the end" in html and f"{least['value']:.4g}" in html
    assert f"({least['value']:.4g})" in found["table"] and " loss" in found["table"].splitlines()[0]

    with pytest.raises(InputError, match="metric was loss, is spearman"):
        tune("spearman")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/metrics.jsonl")}
    other = tune("pearson", name="by-pearson")
    assert {path: path.stat().st_mtime_ns for path in before} == before and other["trials"] == 3
    scores = {run: read_json(tmp_path / "runs" / run / "run.json")["dev"]["scores"] for run in runs}
    assert {p["run"]: p["value"] for p in other["points"]} == {run: each["pearson"] for run, each in scores.items()}
    assert all(each["pearson"] != each["spearman"] for each in scores.values())
    assert other["best"]["value"] == max(each["pearson"] for each in scores.values())


@pytest.mark.whole
def test_without_a_dev_set_the_loss_is_left(without_dev: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    given = {**THREE, "space.lower_bound": "0,0.8", "metric": "loss", "train.keep": "last"}
    given |= {"backbone": str(tiny_backbone)}
    found = json.loads(json.dumps(run_search("lower-bound", given, without_dev, tmp_path, address="none")))
    values = {point["run"]: point["value"] for point in found["points"]}
    assert found["trials"] == 2 and found["best"]["value"] == min(values.values())
    assert values == {run: read_metrics(tmp_path / "runs" / run / "metrics.jsonl")[-1]["loss"] for run in values}


@pytest.mark.whole
@pytest.mark.parametrize("rule", [{"asha.grace": 0.5, "asha.reduction": 2}, {"median": True}], ids=["asha", "median"])
@pytest.mark.parametrize("metric", ["pearson", "loss"])
def test_samplers_and_early_stopping_go_the_metrics_way_and_know_earlier_sessions(
    metric: str, rule: dict[str, Any], few_world: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    tune = pytest.importorskip("raysts.cluster.tune")
    given = {**THREE, "backbone": str(tiny_backbone), "metric": metric, **rule}
    study: Study = plan_study("lower-bound", given, RunOptions(data=few_world, storage=tmp_path))
    for number, value in enumerate((0.2, 0.4, 0.6, 0.8)):  # some of them are worse than the median themselves
        study.records[str(number)] = Record(
            id=str(number), point={BOUND: 0.0}, seed=0, status="finished", steps=4, curve=((1, value), (2, value)),
            finished_at="",
        )  # fmt: skip
    made = tune.scheduler(study)
    decided = {}
    for value in (0.9, 0.1):
        trial = tune.EarlierTrial(f"new {value}")
        made.on_trial_add(None, trial)
        decided[value] = made.on_trial_result(None, trial, {tune.FRACTION: 50.0, tune.METRIC: value})
    good, bad = (0.1, 0.9) if metric == "loss" else (0.9, 0.1)
    assert decided == {good: "CONTINUE", bad: "STOP"}
    mode = "min" if metric == "loss" else "max"
    sampler = Sampler(study.search, [], 0)
    assert study.search.objective.mode == mode and sampler.study.direction.name == f"{mode.upper()}IMIZE"


def test_none_is_worst_whichever_way_is_better() -> None:
    assert sorted((0.3, None, 0.1), key=lambda value: rank(value, "max")) == [None, 0.1, 0.3]
    assert sorted((0.3, None, 0.1), key=lambda value: rank(value, "min")) == [None, 0.3, 0.1]
    loss, score = RunMetric("loss", DEV), RunMetric("spearman", DEV)
    assert (loss.text(0.03123456), score.text(0.8241), score.text(None)) == ("0.03123", "82.41", "-")
    assert loss.value_of_run({"status": "done"}, []) is score.value_of_run({"dev": None}, [{"loss": 1.0}]) is None
