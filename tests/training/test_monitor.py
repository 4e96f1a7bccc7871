from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from run_commands import listening

from raysts import log
from raysts.recipes.recipe import DEFAULTS
from raysts.storage.checksums import write_record
from raysts.training import monitor
from raysts.training.job import Job
from raysts.training.monitor import RunMonitor, duration


def job(path: Path, number: int) -> Job:
    folder = path / str(number)
    folder.mkdir()
    facts = {"stage": "nli", "member": number}
    return Job(id=folder.name, recipe=DEFAULTS["nli"], seed=0, folder=folder, parent=path, store=path, facts=facts)


def stand(of: Job, step: int, status: str = "running", **more: float) -> None:
    line = {"step": step, "steps": 100, "loss": 0.5, "examples_per_second": 10.0, **more}
    (of.folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    record = {"status": status, "steps": step, "timings": {"train_seconds": 12.34}, "dev": {"kept": 0.875}}
    write_record(of.folder / "run.json", record)


def test_how_all_stands_is_said_where_there_is_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(monitor.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(log.sys, "stderr", SimpleNamespace(isatty=lambda: False, write=len, flush=int))
    said: list[str] = []
    jobs = [job(tmp_path, number) for number in range(4)]
    with listening(said.append), log.screen.working(), RunMonitor(10) as watched:
        log.screen.follow("10 runs train", 10.0, 10.0)
        stand(jobs[0], 100, "done")
        stand(jobs[1], 50, dev=0.75)
        stand(jobs[2], 50, loss=1.0)
        stand(jobs[3], 0, "failed", loss=9.0)
        now[0] += 30
        watched.update(jobs, 7)
        assert said == ["member 0 nli: 100 steps in 12.3 s, loss 0.5000, dev 87.50"]
        assert watched.status().startswith("1 of 10 runs done; 3 training"), "a run that is tried again is no failure"
        now[0] += 30
        watched.update(jobs[:3], 7)
        assert said[1:] == [
            "1 of 10 runs done; 2 training, 7 waiting; loss 0.7500; dev 75.00; 40 sentences/s; about 4 min 00 s left"
        ]
        now[0] += 59
        watched.update(jobs, 7)
        assert len(said) == 2


def test_durations_as_people_read_them() -> None:
    seconds = (None, float("inf"), 0.04, 9.94, 9.96, 59.4, 59.6, 61.0, 3599.4, 3600.0, 7325.0)
    assert [duration(value) for value in seconds] == [
        "–", "–", "0.0 s", "9.9 s", "10 s", "59 s", "1 min 00 s", "1 min 01 s", "59 min 59 s", "1 h 00 min", "2 h 02 min",
    ]  # fmt: skip
