"""What two and three gloo processes do for the tests, all in one spawn: a spawn costs seconds, the checks do not."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import killed
import pytest
import small_runs
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn

from raysts.data.batches import examples_in, rows_per_batch
from raysts.models.encoder import Encoder
from raysts.ops import collective
from raysts.pipeline.executor import attempt
from raysts.recipes.catalog import CATALOG, ContrastiveSettings, ObjectiveSpec
from raysts.recipes.recipe import Optim
from raysts.training.job import Job
from raysts.training.loop import train
from raysts.training.runtime import Preempted, Preemption, Runtime
from raysts.training.shard import gather_tensor

Found = tuple[list[dict[str, Any]], dict[str, Any]]
Worlds = tuple[dict[int, list[dict[str, Any]]], dict[str, Any]]
"""What each of two processes, or the processes of each number, found, and one alone."""
ROWS = {2: (3, 5), 3: (3, 0, 5)}
"""Rows per rank in the checks of the collectives, for each number of processes."""
WORLDS = tuple(ROWS)
IN_THREE = ("nli", "simcse-sup")
"""Objectives that three processes train, of which one has the negatives of all ranks: two train every one."""
OPTIM = Optim(name="adamw", lr=1e-4, schedule="linear", warmup=0.1, weight_decay=0.01, clip=1.0)
SPREAD = ("ct", "simcse-sup")
"""Objectives whose weights are spread over two processes: of two encoders, with a head; in bf16 of one with a layer beside it."""
RMSPROP = Optim(name="rmsprop", lr=1e-4, schedule="constant", warmup=0.0, clip=None)
NESTED = ("sed", "simcse-sup")
"""Objectives whose first dimensions learn too: each width is gathered by itself."""
RESUMED = "nli"
"""The objective whose runs are also interrupted and resumed."""
TWICE = (RESUMED, "ct")
"""Objectives that go through their rows twice: of these some are interrupted in the second pass."""
IN_BF16 = "in bf16"
"""Its run whose weights are spread, and put together in bf16."""


def names_in(world: int, names: Iterable[str]) -> list[str]:
    """The objectives among ``names`` that so many processes train."""
    return [name for name in names if world == 2 or name in IN_THREE]


def batch_of(spec: ObjectiveSpec) -> tuple[int, int]:
    """(batch, rows): a batch that neither 2 nor 3 divides where the objective allows one, a last batch of a single group."""
    batch = next((size for size in (5, 7, 11) if spec.batch_problem(size) is None), None)
    batch = batch or next(size for size in range(2, 129) if spec.batch_problem(size) is None and size >= 16)
    group = spec.group_of(spec.settings())
    first = next(rows for rows in range(1, 129) if examples_in(group, rows))
    return batch, 2 * rows_per_batch(group, batch) + first


def jobs(
    folder: Path, stage: small_runs.Stage, names: list[str], contrastive: dict[str, Any] | None = None
) -> dict[str, Job]:
    """One job per objective: two full batches and a ragged one, dropout off, fp32; false negatives masked."""
    masked = {"false_negatives": "masked"} | (contrastive or {})
    made = {}
    for name in names:
        batch, rows = batch_of(CATALOG[name])
        made[name] = stage.job(
            name,
            folder / name,
            rows=rows,
            batch=batch,
            optim=RMSPROP if name == "ct" else OPTIM,
            epochs=2.0 if name in TWICE else 1.0,
            dropout=False,
            settings=(masked if issubclass(CATALOG[name].settings, ContrastiveSettings) else {})
            | ({"matryoshka": (8, 20)} if name in NESTED else {}),
            checkpoint_every=2,
            eval_every=3,
        )
    return made


class Gloo(Runtime):
    """One of several gloo processes on CPU, wrapped as Ray Train wraps: DistributedDataParallel."""

    def __init__(self, rank: int, world: int, **options: Any) -> None:
        super().__init__("cpu", **options)
        self.rank, self.world, self.where = rank, world, "gloo"
        self.module: Any = None

    def wrap(self, module: nn.Module, precision: str) -> nn.Module:
        self.module = module
        return super().wrap(module, precision)


class Spread(Gloo):
    """With weights, gradients and moments spread over the processes."""

    shards = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.numbers: set[str] = set()
        """In which numbers a layer was put together."""

    def wrap(self, module: nn.Module, precision: str) -> nn.Module:
        wrapped = super().wrap(module, precision)
        encoder = next(part for part in module.modules() if isinstance(part, Encoder))
        layer = next(iter(encoder.layer_list()))  # it is whole while it computes
        layer.register_forward_pre_hook(lambda layer, _: self.numbers.add(str(next(layer.parameters()).dtype)))
        return wrapped


class Told(Gloo):
    """The second process is told to end after its third step."""

    steps = 0

    def preemption(self) -> Preemption:
        self.steps += 1
        return Preemption.END if self.rank == 1 and self.steps >= 3 else Preemption.NONE


def run(
    folder: Path, stage: small_runs.Stage, names: list[str]
) -> tuple[dict[int, list[dict[str, Any]]], dict[str, Any]]:
    """For each number of processes the results of its ranks; and those of one process."""
    cached = {"grad_cache": 2}  # alone all at once
    together = {str(world): jobs(folder / str(world), stage, names_in(world, names), cached) for world in WORLDS}
    whole, alone = together["2"][RESUMED], jobs(folder / "one", stage, names)
    told = whole.recipe.replace(train=whole.recipe.train.replace(checkpoint_every=1000))
    extra = {
        name: small_runs.without(whole, folder=folder / "2" / name, recipe=told if name == "told" else whole.recipe)
        for name in ("interrupted", "grown", "shrunk", "told")
    }
    there = [name for name in SPREAD if name in names]
    spread = {name: small_runs.without(alone[name], folder=folder / "spread" / name) for name in there}
    in_bf16 = alone[RESUMED].recipe.train.replace(precision="bf16")
    recipe = alone[RESUMED].recipe.replace(train=in_bf16)
    spread[IN_BF16] = small_runs.without(alone[RESUMED], folder=folder / "spread" / IN_BF16, recipe=recipe)
    steep = whole.recipe.replace(optim=OPTIM.replace(lr=1e30))
    failing = {"failing": small_runs.without(whole, folder=folder / "2" / "failing", recipe=steep)}
    made = {**together, "extra": extra, "spread": spread, "failing": failing}
    (folder / "jobs.pickle").write_bytes(pickle.dumps(made))
    # A run that begins in one process and goes on in two.
    with pytest.raises(small_runs.Interrupted):
        train(extra["grown"], small_runs.Watched(read=small_runs.interrupted_at(3)))
    killed.forks()  # the server imports once what every rank needs
    torch.multiprocessing.start_processes(rank_main, (str(folder),), nprocs=max(WORLDS), start_method="forkserver")
    single: dict[str, Any] = {"weights": {}, "metrics": {}}
    for name, job in alone.items():
        runtime = small_runs.Watched(threads=1)
        train(job, runtime)
        single["weights"][name], single["metrics"][name] = runtime.weights(), small_runs.metrics(job.folder)
    single["folder"] = {name: job.folder for name, job in alone.items()}
    found = {
        world: [torch.load(folder / f"{world}-rank{rank}.pt", weights_only=True) for rank in range(world)]
        for world in WORLDS
    }
    for world, ranks in found.items():
        for name in (*names_in(world, names), *(extra if world == 2 else ())):
            ranks[0]["metrics"][name] = small_runs.metrics(folder / str(world) / name)
    found[2][0]["folder"] = {name: job.folder for name, job in spread.items()}
    found[2][0]["spread_metrics"] = {name: small_runs.metrics(job.folder) for name, job in spread.items()}
    return found, single


def rank_main(rank: int, folder: str) -> None:
    """One process; with three and two together, those of higher ranks leaving."""
    gc.freeze()  # what the server has imported takes a third of a second to look through
    torch.set_num_threads(1)
    os.fsync = lambda handle: None  # as in conftest.py
    root = Path(folder)
    made: dict[str, dict[str, Job]] = pickle.loads((root / "jobs.pickle").read_bytes())  # noqa: S301
    for world in sorted(WORLDS, reverse=True):
        if rank >= world:
            return
        meeting = f"file://{root / f'rendezvous-{world}'}"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
        found: dict[str, Any] = {"weights": {}, "metrics": {}, **_collectives(rank, world)}
        for name, job in made[str(world)].items():
            found["weights"][name] = _weights(job, Gloo(rank, world))
        if world == 2:
            found |= _pair(rank)
            _goes_on(made["extra"], rank, found)
            found["reason"] = attempt([made["failing"]["failing"]], Gloo(rank, world)).reason
            found["spread"], found["numbers"] = {}, {}
            for name, job in made["spread"].items():
                if name in TWICE:
                    _until(small_runs.Interrupted, job, Spread(rank, world, read=small_runs.interrupted_at(3)))
                runtime = Spread(rank, world)
                found["spread"][name], found["numbers"][name] = _weights(job, runtime), sorted(runtime.numbers)
        elif world == 3:
            killed_at_3 = Gloo(rank, world, read=small_runs.interrupted_at(3))
            _until(small_runs.Interrupted, made["extra"]["shrunk"], killed_at_3)
        torch.save(found, root / f"{world}-rank{rank}.pt")
        dist.barrier()
        dist.destroy_process_group()


def _goes_on(made: dict[str, Job], rank: int, found: dict[str, Any]) -> None:
    """Runs that were interrupted: two of these two processes, one of a single process, one of three."""
    _until(small_runs.Interrupted, made["interrupted"], Gloo(rank, 2, read=small_runs.interrupted_at(4)))
    _until(Preempted, made["told"], Told(rank, 2))
    found["told_at"] = [path.name for path in (made["told"].folder / "checkpoints").glob("step-*.pt")]
    dist.barrier()
    for name, job in made.items():
        found["weights"][name] = _weights(job, Gloo(rank, 2))


def _until(end: type[BaseException], job: Job, runtime: Runtime) -> None:
    dist.barrier()
    with pytest.raises(end):
        train(job, runtime)
    dist.barrier()


def _weights(job: Job, runtime: Gloo) -> dict[str, Tensor]:
    train(job, runtime)
    return {name: gather_tensor(value).clone() for name, value in runtime.module.state_dict().items()}


def rows_of_all() -> tuple[Tensor, Tensor]:
    """(rows [8, 4], weights [8]) of all ranks in the checks of the collectives; a function of nothing."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(sum(ROWS[2]), 4, generator=generator, dtype=torch.float64)
    return rows, torch.tensor([1.0, 0.0, 2.0, 1.0, 1.0, 0.5, 0.0, 3.0], dtype=torch.float64)


