from __future__ import annotations

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import writer_of
from safetensors.torch import load_file
from small_runs import tokenize_table

from raysts.models.pretrained import load_tokenizer
from raysts.pipeline.local import LocalExecutor
from raysts.pipeline.nodes.train import TrainNode
from raysts.pipeline.plan import Plan
from raysts.recipes.recipe import Resources
from raysts.storage.atomic import read_json
from raysts.training.job import Job
from raysts.training.record import read_metrics

SHORT = {"train.max_steps": 30, "train.checkpoint_every": 5, "train.max_length": 40, "batch": 32}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """As a worker with one CPU has."""
    torch.set_num_threads(1)


def _made(planned: Callable[..., Plan], storage: Path, system: str, overrides: dict[str, Any]) -> Plan:
    """A plan with its backbone and token stores written."""
    made = planned(storage, system, overrides)
    made.write_backbone()
    tokenizer = load_tokenizer(made.backbone)
    for id_, spec in made.specs.items():
        if not (storage / "tokens" / id_ / "manifest.json").exists():
            tokenize_table(made.corpus, spec, tokenizer, made.store_folder(spec))
    return made


def _jobs(chain: list[TrainNode]) -> list[Job]:
    return [node.job for node in chain]


class _Watch(threading.Thread):
    """Takes note of the processes that train in each run folder; one is killed, another told to end, in mid-training."""

    def __init__(self, folders: list[Path], victim: Path, told: Path) -> None:
        super().__init__(daemon=True)
        self.folders, self.victim, self.told = folders, victim, told
        self.killed = self.ended = 0
        self.saved: list[Path] = []
        self.writers: dict[Path, set[int]] = defaultdict(set)
        self.seen: dict[Path, list[float]] = defaultdict(list)
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            for folder in self.folders:
                if pid := writer_of(folder):
                    self.writers[folder].add(pid)
                    self.seen[folder].append(time.monotonic())
            if not self.killed and any((self.victim / "checkpoints").glob("step-*.pt")):
                self.killed = writer_of(self.victim) or 0
                os.kill(self.killed, signal.SIGKILL)
            if not self.ended and len(read_metrics(self.told / "metrics.jsonl")) >= 5:
                self.ended = writer_of(self.told) or 0
                os.kill(self.ended, signal.SIGTERM)
            self.saved = self.saved or list((self.told / "checkpoints").glob("step-*.pt"))
            time.sleep(0.02)


def test_members_train_at_once_die_alone_and_come_back(planned, tmp_path: Path, cluster: None) -> None:
    """On two CPUs: two members of two stages, one of them killed; one that is told to end, which saves first; and one that
    fails for a reason of its own and is not tried again."""
    from raysts.cluster.members import train_members

    # The one that is told writes no checkpoint of its own accord.
    plans = {"nli-ct": {**SHORT, "members": 2}, "nli": {**SHORT, "members": 1, "train.checkpoint_every": 10_000}}
    here = [_made(planned, tmp_path / "here", name, overrides) for name, overrides in plans.items()]
    for plan in here:
        for chain in plan.chains:
            assert LocalExecutor(threads=1).train([_jobs(chain)], Resources(), lambda text: None) == [None]

    there, told = (_made(planned, tmp_path / "there", name, overrides) for name, overrides in plans.items())
    failing = _made(planned, tmp_path / "there", "nli", {**SHORT, "members": 1, "seed": 5, "nli.optim.lr": 1e30})
    chains = [_jobs(plan.chains[i]) for plan, i in ((there, 0), (failing, 0), (told, 0), (there, 1))]
    folders = [job.folder for chain in chains for job in chain]
    watch, said = _Watch(folders, there.chains[0][0].job.folder, told.chains[0][0].job.folder), []
    watch.start()
    outcomes = train_members(chains, Resources(), said.append)
    watch.stop.set()
    watch.join()

    assert outcomes[0] is outcomes[2] is outcomes[3] is None, outcomes
    assert "the loss is nan" in outcomes[1] and "nli.optim.lr (1e+30)" in outcomes[1]
    assert [text for text in said if "the loss is nan" in text] == [f"failed: {outcomes[1]}"]
    failed = read_json(failing.chains[0][0].job.folder / "run.json")
    assert failed["status"] == "failed" and "the loss is nan" in failed["reason"]
    assert Path(outcomes[1].split("[log: ")[1].rstrip("]")).read_text().startswith("Traceback")

    assert watch.killed and watch.ended and watch.saved, "told to end, it saved and ended"
    assert {folder: len(found) for folder, found in watch.writers.items()} == {
        folder: 2 if folder in (watch.victim, watch.told) else 1 for folder in folders
    }
    pairs = [pair for a, b in zip(here, (there, told), strict=True) for pair in zip(a.chains, b.chains, strict=True)]
    for one_chain, other_chain in pairs:
        for one, other in zip(one_chain, other_chain, strict=True):
            assert (one.model / "model.safetensors").read_bytes() == (other.model / "model.safetensors").read_bytes()
            assert other.record["where"].startswith("Ray Train") and one.record["where"] == "in-process"
            assert {**one.record, "where": 0, "timings": 0, "started_at": 0, "finished_at": 0} == {
                **other.record, "where": 0, "timings": 0, "started_at": 0, "finished_at": 0
            }  # fmt: skip
    # From its first process to its last, deaths between included: with two places for four chains, two of these overlap.
    times = [sorted(when for job in chain for when in watch.seen[job.folder]) for chain in chains]
    spans = [(found[0], found[-1]) for found in times]
    assert any(a[0] < b[1] and b[0] < a[1] for i, a in enumerate(spans) for b in spans[:i]), spans


def test_two_workers_train_the_member_of_one_or_fail_together(planned, tmp_path: Path, cluster: None) -> None:
    """Of a failure the other worker, which waits in a collective, learns; the reason reaches the user, in one line."""
    from raysts.cluster.members import train_members

    # Small steps: Adam turns the sign of a gradient that is zero but for rounding into a whole step.
    exact = {**SHORT, "train.max_steps": 8, "train.dropout": False, "train.precision": "fp32", "nli.optim.lr": 1e-4}
    exact |= {"batch": 24, "members": 1}
    one = _made(planned, tmp_path / "one", "nli", exact)
    assert LocalExecutor(threads=1).train([_jobs(one.chains[0])], Resources(), lambda text: None) == [None]
    two = _made(planned, tmp_path / "two", "nli", {**exact, "resources.workers": 2})
    failing = _made(planned, tmp_path / "two", "nli", {**exact, "nli.optim.lr": 1e30, "resources.workers": 2})
    assert [node.id for node in one.chains[0]] == [node.id for node in two.chains[0]]
    jobs = [_jobs(plan.chains[0]) for plan in (two, failing)]
    outcome, reason = train_members(jobs, two.pipeline.resources, lambda text: None)
    assert outcome is None and reason is not None
    assert "the loss is nan" in reason and "Traceback" not in reason, reason
    (a,), (b,) = one.chains[0], two.chains[0]
    assert (a.record["layout"]["world_size"], b.record["layout"]["world_size"]) == (1, 2)
    start, weights, others = (load_file(f / "model.safetensors") for f in (one.backbone, a.model, b.model))
    assert weights.keys() == others.keys()
    assert max((weights[name] - start[name]).abs().max() for name in weights) > 1e-4  # they were trained
    assert max((weights[name] - others[name]).abs().max() for name in weights) < 1e-5
