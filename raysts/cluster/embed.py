"""Embedding on the cluster: shards with Ray Data actors, the sentences of an evaluation with one task a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
import ray.data

from raysts.cluster.capacity import at_once
from raysts.cluster.connect import quiet_data
from raysts.data.windows import Windows
from raysts.errors import RunFailed
from raysts.models.encoder import PoolingMode
from raysts.models.layers import Layers
from raysts.models.pretrained import load
from raysts.models.sentence_model import Representation
from raysts.pipeline import teacher
from raysts.pipeline.embed import Unit, embed_unit
from raysts.pipeline.local import Say
from raysts.recipes.recipe import Resources

KERNELS = "64"
"""Kernels of oneDNN that an embedding process keeps: those of one batch."""


class _AddMember:
    """A Ray Data actor that holds one member and writes its shards."""

    def __init__(
        self,
        model: Path,
        store: Path,
        folder: Path,
        member: int,
        members: int,
        pooling: PoolingMode,
        layers: Layers,
        resources: Resources,
    ) -> None:
        set_threads(resources)
        self.encoder = load(model, pooling=pooling, layers=layers, device=device_of(resources)).encoder
        self.windows, self.folder, self.member, self.members, self.layers = (
            Windows(store),
            folder,
            member,
            members,
            layers,
        )

    def __call__(self, batch: pa.Table) -> pa.Table:
        return guarded(
            batch,
            lambda row: teacher.add_member(
                self.encoder, self.windows, row["window"], self.folder, self.member, self.members, self.layers
            ),
        )


def teacher_means(
    models: Sequence[Path],
    store: Path,
    folder: Path,
    pooling: PoolingMode,
    layers: Layers,
    resources: Resources,
    say: Say,
) -> None:
    """One pass per member over the windows that it has not done; members are summed in order."""
    windows = Windows(store)
    for member in range(teacher.first_pass(windows, folder, len(models)), len(models)):
        left = teacher.left(windows, folder, member, len(models))
        arguments = (models[member], store, folder, member, len(models), pooling, layers, resources)
        for _ in over_shards({"window": left}, _AddMember, arguments, resources):
            pass
        teacher.end_pass(folder, member)
        say(f"teacher: member {member + 1} of {len(models)} embedded {windows.rows:,} sentences")


def over_shards(
    units: dict[str, list[Any]], actor: type, arguments: tuple[Any, ...], resources: Resources
) -> Iterator[int]:
    """Run ``actor`` over units of work (one row a unit) on as many actors as the cluster has, or may get, room for.

    Those that have no place yet are what an autoscaler sees; the others work meanwhile.

    A killed actor is started again and its shard redone (Ray Data's default): a shard is complete or absent. The actor
    returns its batch with a column ``error``, null where all went well.

    Yields:
        the number of units done so far.

    Raises:
        RunFailed: a unit failed for a reason of its own.
    """
    count = len(next(iter(units.values())))
    if not count:
        return
    quiet_data()
    rows = [{name: values[i] for name, values in units.items()} for i in range(count)]
    size = min(count, at_once(resources))
    dataset = ray.data.from_items(rows, override_num_blocks=count).map_batches(
        actor,
        fn_constructor_args=arguments,
        batch_size=1,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=1),
        num_cpus=resources.cpus,
        num_gpus=resources.gpus or None,
    )
    done = 0
    for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
        errors = [error for error in batch.column("error").to_pylist() if error]
        if errors:
            raise RunFailed(errors[0])
        done += batch.num_rows
        yield done
    assert done == count, f"{done} of {count} shards came back"


def guarded(batch: pa.Table, work: Callable[[dict[str, Any]], object]) -> pa.Table:
    """The batch with a column ``error``: an error travels back as text, not as a traceback on every log."""
    errors: list[str | None] = []
    for row in batch.to_pylist():
        try:
            work(row)
            errors.append(None)
        except Exception as error:
            errors.append(str(error) if isinstance(error, RunFailed) else f"{type(error).__name__}: {error}")
    return batch.append_column("error", pa.array(errors, pa.string()))


class _EmbedFile:
    """A Ray Data actor that holds a model and writes shards of a bulk embedding job."""

    def __init__(self, model: Path, layers: Layers | None, column: str, resources: Resources) -> None:
        set_threads(resources)
        self.model, self.column = load(model, layers=layers, device=device_of(resources)), column

    def __call__(self, batch: pa.Table) -> pa.Table:
        return guarded(batch, lambda row: embed_unit(self.model, Unit(**row), self.column))


def embed_files(
    work: Sequence[Unit], model: Path, layers: Layers | None, column: str, resources: Resources
) -> Iterator[int]:
    """Write the shards of a bulk embedding job; yields the number of shards done so far."""
    columns: dict[str, list[Any]] = {name: [getattr(unit, name) for unit in work] for name in Unit.__slots__}
    yield from over_shards(columns, _EmbedFile, (model, layers, column, resources), resources)


def embed_models(
    models: Sequence[Path], texts: Sequence[str], pooling: PoolingMode, layers: Sequence[Layers], resources: Resources
) -> Iterator[dict[Layers, Representation]]:
    """Representations of ``texts`` by each model in order; models are embedded concurrently."""
    shared = ray.put(list(texts))
    task = ray.remote(_embed).options(
        num_cpus=resources.cpus, num_gpus=resources.gpus or None, max_retries=3, name="embed for evaluation"
    )
    waiting = [task.remote(model, shared, pooling, tuple(layers), resources) for model in models]
    for reference in waiting:
        yield ray.get(reference)


def _embed(
    model: Path, texts: list[str], pooling: PoolingMode, layers: tuple[Layers, ...], resources: Resources
) -> dict[Layers, Representation]:
    set_threads(resources)
    loaded = load(model, pooling=pooling, device=device_of(resources))
    return loaded.represent_layers(texts, layers)


def set_threads(resources: Resources) -> None:
    """As many threads as CPUs were asked for, and no more memory for kernels than pays."""
    # oneDNN keeps the kernels of the last 1,024 shapes, about 1 MB each. Batches of texts hardly ever have a shape in
    # common, the layers of an encoder do within a batch. Read when the first kernel is made.
    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):  # that of torch's bindings is the second
        os.environ.setdefault(cache, KERNELS)
    import torch

    torch.set_num_threads(resources.cpus)


def device_of(resources: Resources) -> str:
    """The device that the resources give."""
    return "cuda" if resources.gpus else "cpu"
