from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from processes import writer_of
from safetensors.torch import load_file
from small_runs import tokenize_table

from raysts.models.pretrained import load_tokenizer
from raysts.pipeline.local import LocalExecutor
from raysts.pipeline.plan import Plan
from raysts.recipes.recipe import Resources
from raysts.storage.foreign import read_json
from raysts.training.job import Job

# Small steps: Adam turns the sign of a gradient that is zero but for rounding into a whole step.
SHORT = {
    "train.max_steps": 16, "train.checkpoint_every": 4, "train.max_length": 24, "batch": 16, "train.dropout": False,
    "train.precision": "fp32", "nli.optim.lr": 1e-4, "members": 4,
}  # fmt: skip


def _chains(made: Plan) -> list[list[Job]]:
    """The plan's jobs, after its backbone and token stores are written."""
    made.write_backbone()
    for id_, spec in made.specs.items():
        if not (made.storage / "tokens" / id_ / "manifest.json").exists():
            tokenize_table(made.corpus, spec, load_tokenizer(made.backbone), made.store_folder(spec))
    return [[node.job for node in chain] for chain in made.chains]


def test_stacks_of_members_are_runs_of_their_own_and_one_comes_back(
    planned, tmp_path: Path, cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four members of two stages in two stacks, each by one of the two workers of a Ray Train run. One worker is killed in the
    first stage: whoever is free goes on with its stack, and the other has noticed nothing."""
    from raysts.cluster import members

    monkeypatch.setattr(members, "widths", lambda slots: [slots])
    alone, together = (_chains(planned(tmp_path / name, "nli-ct", SHORT)) for name in ("alone", "together"))
    assert LocalExecutor(threads=1).train(alone, Resources(), lambda text: None) == [None] * 4
    writers: dict[Path, list[int]] = {chain[0].folder: [] for chain in together}
    killed, over = together[1][0].folder, threading.Event()

    def watch() -> None:
        while not over.wait(0.005):
            for folder, pids in writers.items():
                if (pid := writer_of(folder)) and pid not in pids:
                    pids.append(pid)
            if len(writers[killed]) == 1 and any((killed / "checkpoints").glob("step-*.pt")):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(writers[killed][0], signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    assert members.train_members(together, Resources(stack=2), lambda text: None) == [None] * 4
    over.set()
    (first, again), other = writers[killed], [writers[chain[0].folder] for chain in together[2:]]
    assert writers[together[0][0].folder] == [first, again]
    assert other[0] == other[1] and len(other[0]) == 1 and first not in (again, *other[0])
    where = [read_json(chain[-1].folder / "run.json")["where"] for chain in together]
    assert ["one of 2 trained as one" in text for text in where] == [True] * 4, where
    for a, b in zip(alone, together, strict=True):
        for one, other in zip(a, b, strict=True):
            weights, others = (load_file(job.folder / "model" / "model.safetensors") for job in (one, other))
            assert weights.keys() == others.keys()
            # The mean: |u - v| of nli has a kink, and a dimension in which u and v are one number to float32 falls on
            # either side of it by rounding; such an element takes other steps.
            differences = torch.cat([(weights[name] - others[name]).abs().flatten() for name in weights])
            assert float(differences.mean()) < 3e-6
