"""Trials in TensorBoard and Optuna's dashboard, each read back with the tool's own reader."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest
from run_commands import listening

from raysts.commands.tune import tune as run_search

BOUND = "sts.settings.lower_bound"
TWO = {
    "train.max_steps": 2, "train.eval_every": 1, "train.max_length": 24, "sts.data.sample": 64,
    "space.lower_bound": "0,0.6", "seeds": 2,
}  # fmt: skip


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
    few_world: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    pytest.importorskip("optuna_dashboard")
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    hparams = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")
    storage, seen = tmp_path / "storage", []
    folder = storage / "studies" / "lower-bound"

    def trials() -> list[dict[str, Any]]:
        get = dashboard(folder / "optuna.db")
        (study,) = get("/api/studies")["study_summaries"]
        assert study["study_name"] == "lower-bound"
        return get(f"/api/studies/{study['study_id']}?after=0")["trials"]

    def say(text: str) -> None:
        if text.startswith(("1/4", "3/4")):
            seen.append([trial["state"] for trial in trials()])

    base = {**TWO, "backbone": str(tiny_backbone)}
    with listening(say):
        found = run_search("lower-bound", base, few_world, storage, address="none")
    assert found["trials"] == 4 and seen == [["Complete"], ["Complete"] * 3]

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
        scalars = reader.EventAccumulator(str(board)).Reload()
        events = scalars.Scalars("dev")
        start = hparams.HParamsPluginData.FromString(
            scalars.PluginTagToContent("hparams")["_hparams_/session_start_info"]
        )
        tried = {key: value.number_value for key, value in start.session_start_info.hparams.items()}
        assert tried == {**point["overrides"], "seed": point["seed"]}
        assert [event.value for event in scalars.Scalars("kept")] == [pytest.approx(point["value"])]
        text = (storage / "runs" / point["run"] / "metrics.jsonl").read_text()
        logged_ = [json.loads(line) for line in text.splitlines()]
        assert [(e.step, e.value) for e in events] == [
            (x["step"], pytest.approx(x["dev"])) for x in logged_ if "dev" in x
        ]

    before = {path: path.stat().st_mtime_ns for path in (folder / "tensorboard").glob("*/*")}
    run_search("lower-bound", {**base, "seeds": 3}, few_world, storage, address="none")
    after = {path: path.stat().st_mtime_ns for path in (folder / "tensorboard").glob("*/*")}
    assert len(after) == 6 and {path: after[path] for path in before} == before  # what was there is not written again
    assert len(trials()) == 6


def test_mlflow_gets_a_run_per_trial(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = f"file:{tmp_path}/runs"
    overrides = {**TWO, "seeds": 1, "backbone": str(tiny_backbone)}
    track = {"mlflow": uri, "tensorboard": ""}
    found = run_search("lower-bound", overrides, few_world, tmp_path / "s", track=track, address="none")
    client = mlflow.MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name("lower-bound").experiment_id])
    by_id = {run.data.params["run"]: run for run in runs}
    assert by_id.keys() == {point["run"] for point in found["points"]} and len(by_id) == 2
    for point in found["points"]:
        run = by_id[point["run"]]
        tried = {**point["overrides"], "seed": point["seed"], "run": point["run"]}
        assert run.data.params == {key: str(value) for key, value in tried.items()} and run.info.status == "FINISHED"
        assert run.data.metrics["kept"] == point["value"]
        assert len(client.get_metric_history(run.info.run_id, "dev")) == 2
    boards = tmp_path / "s" / "studies" / "lower-bound" / "tensorboard"
    assert not [*(boards / "live").iterdir()] and len([*boards.glob("*/events*")]) == 2, "of trials that have ended"
