"""How far the members of a pipeline are from each other, in their weights and in what they give on the development set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from raysts.evaluation import merging
from raysts.ids import content_id
from raysts.models import pretrained
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.local import Executor, Say
from raysts.pipeline.nodes.model import Model, embedding_resources
from raysts.pipeline.nodes.node import Node
from raysts.pipeline.outcome import STSB_DEV
from raysts.storage.store import Store


class EmbedDev:
    """Vectors [N, D] of the sentences of a development set, as each model pools; units are model folders."""

    def __init__(self, device: str | None, sentences: Sequence[str]) -> None:
        self.device, self.sentences = device, sentences

    def __call__(self, model: Path) -> np.ndarray:
        return pretrained.load(model, device=self.device).encode(self.sentences)


@dataclass(frozen=True, kw_only=True)
class DistancesNode(Node):
    """``distances/<id>.json``: mean distances between pairs of members (``raysts.evaluation.merging``)."""

    kind: ClassVar[str] = "distances"
    inputs: Inputs
    members: tuple[Model, ...]

    @classmethod
    def of(cls, inputs: Inputs, members: Sequence[Model]) -> DistancesNode:
        return cls(
            id=content_id(["distances", [member.id for member in members], inputs.corpus.fingerprint(STSB_DEV)]),
            title=f"distances between {len(members)} members",
            needs=tuple(member.id for member in members),
            resources=embedding_resources(inputs.pipeline.resources),
            sentences=2 * inputs.corpus.rows(STSB_DEV) * len(members),
            inputs=inputs,
            members=tuple(members),
        )

    @property
    def path(self) -> Path:
        return self.inputs.storage / "distances" / f"{self.id}.json"

    @property
    def distances(self) -> dict[str, float]:
        """``weights``, ``cosine``, ``cka``; empty before they are there."""
        found: dict[str, Any] | None = self.inputs.store.read_json(self.path)
        return found or {}

    def is_done(self, store: Store) -> bool:
        return store.get(self.path) is not None

    def run(self, executor: Executor, store: Store, say: Say) -> None:
        dev, folders = self.inputs.dev(STSB_DEV), [member.model for member in self.members]
        assert dev is not None
        embedded = executor.map(EmbedDev, (dev.sentences,), folders, self.inputs.pipeline.resources, say)
        vectors_MND = np.stack(list(embedded))
        states = (pretrained.load(folder, device="cpu").encoder.backbone.state_dict() for folder in folders)
        found = {
            "weights": merging.weight_distance(states),
            "cosine": merging.cosine_distance(vectors_MND),
            "cka": merging.cka_distance(vectors_MND),
        }
        store.write_json(self.path, found)
        say(f"{self.title}: " + ", ".join(f"{name} {value:.3g}" for name, value in found.items()))
