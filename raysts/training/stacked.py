"""Members of one shape trained as one: every layer computes all of them in one call.

Their parameters are stacked and the objective is mapped over them (``torch.vmap``), so a GPU launches the kernels of one
model for K. What each member does besides its updates (dev scores, what it keeps, patience, checkpoints, metrics, its
record) is its own, by the same code as alone, on slices of the stack.

What is promised: with dropout off a member ends as it would alone within float32 tolerance (1e-5 after tens of small
steps; it is another order of the same sums, so a number within rounding of a kink, |u - v| of nli at 0, may fall on its
other side). With dropout on its draws are its own, independent of the other members' and fixed by the stack's seeds and
the step, but not those it would have alone. The same stack, resumed, goes on bit for bit on CPU. What another member
computes, or that it fails, changes no number of a member by more than rounding while dropout is off. The seconds in a
member's record and metrics are those of the whole stack.

The members' texts are packed into common shapes (``raysts.models.packing``). Ten members' batches of 16 NLI pairs take
2.0 places a token as GPUs group them and 1.26 in groups as fine as CPUs have them (one group: 4.0; a member alone: 2.7
and 1.10).
"""

import contextlib
import gc
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysts.models.precision import autocast
from raysts.objectives.objective import Batch
from raysts.training import optim
from raysts.training.job import Job, finished, writing
from raysts.training.loop import Run, train, train_runs, update
from raysts.training.runtime import Runtime


def stacks(chains: Sequence[Sequence[Job]], most: int) -> list[list[int]]:
    """Which chains are trained as one: at most ``most`` of the same recipes on the same rows, every stage stackable."""
    found: dict[Hashable, list[list[int]]] = {}
    for index, chain in enumerate(chains):
        stackable = all(job.recipe.stackable for job in chain)
        groups = found.setdefault(tuple((job.recipe, job.store) for job in chain) if stackable else index, [[]])
        if len(groups[-1]) == most:
            groups.append([])
        groups[-1].append(index)
    return [group for groups in found.values() for group in groups]


def train_stack(jobs: Sequence[Job], runtime: Callable[[Job], Runtime]) -> list[Exception | None]:
    """Train runs of one recipe and different seeds as one, each to its end; per run why it failed, or None.

    Runs that stand at different steps (a kill came between the checkpoints of two members) are trained apart. A stack
    that does not fit into the device's memory is trained in halves.
    """
    failures: dict[Path, Exception] = {}
    if len(jobs) == 1:
        try:
            train(jobs[0], runtime(jobs[0]))
        except Exception as error:
            failures[jobs[0].folder] = error
    else:
        with contextlib.ExitStack() as held:
            for job in jobs:
                try:
                    held.enter_context(writing(job))
                except Exception as error:
                    failures[job.folder] = error
            _train_left(jobs, runtime, failures)
    return [failures.get(job.folder) for job in jobs]


