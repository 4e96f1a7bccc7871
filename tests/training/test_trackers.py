"""Training runs in tools that follow experiments, each read back with the tool's own reader."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import pytest
import run_commands
from processes import wait_until
from run_commands import listening

import raysts
from raysts.commands import parser
from raysts.recipes.recipe import DEFAULTS
from raysts.storage import store as store_module
from raysts.storage.checksums import write_record
from raysts.storage.store import Store
from raysts.training import trackers
from raysts.training.job import Job

FEW = {
    "backbone": "tiny", "members": 2, "train.max_steps": 4, "train.eval_every": 2, "evaluation.resamples": 0,
    "evaluation.tasks": ["stsb"], "evaluation.layers": [1],
}  # fmt: skip


def test_one_option_names_the_tools() -> None:
    places = {"mlflow": "sqlite:///a,b.db", "wandb": "mine", "trackio": ""}
    for words in (["run", "ct"], ["tune", "lower-bound"], ["distill", "A"]):
        asked = [*words, "--track", "mlflow=sqlite:///a,b.db,wandb=mine,trackio"]
        assert parser.parse(asked)[1]["track"] == places


def test_a_tool_that_cannot_take_runs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(place: str) -> str:
        more = ["--set", "backbone=tiny", "--storage", tmp_path / "s", "--address", "none", "--track", place]
        outcome = run_commands.raysts("run", "nli", *more)
        assert outcome.code == 2 and not (tmp_path / "s").exists()
        return outcome.err

    assert "must be one of tensorboard, mlflow, wandb, trackio" in refuse("tensorbord")
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "wandb" else real(name, *rest))
    assert "pip install wandb" in refuse("wandb")
    pytest.importorskip("mlflow")
    assert "cannot be used" in refuse("mlflow=nothing://here")


@pytest.mark.whole
def test_mlflow_sees_a_run_train_and_go_on(few_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = str(tmp_path / "runs")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.MlflowClient(tracking_uri=uri)
    monkeypatch.setattr(trackers, "EVERY", 0.02)

    def states() -> dict[str, str]:
        experiment = client.get_experiment_by_name("nli")
        runs = client.search_runs([experiment.experiment_id]) if experiment else []
        return {run.info.run_name: run.info.status for run in runs}

    def train(**more: Any) -> Any:
        options = {"address": "none", "track": {"mlflow": uri, "tensorboard": ""}}
        return raysts.run("nli", {**FEW, **more}, few_world, tmp_path / "s", **options)

    seen = []
    with listening(lambda text: seen.append(states()) if "1 nli: step 4/4" in text else None):
        result = train()
    assert seen and "nli member 0" in seen[0], "while the other trains"
    assert states() == dict.fromkeys(("nli member 0", "nli member 1", "results"), "FINISHED")
    found = {run.info.run_name: run for run in client.search_runs([client.get_experiment_by_name("nli").experiment_id])}
    scores = found["results"].data.metrics
    assert scores.keys() == result.main_scores().keys() and "backbone/stsb" in scores
    assert len([*(tmp_path / "s" / "reports" / "nli" / "tensorboard").glob("nli member */events*")]) == 2
    train()  # all is done
    assert len(client.search_runs([client.get_experiment_by_name("nli").experiment_id])) == 3, "none was sent again"

    def full(*given: Any, **more: Any) -> None:
        raise mlflow.exceptions.MlflowException("http://alice:hunter22@host/ is full")

    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", full)
    messages: list[str] = []
    with listening(messages.append):
        assert train(seed=7, members=1)["status"] == "done"
    (failure,) = [text for text in messages if text.startswith("mlflow: ")]
    assert "the run goes on" in failure and "hunter22" not in failure


class Notebook(trackers.Tracker):
    """A tool that writes down what it is told, and is the run that it opens."""

    def __init__(self, broken: bool = False) -> None:
        super().__init__("", "", Path())
        self.broken, self.told = broken, list[Any]()

    def begin(self, run: trackers.TrackedRun, key: str | None) -> str:
        if self.broken:
            raise OSError("http://alice:hunter22@host/ is full")
        self.told.append(("begin", run.name, key))
        self.runs[run.id] = self
        return run.id

    def log(self, numbers: dict[str, float], step: int | None = None) -> None:
        self.told.append((numbers, step))

    def finish(self) -> None:
        self.told.append("finish")


def test_tools_get_each_line_once_and_the_score_that_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is interrupted, and one that goes on to the end; a tool that fails stops no other."""
    mlflow = pytest.importorskip("mlflow")
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    uri, live = str(tmp_path / "mlruns"), tmp_path / trackers.LIVE
    store, folder, said = Store.open(str(tmp_path)), tmp_path / "runs" / "abc", list[str]()
    folder.mkdir(parents=True)
    facts = {"stage": "nli", "role": "member", "member": 0}
    job = Job(id="abc", recipe=DEFAULTS["nli"], seed=7, folder=folder, parent=folder, store=folder, facts=facts)
    lines = [{"step": step, "steps": 2, "loss": 1 / step, "best": True, "seconds": 10.0 * step} for step in (1, 2)]

    def command(known: int, record: dict[str, Any], **results: float) -> tuple[Notebook, Any]:
        """What a command tells a notebook and MLflow while a run gets so many lines and then this record."""
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:known]))
        write_record(folder / "run.json", record)
        tools = {"broken": Notebook(True), "notebook": Notebook(), "mlflow": trackers.MLflow(uri, "nli", tmp_path)}
        tools["tensorboard"] = trackers.TensorBoard("", "", live)
        with trackers.TrackerThread(tools, store, "pipelines/a") as thread:
            trackers.follow(job)
            if results:
                thread.add_results("dev", results)
        client = mlflow.MlflowClient(tracking_uri=uri)
        runs = client.search_runs([client.get_experiment_by_name("nli").experiment_id])
        return tools["notebook"], {run.info.run_name: (run, client) for run in runs}

    with listening(said.append):
        told, runs = command(1, {"status": "running"})
    (failure,) = said
    assert failure.startswith("broken: ") and failure.endswith("the run goes on") and "hunter22" not in failure
    first = {"loss": 1.0, "seconds": 10.0}
    assert told.told == [("begin", "nli member 0", None), (first, 1), "finish"]
    assert runs["nli member 0"][0].info.status == "KILLED", "the command has ended before the run"
    assert not [*live.glob("[!.]*")], "the page's files take their place"

    told, runs = command(2, {"status": "done", "dev": {"kept": 0.75}}, stsb=0.5)
    assert told.told[:3] == [("begin", "results", None), ({"stsb": 0.5}, 0), "finish"]
    assert (store.read_json("pipelines/a/tracked.json") or {}).keys() == {"abc", "results-a-dev"}
    second, kept = ({"loss": 0.5, "seconds": 20.0}, 2), ({"kept": 0.75}, None)
    assert told.told[3:] == [("begin", "nli member 0", "abc"), second, kept, "finish"]
    run, client = runs["nli member 0"]
    assert run.info.status == "FINISHED" and run.data.metrics["kept"] == 0.75
    assert (run.data.params["seed"], run.data.params["optim.lr"]) == ("7", str(DEFAULTS["nli"].optim.lr))
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(metric.step, metric.value) for metric in history] == [(1, 1.0), (2, 0.5)]
    assert 0 <= time.time() - history[-1].timestamp / 1000 < 600

    trackers.TensorBoard("", "", live).send("abc", lines, -1)
    events = reader.EventAccumulator(str(live / "abc")).Reload().Scalars("loss")
    assert events[1].wall_time - events[0].wall_time == pytest.approx(10.0)
    assert 0 <= time.time() - events[1].wall_time < 600, "the last line is of now"


