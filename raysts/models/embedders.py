"""Embedders by their path: an encoder, an ONNX graph, or precomputed vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raysts.ids import unchanged
from raysts.models import memory, pretrained
from raysts.models.embedder import Embedder
from raysts.models.layers import Layers
from raysts.models.onnx_model import OnnxModel, graph_of
from raysts.models.precision import Precision, check_finite
from raysts.models.prompts import Text
from raysts.models.tokens import Tokens
from raysts.models.vectors_model import VectorsModel, parquet_files
from raysts.ops.similarity import Similarity

if TYPE_CHECKING:
    from raysts.models.sentence_model import Representation, SentenceModel


class EncoderModel(Embedder):
    """Model that raysts loads. Further options as of :func:`raysts.models.pretrained.load`."""

    kind = "encoder"

    def __init__(self, path: Path, prompt: str | None = None, device: str | None = None, **options: Any) -> None:
        super().__init__(path, prompt, device)
        self.options = options

    @property
    def stored_pooling(self) -> tuple[str, Layers]:
        return self.description.pooling, self.description.layers

    @property
    def max_length(self) -> int:
        return min(super().max_length, pretrained.most_tokens(self.path))

    @property
    def similarities(self) -> Mapping[str, Similarity]:
        return pretrained.similarities(self.path)

    @property
    def dim(self) -> int:
        return pretrained.dim(self.path)

    @property
    def weight_bytes(self) -> int:
        return memory.weights(self.path)

    @cached_property
    def model(self) -> SentenceModel:
        return pretrained.load(self.path, prompt=self.prompt_name, device=self.device, **self.options)

    def check(self) -> None:
        pretrained.check(self.path)

    def load(self) -> None:
        self.model  # noqa: B018 (reads it)

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        return self.model.tokenize(texts)

    def vectors(self, tokens: Tokens) -> np.ndarray:
        from raysts.models.sentence_model import represent_tokens

        (representation,) = represent_tokens(self.model.encoder, tokens, (self.model.layers,), self.model.precision)
        return check_finite(self.model.finished(representation)["vectors"], f"teacher '{self.path}'")

    def represent_layers(self, texts: Sequence[Text], layers: Sequence[Layers]) -> dict[Layers, Representation]:
        return self.model.represent_layers(texts, layers)


def open_embedder(
    path: Path, *, pooling: str | None = None, layers: Layers | None = None, prompt: str | None = None,
    device: str | None = None, precision: Precision = "fp32",
) -> Embedder:  # fmt: skip
    """Return what embeds at ``path``, without its weights.

    Parquet or a folder of it holds vectors. A folder with a graph and no other weights is ONNX.

    Args:
        path: a model directory, or Parquet.
        pooling: of an encoder's token vectors; None: as its directory configures.
        layers: of an encoder that are pooled; None: as its directory configures.
        prompt: a stored prompt's name, or its text. Vectors have none.
        device: of an encoder or a graph.
        precision: of an encoder; an ONNX graph determines its own.
    """
    if path.suffix == ".parquet" or (path.is_dir() and not (path / "config.json").exists() and parquet_files(path)):
        return VectorsModel(path)
    if graph_of(path) is not None and not [*path.glob("*.safetensors"), *path.glob("pytorch_model*.bin")]:
        return OnnxModel(path, prompt, device)
    return EncoderModel(path, prompt, device, pooling=pooling, layers=layers, precision=precision)


def load_embedder(path: Path, *, content: str | None = None, **options: Any) -> Embedder:
    """Return what embeds at ``path``, with its weights. Options as of :func:`open_embedder`.

    ``content``: the id that its content must have; None: any.
    """
    with unchanged(path, content, lambda path: open_embedder(path).id):
        embedder = open_embedder(path, **options)
        embedder.load()
    return embedder


def find_embedder(name: str, locate: Callable[[str], Path]) -> Path:
    """Return the path of what is called ``name``. ``locate`` finds models that raysts loads."""
    path = Path(name).absolute()
    exists = bool(name.strip()) and path.exists()
    return path if exists and open_embedder(path).kind != "encoder" else locate(name).absolute()


def short_names(names: Sequence[str]) -> list[str]:
    """Return for each name the shortest tail that tells it from the others.

    The tail of a folder ``model`` includes its parent.
    """
    parts, short = [[part for part in name.split("/") if part] for name in names], []
    for path in parts:
        least = 1 + (path[-1] == "model" and len(path) > 1)
        tails = (path[-count:] for count in range(least, len(path)))
        short.append(next((tail for tail in tails if sum(other[-len(tail) :] == tail for other in parts) == 1), path))
    return ["/".join(tail) for tail in short]
