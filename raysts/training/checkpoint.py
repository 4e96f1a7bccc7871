"""Checkpoints of a training run: complete or absent, bounded in number, exact."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from raysts.models.encoder import Encoder
from raysts.storage.atomic import aside
from raysts.storage.manifests import remove
from raysts.storage.store import need


@dataclass(slots=True)
class Progress:
    """Where a run stands; everything besides weights and optimiser state that a resumed run must know.

    Attributes:
        step: optimiser steps done.
        loss_sum: sum of losses since the last metrics line.
        loss_count: steps in ``loss_sum``.
        latest: dev scores of the last evaluation by metric.
        best: best dev score so far, by the metric that selects.
        best_step: step of the best score.
        best_candidate: name of the best candidate encoder.
        best_scores: its dev scores by metric.
        since_best: dev evaluations since then.
        seconds: training time so far.
        stopped: early stopping has ended the run.
    """

    step: int = 0
    loss_sum: float = 0.0
    loss_count: int = 0
    latest: dict[str, float] = field(default_factory=dict)
    best: float | None = None
    best_step: int = 0
    best_candidate: str = ""
    best_scores: dict[str, float] = field(default_factory=dict)
    since_best: int = 0
    seconds: float = 0.0
    stopped: bool = False


def best_file(folder: Path, progress: Progress) -> Path:
    """File of the best encoder's weights."""
    return folder / f"best-{progress.best_step:07d}-{progress.best_candidate}.safetensors"


def trained_state(module: nn.Module) -> dict[str, Tensor]:
    """The state of a module without its frozen parameters: those are on disk already, in the model it started from."""
    frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
    return {name: value for name, value in module.state_dict().items() if name not in frozen}


def load_trained_state(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Put back what :func:`trained_state` gave."""
    known = trained_state(module).keys()
    assert known == state.keys(), f"state of another module: {sorted(known ^ state.keys())[:3]}"
    module.load_state_dict(state, strict=False)


def save_best(folder: Path, progress: Progress, encoder: Encoder) -> None:
    """Write the weights of the best encoder so far."""
    with aside(best_file(folder, progress)) as draft:
        save_file({name: value.detach().cpu().contiguous() for name, value in trained_state(encoder).items()}, draft)


def load_best(folder: Path, progress: Progress, encoder: Encoder) -> None:
    """Put the weights of the best encoder into ``encoder``."""
    need(best_file(folder, progress))  # rank 0 may have written it on another machine
    load_trained_state(encoder, load_file(best_file(folder, progress)))


def save(folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """Write the checkpoint of ``progress.step`` and remove what it replaces: one last and one best remain."""
    own = optimizer.state_dict()
    own["state"] = {i: {name: _apart(value) for name, value in found.items()} for i, found in own["state"].items()}
    state = {
        "module": {name: _apart(value) for name, value in trained_state(module).items()},
        "optimizer": own,
        "progress": {name: getattr(progress, name) for name in Progress.__slots__},  # type: ignore[attr-defined]
    }
    path = folder / f"step-{progress.step:07d}.pt"
    with aside(path) as draft:
        torch.save(state, draft)
    keep = {path.name, best_file(folder, progress).name if progress.best is not None else ""}
    for old in folder.iterdir():
        if old.name not in keep and old.is_file() and old.suffix in (".pt", ".safetensors"):
            old.unlink()


def _apart(value: Tensor) -> Tensor:
    """A slice of a stack of members as a tensor of its own: torch writes the whole storage of what it saves."""
    return value.clone() if value.nbytes < value.untyped_storage().nbytes() else value


def last(folder: Path) -> Path | None:
    """File of the last checkpoint."""
    return max(folder.glob("step-*.pt"), default=None)


def restore(folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Load the last checkpoint into ``module`` and ``optimizer``; a fresh ``Progress`` when there is none."""
    saved = last(folder)
    if saved is None:
        return Progress()
    device = next(module.parameters()).device
    state = torch.load(saved, map_location=device, weights_only=True)
    load_trained_state(module, state["module"])
    optimizer.load_state_dict(state["optimizer"])
    return Progress(**state["progress"])


def clear(folder: Path) -> None:
    """Remove all checkpoints of a finished run."""
    remove(folder)


class MetricsLog:
    """``metrics.jsonl``: one JSON object a line; opened at a step, it forgets the lines of later steps."""

    def __init__(self, path: Path, step: int) -> None:
        lines = [line for line in read_metrics(path) if line["step"] <= step]
        with aside(path) as draft:
            draft.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")

    def write(self, line: dict[str, Any]) -> None:
        """Append one line, visible at once."""
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a metrics file; a line torn by a kill is left out."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return found


def last_metrics(path: Path) -> dict[str, Any] | None:
    """The last complete line of a metrics file; reads only its end."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            lines = file.read().split(b"\n")[:-1]
        return json.loads(lines[-1]) if lines else None
    except (FileNotFoundError, json.JSONDecodeError):
        return None