@pytest.mark.whole
@pytest.mark.parametrize("tool", ["wandb", pytest.param("trackio", marks=pytest.mark.slow)])
def test_other_tools_take_the_runs(tool: str, few_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network: W&B writes its files, trackio its database."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setattr(trackers, "EVERY", 0.02)  # a member is sent while the other trains, and its files stay
    monkeypatch.setattr(trackers, "GRACE", 300)  # a busy machine starts their processes late
    for name in ("WANDB_X_SERVICE_WAIT", "WANDB_INIT_TIMEOUT"):
        monkeypatch.setenv(name, "300")
    for name in ("WANDB_X_DISABLE_STATS", "WANDB_X_DISABLE_META"):  # of the machine, which it looks through for seconds
        monkeypatch.setenv(name, "true")
    pytest.importorskip(tool)
    messages: list[str] = []
    with listening(messages.append):
        sets = {**FEW, "members": 1}
        raysts.run("nli", sets, few_world, tmp_path / "s", address="none", track={tool: "mine"})
    assert not [text for text in messages if text.startswith(f"{tool}: ")]
    if tool == "wandb":
        names = {f"run-{path.name}.wandb" for path in (tmp_path / "s" / "runs").iterdir()} | {"run-results-nli.wandb"}
        # W&B's own process writes them, on a busy machine after the run has ended.
        wait_until(lambda: {path.name for path in (tmp_path / "s").rglob("run-*.wandb")} >= names, pause=0.1)
        assert len(names) == 2 == len([*(tmp_path / "s").rglob("run-*.wandb")]), "a member, and the results"
    else:
        assert len([*(tmp_path / "trackio").rglob("mine*")]) >= 1


def test_a_storage_that_takes_no_more_ends_no_tool(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was lost is the lease of the command, which ends with that message; the thread has none of its own."""
    monkeypatch.setattr(trackers, "EVERY", 0.05)
    store, said = Store.open(s3), list[str]()
    followed = trackers.TrackerThread({"tensorboard": trackers.TensorBoard("", "", tmp_path)}, store, "pipelines/a")
    with store.lock("locks/a.lock", "a test"), listening(said.append), followed as thread:
        for lease in store_module._leases:
            lease.lost = "another process has taken it"
        thread.sent["run"] = {}
        wait_until(lambda: len(said) > 1)
    assert all("--track: " in line and "another process has taken it; it writes no more" in line for line in said)
