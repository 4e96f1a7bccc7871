"""Every job under ``ray job submit``, on one head node with token authentication."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from heads import TOKEN, Head, running_head
from processes import standing_still, wait_until, writer_of
from run_commands import overrides
from safetensors.torch import load_file

from raysts.cluster.connect import LOOPBACK
from raysts.commands.run import run as run_recipe
from raysts.errors import InputError
from raysts.pipeline.executor import LocalExecutor
from raysts.pipeline.plan import Plan
from raysts.pipeline.step import Context
from raysts.storage.foreign import read_json

SMALL = ["--set", "train.max_steps=4", "--set", "evaluation.tasks=[stsb]", "--set", "evaluation.resamples=5"]
SECRETS = {"HF_TOKEN": "hf_SecretOfTheJobs", "AWS_SECRET_ACCESS_KEY": "aws/SecretOfTheJobs"}


@pytest.fixture(scope="module")
def head(own_nodes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    """Two CPUs, and secrets in the environment of everything that runs there."""
    with running_head(tmp_path_factory.mktemp("head"), 2, SECRETS) as found:
        yield found


@pytest.mark.parametrize(("job", "words", "said"), [
    ("train_ensemble.py", ["--set", "members=2", "nli-sed"], "'nli-sed' is more than member stages"),
    ("train_ensemble.py", ["quickstart"], "'quickstart' is more than member stages"),
    ("run.py", ["quickstrat"], "did you mean 'quickstart'"),
])  # fmt: skip
def test_a_job_that_is_refused_ends_as_its_command_does(job: str, words: list[str], said: str, tmp_path: Path) -> None:
    """What the cluster makes of that, the test of a relative storage shows."""
    command = [sys.executable, Path(__file__).parents[2] / "jobs" / job, *words, "--storage", tmp_path / "s"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and said in done.stderr and not (tmp_path / "s").exists()


def ended(job: subprocess.Popen[str]) -> tuple[int, str]:
    output = job.communicate(timeout=600)[0]
    return job.returncode, output


def result(output: str) -> dict[str, Any]:
    """The JSON line of a job; its output is shown with other lines around it."""
    (line,) = [line for line in output.splitlines() if line.startswith('{"status": "done"')]
    return json.loads(line)


def exit_code(head: Head, name: str) -> int:
    """Exit code of a job's command, as the cluster remembers it."""
    return int(head.ask(f"/api/jobs/{name}")[1]["driver_exit_code"])


