"""Trials in TensorBoard, MLflow, Weights & Biases and Optuna's dashboard, each read back with the tool's own reader."""

from __future__ import annotations

import importlib.util
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest
from processes import wait_until

from raysts.commands.tune import tune as run_search
from raysts.search import tracking
from raysts.search.record import Record
from raysts.search.tracking import Trackers

BOUND = "sts.settings.lower_bound"
TWO = {
    "train.max_steps": 4, "train.eval_every": 2, "train.max_length": 24, "sts.data.sample": 64,
    "space.lower_bound": "0,0.6", "seeds": 2,
}  # fmt: skip


def record(bound: float, seed: int, status: Any = "finished", value: float | None = 0.5) -> Record:
    return Record(
        id=f"{bound}-{seed}", point={BOUND: bound}, seed=seed, status=status, value=value, step=10, seconds=20.0,
        finished_at="2026-01-01T00:01:00+00:00",
    )  # fmt: skip


def lines(value: float | None = 0.5) -> list[dict[str, Any]]:
    return [
        {"step": 5, "steps": 10, "loss": 1.5, "dev": 0.3, "seconds": 10.0},
        {"step": 10, "steps": 10, "loss": 1.0, "dev": value, "seconds": 20.0},
    ]


def send(folder: Path, *records: Record, said: list[str], **tools: Any) -> None:
    """One session of a search in which these trials end."""
    with Trackers("s", folder, **{"mlflow": None, "wandb": None, **tools}, say=said.append) as trackers:
        for each in records:
            trackers.ended(each, lambda each=each: lines(each.value))