def cross_loss(rows_BD: Tensor) -> Tensor:
    """A loss in which every row meets every other, as with in-batch negatives."""
    return torch.logsumexp(rows_BD @ rows_BD.T, dim=1).mean()


def _collectives(rank: int, world: int) -> dict[str, Any]:
    rows, weights = rows_of_all()
    first = sum(ROWS[world][:rank])
    mine, weight = rows[first : first + ROWS[world][rank]], weights[first : first + ROWS[world][rank]]

    w = torch.linspace(-1, 1, 4, dtype=torch.float64, requires_grad=True)
    mean = collective.mean((mine @ w).square(), weight)
    mean.backward()
    dist.all_reduce(w.grad)
    found: dict[str, Any] = {"mean": mean.detach(), "mean_gradient": w.grad / world, "world": collective.world_size()}
    v = torch.linspace(-1, 1, 16, dtype=torch.float64).reshape(4, 4).requires_grad_()
    gathered = collective.gather(mine @ v, ROWS[world])
    found["gathered"] = gathered.detach().clone()
    loss = cross_loss(gathered)
    loss.backward()
    dist.all_reduce(v.grad)
    return found | {"cross": loss.detach(), "cross_gradient": v.grad / world}


def _pair(rank: int) -> dict[str, Any]:
    """What is checked with two processes alone."""
    rows, _ = rows_of_all()
    mine = rows[: ROWS[2][0]] if rank == 0 else rows[ROWS[2][0] :]
    # The gradient that reaches gather reaches the other summand as well.
    x, beside = mine.clone().requires_grad_(), torch.zeros(len(rows), 4, dtype=torch.float64, requires_grad=True)
    earlier = 1.0 * beside  # made before the gather, so its backward runs after the gather's
    ((collective.gather(x) + earlier) * (rank + 1)).sum().backward()
    found: dict[str, Any] = {"beside_gradient": beside.grad, "x_gradient": x.grad}

    lone = mine[: 3 if rank == 0 else 0].clone().requires_grad_()
    all_of_zero = collective.gather(lone)
    all_of_zero.sum().backward()
    found |= {"lone": all_of_zero.detach().clone(), "lone_gradient": lone.grad}

    value = torch.full((2,), float(rank + 1), requires_grad=True)
    total = collective.total(value)
    vote, given = collective.AsyncMax(), ((0, 1, 1, 0, 0), (0, 0, 0, 2, 0))[rank]
    votes = [vote(number) for number in given]
    usual, dist.get_backend = dist.get_backend, lambda: "nccl"  # that of GPUs, beside which hosts vote
    before = dist.get_pg_count()
    for _ in range(3):
        collective.AsyncMax()(0)
    groups, dist.get_backend = dist.get_pg_count() - before, usual
    return found | {"total": total, "total_has_gradient": total.requires_grad, "votes": votes, "vote_groups": groups}
