"""Models that later nodes read: what a pipeline names as teachers, which was there before it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from raysts.errors import InputError
from raysts.pipeline import teachers
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.local import Executor, Say
from raysts.pipeline.nodes.node import Node
from raysts.pipeline.outcome import Candidate, top
from raysts.recipes.recipe import Resources
from raysts.storage.runs import RunFolder, record_of
from raysts.storage.store import Store


class Model(Protocol):
    """A node whose outcome is a model."""

    @property
    def id(self) -> str:
        """Run id; content id of a model from elsewhere."""

    @property
    def model(self) -> Path:
        """The model folder."""

    @property
    def record(self) -> dict[str, Any]:
        """The run record behind it; empty where there is none."""


class RunNode(Node):
    """A node whose outcome is the model of a run folder."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """The run folder."""

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def record(self) -> dict[str, Any]:
        return RunFolder(self.folder).record()

    def written(self, store: Store) -> list[Path]:
        return [self.model]


@dataclass(frozen=True, kw_only=True)
class ModelNode(Node):
    """A model that is there."""

    kind: ClassVar[str] = "model"
    model: Path

    @classmethod
    def of(cls, inputs: Inputs, name: str, folder: Path) -> ModelNode:
        return cls(
            id=inputs.contents[folder],
            title=f"model {name}",
            needs=(),
            resources={"workers": 0, "cpus": 0, "gpus": 0},
            sentences=0,
            model=folder,
        )

    @property
    def record(self) -> dict[str, Any]:
        return record_of(self.model)

    def is_done(self, store: Store) -> bool:
        if teachers.kind(self.model) != "encoder":
            return True
        return Store.of(self.model).get(self.model / "config.json") is not None

    def run(self, executor: Executor, store: Store, say: Say) -> None:
        raise InputError(f"{self.title}: {self.model} holds no config.json; name a model directory")


def run_id(model: Model) -> str:
    """The run behind a model; its content id where there is none on record (a model from elsewhere)."""
    return str(model.record.get("run_id") or model.id)


def candidates(models: Sequence[Model]) -> list[Candidate]:
    """The models with their scores on record."""
    return [Candidate.of(model.id, model.record) for model in models]


def selected(models: Sequence[Model], count: int | None) -> list[Any]:
    """The members that form the ensemble: all, or the ``count`` best on their development set."""
    return [models[index] for index in top([model.score for model in candidates(models)], count)]


def embedding_resources(resources: Resources) -> dict[str, float | None]:
    """What embedding with a model asks for."""
    return {"workers": 1, "cpus": resources.cpus, "gpus": resources.gpus}
