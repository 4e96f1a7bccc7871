"""Runs a pipeline's work in this process: what tests, machines without Ray and single-GPU boxes use."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from raysts.data.windows import Group, StoreSpec, Windows, finish_store, tokenize_group
from raysts.errors import InputError, RunFailed, StoreFailed
from raysts.models.encoder import PoolingMode
from raysts.models.layers import Layers
from raysts.models.pretrained import load, load_tokenizer
from raysts.models.sentence_model import Representation
from raysts.pipeline import teacher
from raysts.pipeline.embed import Unit, embed_unit
from raysts.recipes.recipe import Resources
from raysts.storage import store as storage
from raysts.storage.atomic import read_json, write_json
from raysts.training.job import Job, title
from raysts.training.runtime import Runtime
from raysts.training.stacked import stacks, train_stack

Say = Callable[[str], None]


class Executor(Protocol):
    """Where the nodes of a pipeline run."""

    def tokenize(self, spec: StoreSpec, groups: Sequence[Group], tokenizer: Path, folder: Path, say: Say) -> None:
        """Make a token store."""

    def train(self, chains: Sequence[Sequence[Job]], resources: Resources, say: Say) -> list[str | None]:
        """Train each chain of jobs in order, chains concurrently where possible; per chain the reason it failed."""

    def teacher(
        self,
        models: Sequence[Path],
        store: Path,
        folder: Path,
        pooling: PoolingMode,
        layers: Layers,
        resources: Resources,
        say: Say,
    ) -> None:
        """Write the shards of mean embeddings (the caller writes the manifest)."""

    def embed(
        self,
        models: Sequence[Path],
        texts: Sequence[str],
        pooling: PoolingMode,
        layers: Sequence[Layers],
        resources: Resources,
        say: Say,
    ) -> Iterator[dict[Layers, Representation]]:
        """Representations of ``texts`` by each model, in order."""

    def embed_files(
        self, work: Sequence[Unit], model: Path, layers: Layers | None, column: str, resources: Resources
    ) -> Iterator[int]:
        """Write the shards of a bulk embedding job; yields the number of shards done so far."""


class Here:
    """An executor in this process.

    Args:
        threads: CPU threads; none: leave torch's setting.
        device: default: the first GPU if there is one.
    """

    def __init__(self, threads: int | None = None, device: str | None = None) -> None:
        self.threads, self.device = threads, device

    def tokenize(self, spec: StoreSpec, groups: Sequence[Group], tokenizer: Path, folder: Path, say: Say) -> None:
        """One row group after the other."""
        loaded = load_tokenizer(tokenizer)
        finish_store(folder, spec, [tokenize_group(g, spec, loaded, folder, i) for i, g in enumerate(groups)])

    def train(self, chains: Sequence[Sequence[Job]], resources: Resources, say: Say) -> list[str | None]:
        """One chain after the other; members that are trained as one stage by stage."""
        gpus = 1 if Runtime(self.device).device.type == "cuda" else 0
        reasons: dict[int, str | None] = {}
        for stack in stacks(chains, resources.most_stacked(len(chains), gpus)):
            found = train_chains(
                [chains[index] for index in stack],
                lambda job: Runtime(self.device, threads=self.threads, say=_titled(job, say)),
            )
            reasons |= dict(zip(stack, found, strict=True))
        return [reasons[index] for index in range(len(chains))]

    def teacher(
        self,
        models: Sequence[Path],
        store: Path,
        folder: Path,
        pooling: PoolingMode,
        layers: Layers,
        resources: Resources,
        say: Say,
    ) -> None:
        """One member after the other."""
        windows = Windows(store)
        for member in range(teacher.first_pass(windows, folder, len(models)), len(models)):
            encoder = load(models[member], pooling=pooling, layers=layers, device=self.device).encoder
            for window in teacher.left(windows, folder, member, len(models)):
                teacher.add_member(encoder, windows, window, folder, member, len(models), layers)
            teacher.end_pass(folder, member)
            say(f"teacher: member {member + 1} of {len(models)} embedded {windows.rows} sentences")

    def embed(
        self,
        models: Sequence[Path],
        texts: Sequence[str],
        pooling: PoolingMode,
        layers: Sequence[Layers],
        resources: Resources,
        say: Say,
    ) -> Iterator[dict[Layers, Representation]]:
        """One model after the other."""
        for folder in models:
            yield load(folder, pooling=pooling, device=self.device).represent_layers(texts, layers)

    def embed_files(
        self, work: Sequence[Unit], model: Path, layers: Layers | None, column: str, resources: Resources
    ) -> Iterator[int]:
        """One shard after the other."""
        loaded = load(model, layers=layers, device=self.device)
        for done, unit in enumerate(work, start=1):
            embed_unit(loaded, unit, column)
            yield done


def train_chain(chain: Sequence[Job], runtime: Callable[[Job], Runtime]) -> str | None:
    """Train the jobs of one member in order; None, or why it failed."""
    return train_chains([chain], runtime)[0]


def train_chains(chains: Sequence[Sequence[Job]], runtime: Callable[[Job], Runtime]) -> list[str | None]:
    """Train the jobs of several members of one shape, stage by stage as one; per member None, or why it failed.

    Training is deterministic, so an error of its own would come again: it ends the chain with its reason on record and
    is not retried. Only the death of the process is (by whoever started it).
    """
    reasons: list[str | None] = [None] * len(chains)
    for jobs in zip(*chains, strict=True):
        left = [index for index, reason in enumerate(reasons) if reason is None]
        errors = train_stack([jobs[index] for index in left], runtime) if left else []
        while errors:  # whoever keeps an error keeps the tensors of the stack that it came from
            index, error = left.pop(), errors.pop()
            if error is not None:
                reasons[index] = fail(jobs[index], error)
            del error
    return reasons


def fail(job: Job, error: BaseException) -> str:
    """Put on record that a run failed, and why; the reason as people read it."""
    reason = str(error) if isinstance(error, (InputError, RunFailed)) else f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.errno == 28:
        reason = f"the disk is full: {error}; free space in {job.folder.parent} and run the same command again"
    log = job.folder / "error.log"
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
        log.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        write_json(
            job.folder / "run.json",
            {**(read_json(job.folder / "run.json") or {}), "status": "failed", "reason": reason},
        )
        with contextlib.suppress(StoreFailed):  # it may be the reason
            storage.push(log)
            storage.push(job.folder / "run.json")
    except OSError:
        return f"{title(job)} (run {job.id}): {reason}"  # nothing can be written; the reason still reaches the user
    return f"{title(job)} (run {job.id}): {reason} [log: {log}]"


def _titled(job: Job, say: Say) -> Say:
    return lambda text: say(f"{title(job)}: {text}")