def texts(folder: Path) -> dict[Path, str]:
    """The text of every file, that of Parquet files unpacked."""
    return {
        path: str(pq.read_table(path).to_pydict())
        if path.suffix == ".parquet"
        else path.read_bytes().decode("utf-8", "replace")
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_nothing_is_answered_without_the_token(head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from raysts.cluster.connect import find_cluster

    assert head.ask("/api/jobs/", None)[0] == head.ask("/api/version", None)[0] == 401
    assert head.ask("/api/jobs/", "another token")[0] in (401, 403) and head.ask("/api/jobs/", TOKEN)[0] == 200

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(LOOPBACK, "1")
    monkeypatch.setenv("RAY_TMPDIR", head.environment["RAY_TMPDIR"])
    with monkeypatch.context() as patch:
        for name, value in {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "another"}.items():
            patch.setenv(name, value)
        with pytest.raises(InputError, match=r"asks for a token.*RAY_AUTH_MODE=token"):
            find_cluster(head.gcs)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text(TOKEN)
    # A cluster of this machine is asked without a token first, then joined with the token of this machine, as by Ray.
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert find_cluster(None) == head.gcs and os.environ["RAY_AUTH_MODE"] == "token"
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # for the end of the test to take back


@pytest.mark.anyray
def test_a_stopped_job_goes_on_when_it_is_submitted_again_and_runs_to_its_end(
    head: Head, small_world: Path, planned: Callable[..., Plan], tmp_path: Path
) -> None:
    """With two workers then, and its member is that of one process."""
    sessions = list((head.temporary / "ray").glob("session_2*"))
    # Without --storage: the working directory of a job is a copy that Ray throws away.
    home = Path(head.environment["HOME"]) / "raysts-storage"
    given = {
        "backbone": "tiny", "members": 1, "train.max_steps": 60, "train.checkpoint_every": 10, "train.dropout": False,
        "train.precision": "fp32", "nli.optim.lr": 1e-4, "batch": 8,
    }  # fmt: skip
    plan = planned(home, "nli", given)
    plan.write_backbone()
    (tokens,) = (step for step in plan.steps if step.kind == "tokens")
    tokens.work(Context(LocalExecutor(threads=1), plan.store))  # an actor less, which is not what is stopped
    arguments = ["nli", "--data", small_world, *SMALL, *overrides(given), "--json"]
    first = head.submit("run.py", *arguments, name="stopped")
    wait_until(lambda: list(home.glob("runs/*/checkpoints/step-*.pt")) or first.poll() is not None)
    assert first.poll() is None, first.communicate()[0]
    (folder,) = (path.parent for path in home.glob("runs/*/run.json"))
    said = "interrupted; finished work is kept. To go on: raysts run nli"
    with standing_still(writer_of(folder)):  # else the run would come to its end before the stop has begun
        # What `ray job stop` asks for.
        assert head.ask("/api/jobs/stopped/stop", method="POST") == (200, {"stopped": True})
        # `ray job submit` may stop reading before the job has said its last.
        wait_until(lambda: said in str(head.ask("/api/jobs/stopped/logs")[1]), pause=0.1)
    wait_until(lambda: head.ask("/api/jobs/stopped")[1]["status"] == "STOPPED", pause=0.1)
    saved = max(int(path.stem.partition("-")[2]) for path in folder.glob("checkpoints/step-*.pt"))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= saved]

    again = head.submit("run.py", *arguments, *overrides({"resources.workers": 2}), name="again")
    _, output = ended(first)  # it takes seconds to see the end of its job
    assert "Traceback" not in output and "tokenise" not in output, output
    calm = run_recipe("nli", {**given, "evaluation.tasks": []}, small_world, tmp_path, address="none")
    code, output = ended(again)
    assert code == exit_code(head, "again") == 0, output
    assert (folder / "metrics.jsonl").read_text().splitlines()[: len(kept)] == kept
    found = result(output)
    assert found["storage"] == str(home) and "--storage" in output and Path(found["report"]).exists()
    assert Path(found["model"]).parent == folder
    record = read_json(folder / "run.json")
    assert record is not None and record["where"].startswith("Ray Train") and record["layout"]["world_size"] == 2
    assert kept and saved < record["steps"], "ended too late to say anything"
    models = (plan.backbone, found["model"], calm["model"])
    start, weights, others = (load_file(Path(model) / "model.safetensors") for model in models)
    assert max((weights[name] - others[name]).abs().max() for name in weights) < 1e-5
    assert max((weights[name] - start[name]).abs().max() for name in weights) > 1e-4  # they were trained
    # One line per stage, none drawn over another; nothing of Ray's own but what frames the log.
    said = output[output.index("Tailing logs") : output.index('{"status"')]
    assert len(re.findall(rf"^member 0 nli: {record['steps']} steps in ", said, re.M)) == 1
    assert not re.search(r"[\r\x1b]|\d+%\||it/s|Running Dataset|\(\w+ pid=", said), said
    # A driver that did not join the running cluster would have started one of its own.
    assert list((head.temporary / "ray").glob("session_2*")) == sessions

    written = texts(home)
    assert len(written) > 10
    for value in (*SECRETS.values(), TOKEN):
        assert value not in output and not [path for path, text in written.items() if value in text]


@pytest.mark.slow  # each of them starts a driver; test_docs checks that they take the arguments of their commands
def test_every_other_job_does_what_its_command_does(head: Head, small_world: Path, tmp_path: Path) -> None:
    storage, data = tmp_path / "storage", ["--data", small_world]
    common = [*data, "--storage", storage, *SMALL, "--json"]
    small = overrides({"backbone": "tiny", "members": 2})
    code, output = ended(head.submit("train_ensemble.py", "nli", *common, *small))
    assert code == 0, output
    ensemble = result(output)
    assert {row["member"] for row in ensemble["results"] if row["role"] == "member"} == {0, 1}

    (tmp_path / "data/wikipedia").mkdir(parents=True)
    shutil.copy(small_world / "wikipedia/articles.parquet", tmp_path / "data/wikipedia")
    search = [*common, "--set", "backbone=tiny", "--set", "seeds=1"]
    one = ["--set", "num_samples=1"]
    started = {
        "evaluate": head.submit("evaluate.py", ensemble["model"], *data, "--tasks", "stsb", "--resamples", 5, "--json"),
        "distill": head.submit("distill.py", "--from-run", "nli", *common, "--set", "sed.data.sample=60"),
        "prepare_data": head.submit("prepare_data.py", "--data", tmp_path / "data", "--sample", 200, "--json"),
        "tune": head.submit("tune.py", "gausscse", *search, *one, "--name", "any", "--set", "space.batch=8"),
        "tune_gausscse": head.submit("tune_gausscse.py", *search, *one, "--set", "space.batch=8,16"),
        "tune_latte_mix": head.submit("tune_latte_mix.py", *search, *one),
        "tune_lower_bound": head.submit("tune_lower_bound.py", *search, "--set", "space.lower_bound=0.25"),
    }
    results = {}
    for name, job in started.items():
        code, output = ended(job)
        assert code == 0, f"{name}: {output}"
        results[name] = result(output)
    assert {row["dataset"] for row in results["evaluate"]["results"]} == {"stsb"}
    assert Path(results["distill"]["model"]).is_relative_to(storage) and results["prepare_data"]["rows"] == 200
    assert all(found["trials"] >= 1 for name, found in results.items() if name.startswith("tune"))
    jobs = {path.stem for path in (Path(__file__).parents[2] / "jobs").glob("*.py")}
    assert jobs == {*started, "train_ensemble", "run"}


@pytest.mark.slow
def test_a_relative_storage_is_refused_in_a_job(head: Head, small_world: Path) -> None:
    refused = head.submit("run.py", "raw", "--data", small_world, "--storage", "here", name="relative")
    code, output = ended(refused)
    assert code == 1 and exit_code(head, "relative") == 2 and "absolute" in output
