from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import Command, wait_until

ROOT = Path(__file__).parents[2]
TOKEN = "token-of-the-test-head"
SMALL = ["--set", "train.max_steps=10", "--set", "evaluation.tasks=[stsb]", "--set", "evaluation.resamples=5"]
RAY = ["-m", "ray.scripts.scripts"]


@dataclass(frozen=True)
class Head:
    """A running head node with its dashboard on loopback."""

    dashboard: str
    environment: dict[str, str]
    temporary: Path
    working_dir: Path

    def submit(self, job: str, *arguments: object, cwd: Path | None = None) -> subprocess.Popen[str]:
        """``ray job submit --working-dir COPY -- python jobs/JOB ARGUMENTS``."""
        entry = [sys.executable, f"jobs/{job}", *map(str, arguments)]
        return subprocess.Popen(
            [
                sys.executable,
                *RAY,
                "job",
                "submit",
                "--address",
                self.dashboard,
                "--working-dir",
                self.working_dir,
                "--",
            ]
            + entry,
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def status(self, path: str, token: str | None) -> int:
        """HTTP status of a page of the dashboard."""
        request = urllib.request.Request(self.dashboard + path)
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0


def _ports(count: int) -> list[int]:
    """Ports that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    """``ray start --head`` with token authentication; nothing else on this machine learns of it."""
    # Sockets lie in it, and their paths must be short.
    temporary = Path(tempfile.mkdtemp(prefix="rh", dir="/tmp"))  # noqa: S108
    (temporary / "token").write_text(TOKEN)
    (temporary / "token").chmod(0o600)
    environment = {
        "RAY_TMPDIR": str(temporary),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(temporary / "token"),
        "HOME": str(temporary),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
    }
    working_dir = tmp_path_factory.mktemp("working-dir")
    for name in ("raysts", "jobs"):
        shutil.copytree(ROOT / name, working_dir / name, ignore=shutil.ignore_patterns("__pycache__"))
    gcs, dashboard, client, listen, grpc, metrics = _ports(6)
    command = Command(
        [*RAY, "start", "--head", "--block", "--num-cpus=2", f"--port={gcs}", "--dashboard-host=127.0.0.1",
         f"--dashboard-port={dashboard}", f"--ray-client-server-port={client}", "--disable-usage-stats",
         f"--dashboard-agent-listen-port={listen}", f"--dashboard-agent-grpc-port={grpc}",
         f"--metrics-export-port={metrics}", "--object-store-memory=150000000"],
        tmp_path_factory.mktemp("head") / "head.log",
        environment,
    )  # fmt: skip
    found = Head(f"http://127.0.0.1:{dashboard}", environment, temporary, working_dir)
    try:
        wait_until(lambda: found.status("/api/version", TOKEN) == 200 or command.ended(), pause=0.2)
        assert not command.ended(), command.stderr() + command.stdout()
        yield found
    finally:
        command.sweep()
        shutil.rmtree(temporary, ignore_errors=True)


def _ended(job: subprocess.Popen[str]) -> tuple[int, str]:
    output = job.communicate(timeout=300)[0]
    return job.returncode, output


def _result(output: str) -> dict:
    """The JSON line of a job; its output is shown with other lines around it."""
    (line,) = [line for line in output.splitlines() if line.startswith('{"status": "done"')]
    return json.loads(line)


def test_without_the_token_nothing_is_answered(head: Head) -> None:
    assert head.status("/api/jobs/", None) == head.status("/api/version", None) == 401
    assert head.status("/api/jobs/", "another token") in (401, 403)
    assert head.status("/api/jobs/", TOKEN) == 200


def test_jobs_do_what_the_commands_do(head: Head, small_world: Path, tmp_path: Path) -> None:
    storage, data = tmp_path / "storage", ["--data", small_world]
    sessions = list((head.temporary / "ray").glob("session_2*"))
    wrong = head.submit("run.py", "quickstrat", "--storage", storage)
    run = head.submit(
        "run.py", "quickstart", *data, "--storage", storage, *SMALL,
        "--set", "members=1", "--set", "sed.data.sample=100", "--json",
    )  # fmt: skip
    code, output = _ended(run)
    assert code == 0, output
    found = _result(output)
    assert Path(found["model"]).is_relative_to(storage) and Path(found["report"]).exists()
    record = json.loads((Path(found["model"]).parent / "run.json").read_text())
    assert record["where"].startswith("Ray Train")

    # The status of the job is that of the command.
    code, output = _ended(wrong)
    assert code != 0 and "exit code 2" in output and "did you mean 'quickstart'" in output

    (tmp_path / "data/wikipedia").mkdir(parents=True)
    shutil.copy(small_world / "wikipedia/articles.parquet", tmp_path / "data/wikipedia")
    started = {
        "evaluate": head.submit("evaluate.py", found["model"], *data, "--storage", storage, "--tasks", "stsb",
                                "--resamples", 5, "--json"),
        "distill": head.submit("distill.py", "--from-run", "quickstart", "--storage", storage, *SMALL, "--set",
                               "sed.data.sample=120", "--json"),
        "train_ensemble": head.submit("train_ensemble.py", "nli", *data, "--storage", storage, *SMALL, "--set",
                                      "members=2", "--json"),
        "prepare_data": head.submit("prepare_data.py", "--data", tmp_path / "data", "--sample", 200, "--json"),
    }  # fmt: skip
    results = {}
    for name, job in started.items():
        code, output = _ended(job)
        assert code == 0, f"{name}: {output}"
        results[name] = _result(output)
    assert {row["dataset"] for row in results["evaluate"]["results"]} == {"stsb"}
    assert Path(results["distill"]["model"]).is_relative_to(storage) and results["distill"]["model"] != found["model"]
    assert {row["member"] for row in results["train_ensemble"]["results"] if row["role"] == "member"} == {0, 1}
    assert results["prepare_data"]["rows"] == 200
    # A driver that did not join the running cluster would have started one of its own.
    assert list((head.temporary / "ray").glob("session_2*")) == sessions


def test_a_job_without_storage_does_not_lose_its_work(head: Head, small_world: Path) -> None:
    """A job's working directory is a copy that Ray throws away."""
    job = head.submit(
        "run.py", "raw", "--data", small_world, "--set", "backbone=tiny", "--set", "evaluation.tasks=[stsb]", "--json"
    )
    code, output = _ended(job)
    assert code == 0, output
    home = Path(head.environment["HOME"]) / "raysts-storage"
    assert _result(output)["storage"] == str(home) and (home / "results").is_dir()
    assert "--storage" in output and str(home) in output
    refused = head.submit("run.py", "raw", "--data", small_world, "--storage", "here", "--set", "backbone=tiny")
    code, output = _ended(refused)
    assert code != 0 and "exit code 2" in output and "absolute" in output
