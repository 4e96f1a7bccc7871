from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import torch
from processes import wait_until, writer_of
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
    "train.precision": "fp32", "nli.optim.lr": 1e-4, "members": 2,
}  # fmt: skip


def _chains(made: Plan) -> list[list[Job]]:
    """The plan's jobs, after its backbone and token stores are written."""
    made.write_backbone()
    for id_, spec in made.specs.items():
        if not (made.storage / "tokens" / id_ / "manifest.json").exists():
            tokenize_table(made.corpus, spec, load_tokenizer(made.backbone), made.store_folder(spec))
    return [[node.job for node in chain] for chain in made.chains]


def test_a_stack_of_members_is_one_run_and_comes_back(planned, tmp_path: Path, cluster: None) -> None:
    """Two members of two stages as one; their worker is killed in the first stage."""
    from raysts.cluster.members import train_members

    alone, together = (_chains(planned(tmp_path / name, "nli-ct", SHORT)) for name in ("alone", "together"))
    assert LocalExecutor(threads=1).train(alone, Resources(), lambda text: None) == [None] * 2
    killed: list[int] = []

    def kill() -> None:
        victim = together[1][0].folder
        wait_until(lambda: any((victim / "checkpoints").glob("step-*.pt")), pause=0.002)
        killed.append(writer_of(victim) or 0)
        os.kill(killed[0], signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    assert train_members(together, Resources(stack=2), lambda text: None) == [None] * 2
    assert killed and writer_of(together[1][0].folder) not in killed, "another process went on"
    writers = [writer_of(chain[-1].folder) for chain in together]
    assert writers[0] == writers[1]
    where = [read_json(chain[-1].folder / "run.json")["where"] for chain in together]
    assert ["one of 2 trained as one" in text for text in where] == [True, True], where
    for a, b in zip(alone, together, strict=True):
        for one, other in zip(a, b, strict=True):
            weights, others = (load_file(job.folder / "model" / "model.safetensors") for job in (one, other))
            assert weights.keys() == others.keys()
            # The mean: |u - v| of nli has a kink, and a dimension in which u and v are one number to float32 falls on
            # either side of it by rounding; such an element takes other steps.
            differences = torch.cat([(weights[name] - others[name]).abs().flatten() for name in weights])
            assert float(differences.mean()) < 3e-6