def test_tensorboard_has_every_scalar_of_a_trial(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    said: list[str] = []
    send(tmp_path, record(0.3, 0), record(0.3, 1, value=0.7), said=said)
    (folder,) = (tmp_path / "tensorboard").glob("lower_bound=0.3 seed=1 */")
    events = reader.EventAccumulator(str(folder)).Reload()
    assert sorted(events.Tags()["scalars"]) == ["dev", "kept", "loss", "seconds"]
    plugin = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")
    start = plugin.HParamsPluginData.FromString(events.PluginTagToContent("hparams")["_hparams_/session_start_info"])
    hparams = {key: value.number_value for key, value in start.session_start_info.hparams.items()}
    assert hparams == {"sts.settings.lower_bound": 0.3, "seed": 1} and [e.value for e in events.Scalars("kept")] == [
        pytest.approx(0.7)
    ]
    assert [(e.step, e.value) for e in events.Scalars("dev")] == [(5, pytest.approx(0.3)), (10, pytest.approx(0.7))]
    times = [event.wall_time for event in events.Scalars("loss")]
    assert times[1] - times[0] == pytest.approx(10.0)  # when it trained, not when it was written
    assert said == []


def test_mlflow_gets_a_run_per_trial_once_whatever_is_killed(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    said: list[str] = []
    uri = f"file:{tmp_path}/runs"
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.MlflowClient(tracking_uri=uri)
    # A killed search has begun a run and logged nothing.
    begun = client.create_run(client.create_experiment("s"), tags={"run": "0.3-0"})
    send(tmp_path, record(0.3, 0), said=said, mlflow=uri)
    (tmp_path / "tracked.json").unlink()  # killed before it could remember what it had sent
    send(tmp_path, record(0.3, 0), record(0.3, 1), record(0.4, 0, "stopped", 0.2), said=said, mlflow=uri)
    assert said == []
    runs = client.search_runs([client.get_experiment_by_name("s").experiment_id])
    assert len(runs) == 3 and begun.info.run_id not in {run.info.run_id for run in runs}
    by_point = [(run.data.tags["point"], run.data.tags["seed"], run.info.status) for run in runs]
    assert sorted(by_point) == [
        ("lower_bound=0.3", "0", "FINISHED"), ("lower_bound=0.3", "1", "FINISHED"), ("lower_bound=0.4", "0", "KILLED"),
    ]  # fmt: skip
    (first,) = [run for run in runs if run.data.tags["run"] == "0.3-0"]
    assert first.data.params == {BOUND: "0.3", "seed": "0"} and first.data.metrics["kept"] == 0.5
    history = client.get_metric_history(first.info.run_id, "dev")
    assert [(point.step, point.value) for point in history] == [(5, 0.3), (10, 0.5)]
    assert first.info.end_time - first.info.start_time == 20_000 == history[1].timestamp - first.info.start_time


def test_wandb_gets_a_run_per_trial_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    said: list[str] = []
    for _ in range(2):
        send(tmp_path, record(0.3, 0), said=said, wandb="p")
    assert said == []
    (path,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    wait_until(lambda: any(each.HasField("exit") for each in logged(path)), 60)  # another process writes
    found = list(logged(path))
    (run,) = [each.run for each in found if each.HasField("run")]
    assert (run.run_id, run.project, run.run_group) == ("s-0.3-0", "p", "s lower_bound=0.3")
    config = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in run.config.update}
    assert config[BOUND] == 0.3 and config["seed"] == 0
    steps = [{item.key or item.nested_key[0]: json.loads(item.value_json) for item in each.history.item} for each in found
             if each.HasField("history")]  # fmt: skip
    assert [(step["_step"], step["dev"]) for step in steps] == [(5, 0.3), (10, 0.5)]


def logged(path: Path) -> Iterator[Any]:
    """The records of a run's file: LevelDB's log format behind a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record as Logged

    data, place, parts = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:  # no header fits into the rest of a block
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        if place + 7 + length > len(data):  # it is being written
            return
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield Logged.FromString(parts)
            parts = b""


def test_a_tool_that_hangs_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    said: list[str] = []
    monkeypatch.setattr(tracking, "PATIENCE", 0.2)
    release = threading.Event()
    trackers = Trackers("s", tmp_path, mlflow=None, wandb=None, say=said.append)
    trackers.tools["slow"] = lambda record, metrics: release.wait(60)  # type: ignore[assignment,return-value]
    with trackers:
        for seed in range(3):
            trackers.ended(record(0.3, seed), lines)
        tensorboard, _ = trackers._senders
        tensorboard.trials.put(None)  # it may take longer than that for them, on a busy machine
        tensorboard.join(60)
    release.set()
    assert len(said) == 1 and said[0].startswith("slow: has taken no trial for") and "sends what is missing" in said[0]
    assert len(list((tmp_path / "tensorboard").glob("*/"))) == 3


@pytest.mark.parametrize("tool", ["mlflow", "wandb"])
def test_a_tool_that_is_not_installed_is_refused(tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from run_commands import raysts

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == tool else real(name, *rest))
    outcome = raysts("tune", "lower-bound", "--set", "backbone=tiny", "--storage", tmp_path / "s", f"--{tool}", "x")
    assert outcome.code == 2 and f"pip install {tool}" in outcome.err and not (tmp_path / "s").exists()
    monkeypatch.setattr(importlib.util, "find_spec", real)
    outcome = raysts("tune", "lower-bound", "--set", "backbone=tiny", "--storage", tmp_path / "s", f"--{tool}", "")
    assert outcome.code == 2 and "is empty and must be" in outcome.err and not (tmp_path / "s").exists()


def dashboard(path: Path) -> Callable[[str], Any]:
    """The JSON that Optuna's dashboard serves for a database."""
    wsgi = pytest.importorskip("optuna_dashboard").wsgi
    app = wsgi(f"sqlite:///{path}")

    def get(address: str) -> Any:
        environment: dict[str, Any] = {}
        setup_testing_defaults(environment)
        status: list[str] = []
        route, _, query = address.partition("?")
        environment |= {"PATH_INFO": route, "QUERY_STRING": query, "wsgi.input": io.BytesIO()}
        body = b"".join(app(environment, lambda code, headers, *rest: status.append(code)))
        assert status[0].startswith("200"), (address, status, body[:300])
        return json.loads(body)

    return get


def test_a_search_shows_in_every_tool_while_it_runs_and_when_it_goes_on(
    small_world: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna_dashboard")
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    storage, seen, said = tmp_path / "storage", [], list[str]()
    folder = storage / "studies" / "lower-bound"

    def trials() -> list[dict[str, Any]]:
        get = dashboard(folder / "optuna.db")
        (study,) = get("/api/studies")["study_summaries"]
        assert study["study_name"] == "lower-bound"
        return get(f"/api/studies/{study['study_id']}?after=0")["trials"]

    def say(text: str) -> None:
        said.append(text)
        if text.startswith(("1/4", "3/4")):
            seen.append([trial["state"] for trial in trials()])

    # Nothing listens on this port: the tool is dead from the beginning.
    dead = {"mlflow": "http://127.0.0.1:9"} if importlib.util.find_spec("mlflow") else {}
    base = {**TWO, "backbone": str(tiny_backbone)}
    found = run_search("lower-bound", base, small_world, storage, address="none", say=say, **dead)
    assert found["trials"] == 4 and seen == [["Complete"], ["Complete"] * 3]
    assert sum("no more trials are sent there, the search goes on" in text for text in said) == len(dead)

    shown = trials()
    assert [trial["state"] for trial in shown] == ["Complete"] * 4
    values = {
        (t["params"][0]["param_internal_value"], t["params"][1]["param_internal_value"]): t["values"][0] for t in shown
    }
    assert values == {(p["overrides"][BOUND], p["seed"]): p["value"] for p in found["points"]}

    boards = sorted((folder / "tensorboard").glob("*/"))
    assert len(boards) == 4
    for point in found["points"]:
        (board,) = [path for path in boards if path.name.endswith(point["run"][:6])]
        events = reader.EventAccumulator(str(board)).Reload().Scalars("dev")
        text = (storage / "runs" / point["run"] / "metrics.jsonl").read_text()
        logged_ = [json.loads(line) for line in text.splitlines()]
        assert [(e.step, e.value) for e in events] == [
            (x["step"], pytest.approx(x["dev"])) for x in logged_ if "dev" in x
        ]

    before = {path: path.stat().st_mtime_ns for path in (folder / "tensorboard").glob("*/*")}
    run_search("lower-bound", {**base, "seeds": 3}, small_world, storage, address="none", say=lambda text: None)
    after = {path: path.stat().st_mtime_ns for path in (folder / "tensorboard").glob("*/*")}
    assert len(after) == 6 and {path: after[path] for path in before} == before  # what was there is not written again
    assert len(trials()) == 6
