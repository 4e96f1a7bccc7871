"""The executor on Ray."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import ray

from raysts.cluster import capacity
from raysts.cluster.embed import embed_files, embed_models, teacher_means
from raysts.cluster.members import train_members
from raysts.data.windows import Group, StoreSpec, finish_store, tokenize_group
from raysts.errors import InputError, RunFailed
from raysts.models.encoder import PoolingMode
from raysts.models.layers import Layers
from raysts.models.pretrained import load_tokenizer
from raysts.models.sentence_model import Representation
from raysts.pipeline.embed import Unit
from raysts.pipeline.local import Say
from raysts.recipes.recipe import Resources
from raysts.training.job import Job


class OnRay:
    """Runs the nodes of a pipeline on the connected Ray cluster."""

    def tokenize(self, spec: StoreSpec, groups: Sequence[Group], tokenizer: Path, folder: Path, say: Say) -> None:
        """One task per Parquet row group."""
        capacity.announce(Resources(gpus=0), say)
        task = ray.remote(_tokenize).options(num_cpus=1, max_retries=3, name=f"tokenise {spec.table}")
        waiting = [task.remote(group, spec, tokenizer, folder, number) for number, group in enumerate(groups)]
        try:
            parts = ray.get(waiting)
        except ray.exceptions.RayTaskError as error:  # its text is a traceback
            if isinstance(error.cause, RunFailed):
                raise RunFailed(str(error.cause)) from None
            raise
        finish_store(folder, spec, parts)

    def train(self, chains: Sequence[Sequence[Job]], resources: Resources, say: Say) -> list[str | None]:
        """Every chain as its own Ray Train run."""
        return train_members(chains, with_gpus(resources), say)

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
        """Ray Data actors, one pass per member."""
        teacher_means(models, store, folder, pooling, layers, with_gpus(resources), say)

    def embed(
        self,
        models: Sequence[Path],
        texts: Sequence[str],
        pooling: PoolingMode,
        layers: Sequence[Layers],
        resources: Resources,
        say: Say,
    ) -> Iterator[dict[Layers, Representation]]:
        """One task per model."""
        return embed_models(models, texts, pooling, layers, with_gpus(resources))

    def embed_files(
        self, work: Sequence[Unit], model: Path, layers: Layers | None, column: str, resources: Resources
    ) -> Iterator[int]:
        """Ray Data actors, as many as there is room for."""
        return embed_files(work, model, layers, column, with_gpus(resources))


def with_gpus(resources: Resources) -> Resources:
    """The resources with their GPUs decided: one per worker where the cluster has or may start nodes with GPUs, unless the
    recipe says."""
    if resources.gpus is not None:
        return resources
    return replace(resources, gpus=1.0 if capacity.reachable("GPU") else 0.0)


def check_resources(resources: Resources, private: bool) -> None:
    """Refuse a worker that no node of this cluster can hold, however it grows.

    Where nobody can tell whether it grows, it is waited for.

    Args:
        resources: of a training run.
        private: whether the cluster is ours alone and stays as it is.

    Raises:
        InputError: no node, and no kind of node that may be started, has that many CPUs or GPUs.
    """
    resources, kinds = with_gpus(resources), capacity.node_types()
    if (
        capacity.fits_now(resources)
        or any(kind.slots(resources) for kind in kinds)
        or not (private or kinds or not capacity.may_grow())
    ):
        return
    more = f"; its autoscaler may start: {', '.join(map(str, kinds))}" if kinds else ""
    raise InputError(
        f"resources.cpus={resources.cpus}, resources.gpus={resources.gpus:g}: no node can hold such a worker; the "
        f"cluster's nodes have: {capacity.describe_nodes()}{more}; ask for less, or connect to a larger cluster with --address"
    )


def _tokenize(group: Group, spec: StoreSpec, tokenizer: Path, folder: Path, number: int) -> dict[str, object]:
    return tokenize_group(group, spec, load_tokenizer(tokenizer), folder, number)
