"""Checkpoints of a training run: complete or absent, bounded in number, exact."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from raysts.errors import RunFailed
from raysts.models.encoder import Encoder
from raysts.ops.collective import AsyncMax
from raysts.storage.checksums import checked_write, forget, intact, set_aside
from raysts.storage.store import Store
from raysts.training.runtime import Preemption
from raysts.training.shard import gather_tensor, local_tensor, shard_like


@dataclass(slots=True)
class TrainState:
    """Progress of a run: what a resumed run needs besides weights and optimiser state.

    Attributes:
        loss_sum: sum of losses since the last metrics line.
        best: best dev score so far, by the metric that selects.
        best_candidate: name of the best candidate encoder.
        since_best: dev evaluations since then.
        stopped: early stopping has ended the run.
        metrics: checksum of the metrics lines up to here.
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
    metrics: str = ""


def best_file(folder: Path, state: TrainState) -> Path:
    """Return the file of the best encoder's weights."""
    return folder / f"best-{state.best_step:07d}-{state.best_candidate}.safetensors"


def trained_state(module: nn.Module) -> dict[str, Tensor]:
    """Return the state of a module without frozen parameters, which the starting model has.

    Of a sharded module, all processes must call it and rank 0 gets the state.
    """
    return {name: gather_tensor(value) for name, value in _local_state(module).items()}


def _local_state(module: nn.Module) -> dict[str, Tensor]:
    frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
    return {name: value for name, value in module.state_dict().items() if name not in frozen}


def load_trained_state(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Load a state from :func:`trained_state`."""
    current = _local_state(module)
    assert current.keys() == state.keys(), f"state of another module: {sorted(current.keys() ^ state.keys())[:3]}"
    module.load_state_dict({name: shard_like(value, current[name]) for name, value in state.items()}, strict=False)


def save_best(folder: Path, state: TrainState, encoder: Encoder, rank: int = 0) -> None:
    """Write the weights of the best encoder so far, on rank 0."""
    content = {name: value.detach().cpu().contiguous() for name, value in trained_state(encoder).items()}
    if rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        with checked_write(best_file(folder, state)) as draft:
            save_file(content, draft)


def load_best(folder: Path, state: TrainState, encoder: Encoder) -> None:
    """Load the weights of the best encoder into ``encoder``."""
    path = Store.of(folder).get(best_file(folder, state))  # rank 0 may have written it on another machine
    if path is None:
        raise RunFailed(f"{best_file(folder, state)}: is not there; run the same command again: its run begins anew")
    load_trained_state(encoder, load_file(path))


def save(folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer, state: TrainState, rank: int = 0) -> None:
    """Write the checkpoint of ``state.step`` and remove the one before.

    The last and the best remain. Only rank 0 writes.
    """
    moved = optimizer.state_dict()
    states = moved["state"].items()
    moved["state"] = {i: {name: gather_tensor(x) for name, x in moments.items()} for i, moments in states}
    progress = {name: getattr(state, name) for name in TrainState.__slots__}  # type: ignore[attr-defined]
    content = {"module": trained_state(module), "optimizer": moved, "progress": progress}
    if rank > 0:
        return
    path = folder / f"step-{state.step:07d}.pt"
    with checked_write(path) as draft:
        torch.save(content, draft)
    keep = {path.name, best_file(folder, state).name if state.best is not None else ""}
    for old in folder.iterdir():
        if old.name not in keep and old.is_file() and old.suffix in (".pt", ".safetensors"):
            old.unlink()
            forget(old)


def last(folder: Path) -> Path | None:
    """Return the file of the last checkpoint, or None."""
    return max(folder.glob("step-*.pt"), default=None)


def restore(
    folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer, metrics: Callable[[int], str], by_dev: bool
) -> TrainState:
    """Load the last checkpoint into module and optimizer and return its state, a fresh one without it.

    A checkpoint that is damaged or lacks its metrics or best weights is quarantined. ``metrics`` returns the checksum of the
    metrics lines up to a step. ``by_dev``: the run keeps its best weights.
    """
    path = last(folder)
    if path is None or not intact(path):
        return TrainState()
    try:
        first = next(module.parameters())
        device = first.device if local_tensor(first) is first else "cpu"  # whole it may not fit
        content = torch.load(path, map_location=device, weights_only=True)
        state = TrainState(**content["progress"])
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        set_aside(path)
        return TrainState()
    best_is_gone = by_dev and state.best is not None and Store.of(folder).get(best_file(folder, state)) is None
    if best_is_gone or state.metrics not in ("", metrics(state.step)):
        set_aside(path)
        return TrainState()
    load_trained_state(module, content["module"])
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, moments in content["optimizer"]["state"].items():
        moments |= {name: shard_like(value, parameters[number]) for name, value in moments.items()}
    optimizer.load_state_dict(content["optimizer"])
    return state


def clear(folder: Path) -> None:
    """Remove all checkpoints of a finished run."""
    Store.of(folder).delete(folder)


FIRST = 3.0
"""Seconds of training after which a process writes its first checkpoint: who is killed soon gets on all the same."""

EVERY = 10.0
"""Seconds between checkpoints, unless they are dear."""

DEAR = 20.0
"""Checkpoints by the clock are this many times their own writing apart: they take 5 % of the time at most."""


class CheckpointPolicy:
    """Schedule of checkpoints by clock and preemption, besides those that the recipe sets.

    A run that is killed every 20 seconds must still make progress. All workers of a run save at the same step: they decide
    together. ``by_clock``: the clock of this process counts.
    """

    def __init__(self, by_clock: bool) -> None:
        self.by_clock = by_clock
        self._vote = AsyncMax()

    def decide(self, notice: Preemption, seconds_since: float, seconds_to_write: float | None) -> Preemption:
        """Return the decision after this step, the same on all workers.

        ``seconds_since``: since the last checkpoint of this process, or its start. ``seconds_to_write``: its duration; None
        before the first.
        """
        pause = FIRST if seconds_to_write is None else max(EVERY, DEAR * seconds_to_write)
        due = self.by_clock and seconds_since >= pause
        return Preemption(self._vote(max(notice, Preemption.SAVE if due else Preemption.NONE)))
