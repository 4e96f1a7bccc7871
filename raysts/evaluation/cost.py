"""The cost of a model: its size, and the texts a second that it embeds here."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysts.models.prompts import Text
from raysts.recipes.recipe import ROLE_NAMES
from raysts.storage.runs import RUN_ID

if TYPE_CHECKING:
    from raysts.models.sentence_model import SentenceModel

SAMPLE = 512
"""Texts whose tokens are counted."""
TIMED, TRIES = 16, 5
"""Texts that are embedded alone for a latency, and how often each."""


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Size and speed of a model.

    Attributes:
        parameters: their number; None of a graph.
        bytes: of its parameters, in the precision in which it computes.
        dimensions: of a vector.
        tokens: mean number of a text's tokens, as far as the model reads them; speeds are of texts of this length.
        texts_per_second: on this machine, beside its other work.
        texts_per_cpu_second: of this process, without the other work.
    """

    parameters: int | None
    bytes: int
    dimensions: int
    tokens: float
    texts_per_second: float
    texts_per_cpu_second: float

    @classmethod
    def measure(cls, model: SentenceModel, texts: Sequence[Text], seconds: float, cpu_seconds: float) -> ModelCost:
        """Return the cost of a model that embedded ``texts`` in these seconds."""
        weights = [*model.encoder.parameters()]
        sample = [str(text) for text in texts[:: max(1, len(texts) // SAMPLE)]]
        return cls(
            parameters=sum(weight.numel() for weight in weights) or None,
            bytes=sum(weight.numel() * weight.element_size() for weight in weights) or model.encoder.weight_bytes,
            dimensions=model.dim,
            tokens=float(model.tokenize(sample).lengths.mean()) if sample else 0.0,
            texts_per_second=len(texts) / max(seconds, 1e-9),
            texts_per_cpu_second=len(texts) / max(cpu_seconds, 1e-9),
        )

    @property
    def text(self) -> str:
        size = f"{self.parameters / 1e6:.1f} M parameters, " if self.parameters else ""
        return (
            f"{size}{self.bytes / 1e6:.0f} MB, {self.dimensions} dimensions, "
            f"{self.texts_per_second:.0f} texts of {self.tokens:.0f} tokens a second here "
            f"({self.texts_per_cpu_second:.0f} a CPU second)"
        )


def latency(folder: Path, texts: Sequence[Text]) -> float:
    """Return the milliseconds that a model takes for one text: the median of texts, each at its best."""
    from raysts.models import pretrained

    model = pretrained.load(folder)

    def seconds(text: Text) -> float:
        began = time.perf_counter()
        model.represent([text])
        return time.perf_counter() - began

    timed = texts[:: max(1, len(texts) // TIMED)]
    return 1000 * statistics.median(min(seconds(text) for _ in range(TRIES)) for text in timed)


def cost_rows(models: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return the cells of a table of models, the head first. Models of one role and size are one row."""
    rows: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for model in models:
        rows.setdefault((model["role"], model["parameters"], model["bytes"], model["dimensions"]), []).append(model)
    table = [["model", "role", "parameters", "MB", "dims", "texts/s", "tokens/text"]]
    for (role, parameters, size, dimensions), of_row in rows.items():
        name = Path(of_row[0]["model"]).name if len(of_row) == 1 else f"{len(of_row)} models"
        is_teacher = role == "member" and not RUN_ID.fullmatch(of_row[0]["model"])
        role = "teacher" if is_teacher else ROLE_NAMES.get(role, role)
        speed, tokens = (sum(model[key] for model in of_row) / len(of_row) for key in ("texts_per_second", "tokens"))
        count = f"{parameters / 1e6:.1f} M" if parameters else ""
        numbers = [f"{size / 1e6:.0f}", str(dimensions), f"{speed:.0f}", f"{tokens:.0f}"]
        table.append([name, role, count, *numbers])
    return table if rows else []
