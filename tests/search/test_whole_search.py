"""Trials, and whole searches, in this process."""

from __future__ import annotations

import gc
import importlib.util
import io
import itertools
import json
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from wsgiref.util import setup_testing_defaults

import optuna
import pyarrow.parquet as pq
import pytest
import torch
from run_commands import Outcome, listening, overrides, raysts, result
from small_runs import Stage, without

from raysts.commands.distill import distill as distill_models
from raysts.commands.look import plan
from raysts.commands.look import show as show_recipe
from raysts.commands.run import run as run_recipe
from raysts.commands.tune import tune as run_search
from raysts.data.batches import read_batches
from raysts.data.corpora import Corpus
from raysts.errors import InputError
from raysts.evaluation.dev import RunMetric, load_dev
from raysts.ids import folder_id
from raysts.models import pretrained
from raysts.models.sentence_model import SentenceModel
from raysts.recipes.names import pipeline
from raysts.recipes.overrides import dump
from raysts.search.trial import TrialRuntime, run_trial
from raysts.training import checkpoint
from raysts.training.loop import train
from raysts.training.metrics import read_metrics
from raysts.training.runtime import Runtime

BOUND = "sts.settings.lower_bound"
SPEARMAN = RunMetric("spearman", "sts/stsb_dev")
SHORT = {"train.max_steps": 2, "train.max_length": 24, "sts.data.sample": 64}


# -- one trial -----------------------------------------------------------------------------------------------------------


def test_a_trial_ends_with_a_result_however_it_ends(stage: Any, tmp_path: Path) -> None:
    job = stage.job("sts", tmp_path / "run", max_steps=8, eval_every=2, checkpoint_every=2, keep="best")
    seen: list[dict[str, Any]] = []
    runtime = partial(TrialRuntime, "cpu", threads=1, metric=SPEARMAN)

    def report(value: float, line: dict[str, Any]) -> None:
        assert value == line["dev"]
        seen.append(line)

    def report_and_stop(value: float, line: dict[str, Any]) -> None:
        report(value, line)
        if len(seen) > 1:
            raise SystemExit  # as Ray Tune does

    with pytest.raises(SystemExit):
        run_trial(job, runtime(report=report_and_stop))
    assert [line["step"] for line in seen] == [2, 4]
    # The folder is free again, and what was trained is not lost: it goes on from step 4.
    done = run_trial(job, runtime(report=report))
    assert done.status == "finished" and [line["step"] for line in seen] == [2, 4, 6]  # not the last: nothing to stop
    alone = stage.job("sts", tmp_path / "alone", max_steps=8, eval_every=2, checkpoint_every=2, keep="best")
    assert done.value == run_trial(alone, runtime()).value

    nan = stage.job("sts", tmp_path / "nan", max_steps=4, optim=job.recipe.optim.replace(lr=1e30))
    found = run_trial(nan, runtime())
    assert found.status == "infeasible" and "lr" in str(found.reason)

    def exhausted(*arguments: Any) -> Any:
        for share in read_batches(*arguments):
            torch.empty(1 << 50)  # the allocator's own error, in the middle of a run
            yield share

    short = runtime()
    short.read = exhausted
    large = stage.job("sts", tmp_path / "large", max_steps=4)
    found = run_trial(large, short)
    assert found.status == "infeasible" and str(found.reason).startswith("out of memory")

    missing = replace(stage.job("sts", tmp_path / "missing"), store=tmp_path / "nothing")
    found = run_trial(missing, runtime())
    assert found.status == "failed" and "the finished token store has gone" in str(found.reason)


def files(folder: Path) -> dict[str, bytes]:
    """What a model is made of."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_trial_knows_nothing_of_another(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its model is, bit for bit, that of a process of its own. The sentences of its dev set are tokenised once."""
    made, real = list[int](), SentenceModel.tokenize
    monkeypatch.setattr(SentenceModel, "tokenize", lambda model, *of: made.append(len(of[0])) or real(model, *of))
    backbone, dev = folder_id(stage.backbone), stage.dev()

    def trial(name: str, **options: Any) -> Any:
        job = stage.job("sts", tmp_path / name, max_steps=4, eval_every=1, keep="best", **options)
        return without(job, dev=dev)

    one, other = trial("one", seed=1), trial("other", settings={"lower_bound": 0.5}, seed=2)
    for job in (one, other):
        outcome = run_trial(job, TrialRuntime("cpu", threads=1, metric=SPEARMAN))
        assert outcome.status == "finished"
    assert made == [len(dev.texts)] * 2  # eight evaluations of two trials
    assert folder_id(stage.backbone) == backbone

    alone = without(other, folder=tmp_path / "alone")
    train(alone, Runtime("cpu", threads=1))
    assert files(alone.folder / "model") == files(other.folder / "model") != files(one.folder / "model")


