from __future__ import annotations

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import writer_of
from safetensors.torch import load_file

from raysts.data.windows import tokenize_table
from raysts.files import read_json
from raysts.models.store import load_tokenizer
from raysts.pipeline import Node, Plan
from raysts.recipe import Resources
from raysts.training.here import Here
from raysts.training.loop import Job

SHORT = {"train.max_steps": 60, "train.checkpoint_every": 10, "train.max_length": 40, "batch": 32}


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


def _jobs(chain: list[Node]) -> list[Job]:
    return [node.job for node in chain if node.job is not None]


class _Watch(threading.Thread):
    """Takes note of the processes that train in each run folder, and kills one in the middle of its training."""

    def __init__(self, folders: list[Path], victim: Path) -> None:
        super().__init__(daemon=True)
        self.folders, self.victim, self.killed = folders, victim, 0
        self.writers: dict[Path, set[int]] = defaultdict(set)
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            for folder in self.folders:
                self.writers[folder] |= {pid for pid in [writer_of(folder)] if pid}
            if not self.killed and (self.victim / "checkpoints/step-0000020.pt").exists():
                self.killed = writer_of(self.victim) or 0
                os.kill(self.killed, signal.SIGKILL)
            time.sleep(0.005)


def test_members_train_at_once_die_alone_and_come_back(planned, tmp_path: Path, cluster: None) -> None:
    """Three members of two stages on two CPUs, one of them killed, beside one that fails for a reason of its own."""
    from raysts.cluster.members import train_members

    overrides = {**SHORT, "members": 3}
    here = _made(planned, tmp_path / "here", "nli-ct", overrides)
    for chain in here.chains:
        assert Here(threads=1).train([_jobs(chain)], Resources(), lambda text: None) == [None]

    there = _made(planned, tmp_path / "there", "nli-ct", overrides)
    failing = _made(planned, tmp_path / "there", "nli", {**SHORT, "members": 1, "seed": 5, "nli.optim.lr": 1e30})
    chains = [_jobs(chain) for chain in (there.chains[0], failing.chains[0], *there.chains[1:])]
    folders = [job.folder for chain in chains for job in chain]
    victim = there.chains[1][0].job.folder
    watch, said = _Watch(folders, victim), []
    watch.start()
    outcomes = train_members(chains, Resources(), said.append)
    watch.stop.set()
    watch.join()

    assert outcomes[0] is outcomes[2] is outcomes[3] is None
    assert "the loss is nan" in outcomes[1] and "nli.optim.lr (1e+30)" in outcomes[1]
    assert [text for text in said if "the loss is nan" in text] == [f"failed: {outcomes[1]}"]
    failed = read_json(failing.chains[0][0].job.folder / "run.json")
    assert failed["status"] == "failed" and "the loss is nan" in failed["reason"]
    assert Path(outcomes[1].split("[log: ")[1].rstrip("]")).read_text().startswith("Traceback")

    assert watch.killed and {folder: len(found) for folder, found in watch.writers.items()} == {
        folder: 2 if folder == victim else 1 for folder in folders
    }
    for a, b in zip(here.chains, there.chains, strict=True):
        for one, other in zip(a, b, strict=True):
            assert (one.model / "model.safetensors").read_bytes() == (other.model / "model.safetensors").read_bytes()
            assert other.record["where"].startswith("Ray Train") and one.record["where"] == "in-process"
            assert {**one.record, "where": 0, "timings": 0, "started_at": 0, "finished_at": 0} == {
                **other.record, "where": 0, "timings": 0, "started_at": 0, "finished_at": 0
            }  # fmt: skip
    spans = [
        (datetime.fromisoformat(chain[0].record["started_at"]), datetime.fromisoformat(chain[-1].record["finished_at"]))
        for chain in there.chains
    ]
    assert any(a[0] < b[1] and b[0] < a[1] for i, a in enumerate(spans) for b in spans[:i]), spans


def test_two_workers_train_the_member_of_one(planned, tmp_path: Path, cluster: None) -> None:
    from raysts.cluster.members import train_members

    # Small steps: Adam turns the sign of a gradient that is zero but for rounding into a whole step.
    exact = {**SHORT, "train.max_steps": 12, "train.dropout": False, "train.precision": "fp32", "nli.optim.lr": 1e-4}
    one = _made(planned, tmp_path / "one", "nli-ct", {**exact, "batch": 24})
    assert Here(threads=1).train([_jobs(one.chains[0])], Resources(), lambda text: None) == [None]
    two = _made(planned, tmp_path / "two", "nli-ct", {**exact, "batch": 24, "resources.workers": 2})
    assert [node.id for node in one.chains[0]] == [node.id for node in two.chains[0]]
    assert train_members([_jobs(two.chains[0])], two.pipeline.resources, lambda text: None) == [None]
    for a, b in zip(one.chains[0], two.chains[0], strict=True):
        assert (a.record["layout"]["world_size"], b.record["layout"]["world_size"]) == (1, 2)
        weights, others = (load_file(node.model / "model.safetensors") for node in (a, b))
        assert weights.keys() == others.keys()
        start = load_file(one.backbone / "model.safetensors")
        assert max((weights[name] - start[name]).abs().max() for name in weights) > 1e-4  # they were trained
        assert max((weights[name] - others[name]).abs().max() for name in weights) < 1e-5


def test_a_failure_of_two_workers_ends_both(planned, tmp_path: Path, cluster: None) -> None:
    """The other worker waits in a collective; the reason still reaches the user, in one line."""
    from raysts.cluster.members import train_members

    made = _made(planned, tmp_path, "nli", {**SHORT, "nli.optim.lr": 1e30, "resources.workers": 2})
    (outcome,) = train_members([_jobs(made.chains[0])], made.pipeline.resources, lambda text: None)
    assert outcome is not None and "the loss is nan" in outcome and "Traceback" not in outcome, outcome
