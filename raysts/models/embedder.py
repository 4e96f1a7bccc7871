"""Models and files that give vectors of texts.

Each reads its own tokens, and is described without its weights.

Shapes: N texts, D dimensions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from raysts.ids import folder_id
from raysts.models import pretrained
from raysts.models.layers import Layers
from raysts.models.modules import Description, describe
from raysts.models.prompts import Text
from raysts.models.tokens import Tokens
from raysts.ops.similarity import Similarity, cosine_of_vectors

if TYPE_CHECKING:
    from raysts.models.sentence_model import Representation


class Embedder(ABC):
    """Model directory, or file, that gives vectors of texts.

    Args:
        path: of the directory or file.
        prompt: a stored prompt's name, or its text.
        device: for the computation.
    """

    kind: Literal["encoder", "onnx", "vectors"]

    def __init__(self, path: Path, prompt: str | None = None, device: str | None = None) -> None:
        self.path, self.prompt_name, self.device = path, prompt, device

    @cached_property
    def description(self) -> Description:
        return describe(self.path)

    @property
    def id(self) -> str:
        """Id of the content."""
        return folder_id(self.path)

    @property
    def tokenizer_id(self) -> str:
        return pretrained.tokenizer_id(self.path)

    @cached_property
    def tokenizer(self) -> Any:
        """Tokenizer with the call signature of a Hugging Face tokenizer."""
        return pretrained.load_tokenizer(self.path)

    @property
    def max_length(self) -> int:
        """Tokens per text that it reads."""
        return int(self.description.max_length or self.tokenizer.model_max_length)

    @property
    def prompt(self) -> str:
        """Text before every text."""
        return self.description.prompts.resolve(self.prompt_name)

    @property
    def stored_pooling(self) -> tuple[str, Layers] | None:
        """Pooling and layers that the directory configures, or None if they cannot vary."""
        return None

    @property
    def similarities(self) -> Mapping[str, Similarity]:
        """Similarities by name, the default first."""
        return {"cosine": cosine_of_vectors}

    @property
    @abstractmethod
    def dim(self) -> int:
        """D."""

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Approximate memory of the weights."""

    @abstractmethod
    def check(self) -> None:
        """Raise InputError unless raysts can read it."""

    def load(self) -> None:
        """Read the weights."""
        self.check()

    def find_missing(self, texts: Sequence[Text]) -> int | None:
        """Return the number of the first text that has no vector, or None."""
        return None

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Return the tokens of texts behind the prompt."""

    @abstractmethod
    def vectors(self, tokens: Tokens) -> np.ndarray:
        """Return the vectors of tokenised texts, float32 [N, D]."""

    def represent_layers(self, texts: Sequence[Text], layers: Sequence[Layers]) -> dict[Layers, Representation]:
        """Return representations for several choices of layers, or for the first alone if they cannot vary."""
        return {layers[0]: {"vectors": self.vectors(self.tokenize([str(text) for text in texts]))}}