@pytest.mark.whole
def test_a_finished_trial_leaves_nothing_behind(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of itself, without the search for cycles that takes 0.2 s in a process with everything imported."""
    saved: list[int] = []
    real = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda *a: saved.append(a[3].step) or real(*a))
    held: list[weakref.ref[Any]] = []

    class Watching(TrialRuntime):
        def wrap(self, module: Any, precision: str) -> Any:
            held.extend(weakref.ref(each) for each in (module, *module.parameters()))
            return module

    for objective in ("ct", "latte", "gausscse"):
        job = stage.job(objective, tmp_path / objective, max_steps=3, eval_every=2, checkpoint_every=2)
        gc.collect()
        gc.disable()
        try:
            outcome = run_trial(job, Watching("cpu", threads=1, metric=SPEARMAN))
            assert outcome.status == "finished" and held and not any(each() is not None for each in held), objective
        finally:
            gc.enable()
        assert saved == [2] and not (job.folder / "checkpoints").exists()
        saved.clear()
        held.clear()


# -- a whole search ------------------------------------------------------------------------------------------------------


TWO = {**SHORT, "space.lower_bound": "0,0.6", "seeds": 2, "train.eval_every": 1}
THREE = {"by": "trial", "keep": 3}


class Searched(NamedTuple):
    """A search of two points with two seeds by its command, the same command again, and one with a third seed."""

    place: list[object]
    storage: Path
    said: list[str]
    first: dict[str, Any]
    again: Outcome
    more: dict[str, Any]
    written: list[dict[Path, int]]
    """After each of the three, the files of curves and the times at which they were written."""
    states: list[list[str]]
    """What the database said of the trials, when one and when three of the first four had ended."""

    @property
    def study(self) -> Path:
        return self.storage / "studies" / "mine"


def states_of(study: Path) -> list[str]:
    trials = optuna.load_study(study_name="mine", storage=f"sqlite:///{study}/optuna.db").trials
    return [trial.state.name for trial in trials]


@pytest.fixture(scope="module")
def searched(small_world: Path, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Searched:
    folder = tmp_path_factory.mktemp("searched")
    storage, said, states, written = folder / "s", list[str](), list[list[str]](), list[dict[Path, int]]()
    place: list[object] = ["--data", small_world, "--storage", storage, "--address", "none"]
    mlflow = f",mlflow=file:{folder}/mlflow" if importlib.util.find_spec("mlflow") else ""
    command = ["tune", "lower-bound", *place, "--name", "mine", *overrides(TWO, {"backbone": tiny_backbone})]

    def hear(text: str) -> None:
        said.append(text)
        if text.startswith(("1/4", "3/4")):
            states.append(states_of(storage / "studies" / "mine"))

    def look() -> None:
        paths = [*storage.glob("runs/*/metrics.jsonl"), *storage.glob("studies/*/tensorboard/*/events*")]
        written.append({path: path.stat().st_mtime_ns for path in paths})

    with listening(hear):
        first = result(*command, "--track", f"tensorboard{mlflow}")
    look()
    again = raysts(*command)
    look()
    more = result(*command, "--set", "seeds=3")
    look()
    return Searched(place, storage, said, first, again, more, written, states)


@pytest.mark.whole
def test_a_search_tries_all_and_keeps_the_best(searched: Searched, small_world: Path, tiny_backbone: Path) -> None:
    found, study = searched.first, searched.study
    assert found["status"] == "done" and found["trials"] == 4 == len(found["points"])
    assert {(p["overrides"][BOUND], p["seed"]) for p in found["points"]} == set(itertools.product((0.0, 0.6), (0, 1)))
    means = {b: sum(p["value"] for p in found["points"] if p["overrides"][BOUND] == b) / 2 for b in (0.0, 0.6)}
    assert found["best"] == {"overrides": {BOUND: max(means, key=means.__getitem__)}, "value": max(means.values())}
    recipe = pipeline("sts").stages["sts"]
    loaded = pretrained.load(tiny_backbone, pooling=recipe.pooling, layers=recipe.layers)
    start = load_dev(Corpus(small_world), "sts/stsb_dev").scores(loaded)["spearman"]
    assert found["untrained"] == pytest.approx(start, abs=1e-6)
    assert f"before any training: {100 * start:.2f}" in searched.again.out
    assert Path(found["study"]) == study
    files = {path.name for path in study.glob("[!.]*")} - {"tracked.json"}
    assert files == {"optuna.db", "study.json", "tensorboard", "trials", "trials.parquet"}
    assert any("keeps the models of the best point, with all seeds" in line for line in searched.said)
    html = Path(found["report"]).read_text()
    assert "<svg" in html and f"{BOUND}" in html and "raysts run sts" in html
    assert f"The starting model, before any training: {100 * start:.2f}" in html and "kept model on stsb-dev: " in html
    assert json.loads((study / "study.json").read_text())["price"] in html


@pytest.mark.whole
def test_the_same_command_trains_nothing_and_one_of_more_seeds_what_is_missing(searched: Searched) -> None:
    first, again, more = searched.written
    assert again == first and more.items() > first.items() and len(more) == 2 * 6
    for said in ("<- chosen", "raysts distill --from-study mine", "optuna-dashboard"):
        assert said in searched.again.out
    found = searched.more
    assert found["trials"] == 6 and all(point in found["points"] for point in searched.first["points"])
    assert found["untrained"] == searched.first["untrained"]
    assert pq.read_table(searched.study / "trials.parquet").num_rows == 6
    storage = searched.storage
    assert len(list(storage.glob("runs/*/model"))) == 3 and not list(storage.glob("runs/*/checkpoints"))


# -- each tool's own reader reads what a search shows in it --------------------------------------------------------------


def dashboard(path: Path, address: str) -> Any:
    """The JSON that Optuna's dashboard serves for a database at an address."""
    environment: dict[str, Any] = {}
    setup_testing_defaults(environment)
    status: list[str] = []
    route, _, query = address.partition("?")
    environment |= {"PATH_INFO": route, "QUERY_STRING": query, "wsgi.input": io.BytesIO()}
    app = pytest.importorskip("optuna_dashboard").wsgi(f"sqlite:///{path}")
    body = b"".join(app(environment, lambda code, headers, *rest: status.append(code)))
    assert status[0].startswith("200"), (address, status, body[:300])
    return json.loads(body)


@pytest.mark.whole
def test_optunas_dashboard_has_every_trial_as_soon_as_it_has_ended(searched: Searched) -> None:
    path = searched.study / "optuna.db"
    (study,) = dashboard(path, "/api/studies")["study_summaries"]
    assert study["study_name"] == "mine"
    shown = dashboard(path, f"/api/studies/{study['study_id']}?after=0")["trials"]
    assert searched.states == [["COMPLETE"], ["COMPLETE"] * 3] and {trial["state"] for trial in shown} == {"Complete"}
    values = {tuple(p["param_internal_value"] for p in trial["params"]): trial["values"][0] for trial in shown}
    assert values == {(p["overrides"][BOUND], p["seed"]): p["value"] for p in searched.more["points"]}


@pytest.mark.whole
def test_tensorboard_has_the_curves_and_the_point_of_every_trial(searched: Searched) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    hparams = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")
    boards = sorted((searched.study / "tensorboard").glob("*/"))
    for point in searched.more["points"]:
        (board,) = [path for path in boards if path.name.endswith(point["run"][:6])]
        scalars = reader.EventAccumulator(str(board)).Reload()
        content = scalars.PluginTagToContent("hparams")["_hparams_/session_start_info"]
        start = hparams.HParamsPluginData.FromString(content)
        tried = {key: value.number_value for key, value in start.session_start_info.hparams.items()}
        assert tried == {**point["overrides"], "seed": point["seed"]}
        assert [event.value for event in scalars.Scalars("kept")] == [pytest.approx(point["value"])]
        lines = read_metrics(searched.storage / "runs" / point["run"] / "metrics.jsonl")
        logged = [(line["step"], pytest.approx(line["dev"])) for line in lines if "dev" in line]
        assert [(event.step, event.value) for event in scalars.Scalars("dev")] == logged


@pytest.mark.whole
def test_mlflow_has_a_run_of_every_trial(searched: Searched) -> None:
    mlflow = pytest.importorskip("mlflow")
    client = mlflow.MlflowClient(tracking_uri=f"file:{searched.storage.parent}/mlflow")
    runs = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    by_id = {run.data.params["run"]: run for run in runs}
    assert by_id.keys() == {point["run"] for point in searched.first["points"]} and len(runs) == 4
    for point in searched.first["points"]:
        run = by_id[point["run"]]
        tried = {**point["overrides"], "seed": point["seed"], "run": point["run"]}
        assert run.data.params == {key: str(value) for key, value in tried.items()} and run.info.status == "FINISHED"
        assert run.data.metrics["kept"] == point["value"]
        assert len(client.get_metric_history(run.info.run_id, "dev")) == 2
    assert not [*(searched.study / "tensorboard" / "live").iterdir()], "what is live there has ended"


# -- what a search begins and what goes on from it -----------------------------------------------------------------------


@pytest.mark.whole
def test_a_study_by_points_becomes_a_student(small_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    """Members of another precision than the default are those of the study. Students are teachers themselves."""
    short = {"precision": "fp32", "train.max_steps": 1, "data.sample": 64, "backbone": str(tiny_backbone), "members": 1}
    (tmp_path / "own.yaml").write_text(dump(pipeline("sts-sed", short | {"name": "mine"})))
    storage, options = tmp_path / "storage", {"address": "none"}
    space = {"space.sed.optim.lr": [1e-5, 3e-5], "by": "point", "keep": 1, "seeds": 2}
    found = run_search(str(tmp_path / "own.yaml"), space, small_world, storage, **options)
    assert len(list(storage.glob("runs/*/run.json"))) == 5 and found["name"] == "mine"
    page = Path(found["report"]).read_text()
    assert "Chosen by mean over seeds" in page and "trained alone" not in page, "no command takes the name 'mine'"
    few = {"sed.data.sample": 40, "sed.train.max_steps": 1, "evaluation.tasks": ["stsb"], "evaluation.resamples": 0}
    ended = distill_models((), few, None, storage, from_study="mine", **options)
    best = {point["run"] for point in found["points"] if point["overrides"] == found["best"]["overrides"]}
    assert {row["run_id"] for row in ended["results"] if row["role"] == "member"} == best
    assert len(list(storage.glob("runs/*/run.json"))) == 6, "the student alone is trained"
    planned = plan("distill", few, None, storage, from_study="mine")
    assert planned["name"] == "mine-distilled" and {node["status"] for node in planned["nodes"]} == {"done"}


@pytest.mark.whole
def test_sed_5_5_is_one_command(small_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    overrides = {
        **TWO, "seeds": 1, "backbone": str(tiny_backbone), "members": 2, "sed.data.sample": 40,
        "evaluation.tasks": ["stsb"], "evaluation.resamples": 4,
    }  # fmt: skip
    planned = plan("sts-grid-sed", overrides, small_world, tmp_path / "storage")
    runs = [node for node in planned["nodes"] if node["kind"] == "train"]
    # The grid, a second member, the student.
    assert len(runs) == 2 + 2 and {node["status"] for node in runs} == {"waiting"}
    shown = show_recipe("sts-grid-sed@small", overrides)["recipe"]
    assert shown["search"]["space"] == {BOUND: "0.0,0.6"} and shown["then"]["members"] == 2
    found = run_recipe("sts-grid-sed", overrides, small_world, tmp_path / "storage", address="none")
    assert found["best"]["overrides"][BOUND] in (0.0, 0.6) and len(found["points"]) == 2
    members = {row["run_id"] for row in found["results"] if row["role"] == "member"}
    chosen = {p["run"] for p in found["points"] if p["overrides"] == found["best"]["overrides"]}
    assert len(members) == 2 and chosen < members
    assert {row["split"] for row in found["results"]} == {"test"} and Path(found["report"]).is_file()
    assert len(list((tmp_path / "storage" / "runs").iterdir())) == 2 + 1 + 1  # one more member, the student
    again = plan("sts-grid-sed", overrides, small_world, tmp_path / "storage")
    assert {node["status"] for node in again["nodes"]} == {"done"}


@pytest.mark.whole
@pytest.mark.parametrize(
    ("combine", "settings", "count"),
    [
        ("ensemble", {"keep": 2}, 4),
        pytest.param("sed", THREE, 3, marks=pytest.mark.slow),
        pytest.param("soup", THREE, 3, marks=pytest.mark.slow),
    ],  # the best trials of a stored search: test_systems
)
def test_a_system_begins_with_a_search_and_its_members_are_the_best_points_or_trials(
    combine: str, settings: dict[str, Any], count: int, small_world: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    storage, system = tmp_path / "storage", f"sts-{combine}"
    overrides = {
        **SHORT, "space.lower_bound": "0,0.3,0.6", "seeds": 2, "backbone": str(tiny_backbone),
        "evaluation.tasks": ["stsb"], "evaluation.resamples": 4, **settings,
    }  # fmt: skip
    overrides |= {"sed.data.sample": 40} if combine == "sed" else {}
    planned = plan(system, overrides, small_world, storage)
    trained = [node for node in planned["nodes"] if node["kind"] == "train"]
    assert len(trained) == 6 + (combine == "sed"), "a search with its trials, which are the members"
    found = run_recipe(system, overrides, small_world, storage, address="none")

    points = found["points"]
    best = sorted(points, key=lambda point: (-point["value"], point["run"]))[:3]
    if "by" not in settings:
        means = {b: sum(p["value"] for p in points if p["overrides"][BOUND] == b) for b in (0.0, 0.3, 0.6)}
        order = sorted(means, key=means.__getitem__, reverse=True)[:2]
        best = [p for b in order for p in sorted(points, key=lambda p: p["seed"]) if p["overrides"][BOUND] == b]
    record = json.loads((storage / f"pipelines/{system}.json").read_text())
    assert record["members"] == [point["run"] for point in best] and len(best) == count
    assert record["pipeline"]["trials"] == [{"point": p["overrides"], "seed": p["seed"]} for p in best]
    rows = {row["run_id"] for row in found["results"] if row["role"] == "member"}
    assert rows == {point["run"] for point in best}
    assert combine in {row["role"] for row in found["results"]} | {"sed"}
    assert len(list(storage.glob("runs/*/run.json"))) == 6 + (combine != "ensemble")  # nothing is trained twice
    titles = [step["title"] for step in record["steps"]]
    assert any(f"member 0: sts ({BOUND}={best[0]['overrides'][BOUND]}, seed {best[0]['seed']})" in t for t in titles)
    again = plan(system, overrides, small_world, storage)
    assert {node["status"] for node in again["nodes"]} == {"done"}


def test_points_that_are_no_members_are_refused(small_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    base, place = {**SHORT, "backbone": str(tiny_backbone), "seeds": 1, "keep": 2}, (small_world, tmp_path / "storage")
    for word, choices in {"pooling": "mean,cls", "backbone_layers": "1,2"}.items():
        with pytest.raises(InputError, match=f"keep=2: .* points differ in {word}"):
            run_recipe("sts-ensemble", {**base, f"space.{word}": choices}, *place, address="none")
    with pytest.raises(InputError, match="leave members"):
        given = {**base, "space.lower_bound": "0,0.3", "members": 3}
        run_recipe("sts-ensemble", given, *place, address="none")
    assert not (tmp_path / "storage").exists()


@pytest.mark.whole
def test_a_sampled_search_starts_from_another(small_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    fixed = ("tau", "reconstruction", "inputs", "variance", "free_bits_of", "beta", "layout")
    space = {
        "backbone": str(tiny_backbone), "train.max_steps": 1, "train.max_length": 24, "data.sample": 64, "num_samples": 2,
        "keep": 2, "data.sources": [], "space.settings.classes": "4,8", "space.settings.dims": "4,6", "space.optim.lr": None,
    } | {f"space.settings.{key}": None for key in fixed}  # fmt: skip
    found = run_search("latte-mix", space, small_world, tmp_path, address="none")
    assert found["trials"] == 2 == len({json.dumps(point["overrides"]) for point in found["points"]})
    assert len([*tmp_path.glob("runs/*/model")]) == 2
    given = {"name": "second", "warm_start": "latte-mix", "address": "none"}
    assert run_search("latte-mix", space | {"optim.lr": 2e-3}, small_world, tmp_path, **given)["trials"] == 2


@pytest.mark.whole
def test_a_search_with_a_condition_and_the_latency(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    settings = {
        "backbone": tiny_backbone, "data.sample": 64,
        "space.backbone_layers": "1,2", "space.optim.lr": "1e-3,1e-2 if backbone_layers=2",
        "cost": "latency", "train.max_steps": 3, "batch": 16, "train.eval_every": 3, "keep": 1,
    }  # fmt: skip
    place = ["--data", few_world, "--storage", tmp_path, "--address", "none"]
    found = result("tune", "simcse-unsup", *place, *overrides(settings))
    rate = "simcse-unsup.optim.lr"
    points = [point["overrides"] for point in found["points"]]
    assert points == [{"backbone_layers": 1}] + [{"backbone_layers": 2, rate: value} for value in (1e-3, 1e-2)]
    assert all(point["cost"] > 0 for point in found["points"]) and found["front"]
    assert pq.read_table(Path(found["study"]) / "trials.parquet")[rate].to_pylist() == [None, 1e-3, 1e-2]
    page = Path(found["report"]).read_text()
    assert "Pareto front" in page and "latency" in page
    trials = optuna.load_study(study_name=found["name"], storage=f"sqlite:///{found['study']}/optuna.db").trials
    assert [trial.values for trial in trials] == [[point["value"], point["cost"]] for point in found["points"]]