def _train_left(jobs: Sequence[Job], runtime: Callable[[Job], Runtime], failures: dict[Path, Exception]) -> None:
    left = [job for job in jobs if job.folder not in failures and finished(job) is None]
    try:
        _train_groups(left, runtime, failures)
        return
    except Exception as error:
        if len(left) == 1 or not isinstance(error, torch.OutOfMemoryError):
            failures |= {job.folder: error for job in left if job.folder not in failures and finished(job) is None}
            return
    # Only here, behind the handler, does nothing hold the tensors of the stack any more.
    gc.collect()
    torch.cuda.empty_cache()
    for half in (left[: len(left) // 2], left[len(left) // 2 :]):
        _train_left(half, runtime, failures)


def _train_groups(jobs: Sequence[Job], runtime: Callable[[Job], Runtime], failures: dict[Path, Exception]) -> None:
    groups: dict[Hashable, list[Run]] = {}
    for job in jobs:
        try:
            run = Run(job, runtime(job))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            failures[job.folder] = error
        else:
            groups.setdefault(_shape(run), []).append(run)
    for runs in groups.values():
        if len(runs) > 1:
            for run in runs:
                run.record["where"] += f", one of {len(runs)} trained as one"
        train_runs(runs, Stack().update if len(runs) > 1 else update)
        failures |= {run.job.folder: run.failed for run in runs if run.failed is not None}


def _shape(run: Run) -> Hashable:
    shapes = tuple((name, parameter.shape) for name, parameter in run.objective.named_parameters())
    alone = None if run.objective.encoder.family.packed else run.job.folder  # transformers' own attention knows no vmap
    return run.job.recipe, run.state.step, run.order.rows, run.precision, shapes, alone


class Stack:
    """The stacked parameters and the optimiser of several runs; the runs' own parameters are slices of them.

    Nothing is stacked before the first update. Runs that are over leave the stack at the next.
    """

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.parameters: dict[str, nn.Parameter] = {}
        self.buffers: dict[str, Tensor] = {}
        self.optimizer: torch.optim.Optimizer

    def update(self, runs: Sequence[Run], batches: Sequence[Batch]) -> list[tuple[Tensor, dict[str, Tensor]]]:
        if self.runs != list(runs):
            self._form(list(runs))
        first = self.runs[0]
        recipe = first.job.recipe
        first.seed_rng()
        first.objective.train(recipe.train.dropout)
        batch = _common(batches, first.objective.encoder.pad_id)
        mapped = {name: 0 if isinstance(value, Tensor) else None for name, value in batch.items()}
        with autocast(first.runtime.device, first.precision):
            loss_K, scalars = torch.vmap(self._forward, (0, 0, mapped), randomness="different")(
                self.parameters, self.buffers, batch
            )
        loss_K.sum().backward()
        if recipe.optim.clip is not None:
            clip_each([p.grad for p in self.parameters.values() if p.grad is not None], recipe.optim.clip)
        for optimizer in (self.optimizer, *(run.optimizer for run in runs)):
            for group in optimizer.param_groups:
                group["lr"] = first.rate(first.state.step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if not first.optimizer.state:
            self._share_state()
        loss_K = loss_K.detach()
        return [(loss_K[k], {name: value[k] for name, value in scalars.items()}) for k in range(len(runs))]

    def _forward(
        self, parameters: dict[str, Any], buffers: dict[str, Tensor], batch: Batch
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return torch.func.functional_call(self.runs[0].objective, (parameters, buffers), (batch,))

    def _form(self, runs: list[Run]) -> None:
        """Stack the runs, one parameter after the other, so that memory never holds much more than one stack of them."""
        for run in self.runs:
            if run not in runs:  # what is left of it would keep the old stack alive
                run.optimizer.state.clear()
                for parameter in run.objective.parameters():
                    parameter.data = parameter.data.new_empty(0)
        self.runs, template = runs, runs[0]
        optim.by_rows(template.objective, None)  # vmap knows no sparse gradients
        own = [dict(run.objective.named_parameters()) for run in runs]
        name_of = {parameter: name for name, parameter in own[0].items()}
        states: dict[str, dict[str, Any]] = {}
        for name in own[0]:
            parts = [parameters[name] for parameters in own]
            stacked = torch.stack([part.detach() for part in parts])
            self.parameters[name] = nn.Parameter(stacked, requires_grad=parts[0].requires_grad)
            for part, value in zip(parts, stacked.unbind(), strict=True):
                part.data = value
            kept = [optim.settle(run.optimizer.state.pop(part, {})) for run, part in zip(runs, parts, strict=True)]
            # The step count is of the whole tensor, and the same for all.
            states[name] = {
                key: value.clone() if key == "step" else torch.stack([state[key] for state in kept])
                for key, value in kept[0].items()
            }
        buffers = [dict(run.objective.named_buffers()) for run in runs]
        self.buffers = {name: torch.stack([found[name] for found in buffers]) for name in buffers[0]}
        groups = [
            {**group, "params": [self.parameters[name_of[parameter]] for parameter in group["params"]]}
            for group in template.optimizer.param_groups
        ]
        self.optimizer = type(template.optimizer)(groups, lr=template.job.recipe.optim.lr)  # type: ignore[call-arg]
        self.optimizer.state.update({self.parameters[name]: state for name, state in states.items() if state})
        self._share_state()

    def _share_state(self) -> None:
        """Make the runs' optimiser states slices of the stack's, for their checkpoints."""
        for k, run in enumerate(self.runs):
            for name, parameter in run.objective.named_parameters():
                state = self.optimizer.state.get(self.parameters[name], {})
                if state:
                    run.optimizer.state[parameter] = {
                        key: value if key == "step" else value[k] for key, value in state.items()
                    }


def clip_each(gradients: Sequence[Tensor], most: float) -> None:
    """``torch.nn.utils.clip_grad_norm_`` of every member by itself, in place. ``gradients``: each [K, ...], of one stacked
    parameter. ``most``: largest norm of a member's gradients together."""
    norms_PK = torch.stack([torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients])
    factor_K = (most / (torch.linalg.vector_norm(norms_PK, dim=0) + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor_K.view(-1, *[1] * (gradient.ndim - 1)))


def _common(batches: Sequence[Batch], pad_id: int) -> Batch:
    """Batches of the same examples per member as one, [K, ...]; token ids are padded to the longest text of all."""
    found: Batch = {}
    for name, first in batches[0].items():
        parts = [batch[name] for batch in batches]
        if not isinstance(first, Tensor):
            found[name] = np.stack(parts)  # of all members, for each of them
            continue
        if first.ndim > 1:
            longest = max(part.shape[-1] for part in parts)
            parts = [F.pad(part, (0, longest - part.shape[-1]), value=pad_id) for part in parts]
        found[name] = torch.stack(parts)
    return found
