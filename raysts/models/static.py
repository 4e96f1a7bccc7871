"""Static word vectors (GloVe, word2vec) as a frozen encoder: a token's vector is that of its word, whatever stands around it.

On the CPU the vectors of a model directory are memory-mapped: of a large table only the rows of the words that occur
are read.

Shapes: B texts, T tokens, V words and the padding, H hidden dimensions.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from raysts.models.tokens import Tokens
from raysts.storage.atomic import write_json

MODEL_TYPE = "static"
FOLDER = "0_WordEmbeddings"
"""Where a model directory has its vectors and its tokenizer."""

SETTINGS = "wordembedding_config.json"

_WEIGHT = "emb_layer.weight"
_HEADER = 256  # bytes before the numbers of a safetensors file
BLOCK = 16_384
"""Vectors that are in memory at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordVectorsConfig:
    """What a Hugging Face configuration says of an encoder.

    Attributes:
        hidden_size: H.
        vocab_size: V.
        num_hidden_layers: the vectors are the one layer, and the embedding layer below it.
        max_position_embeddings: no position counts; sentence-transformers' limit.
        model_type: tells the directory apart.
    """

    hidden_size: int
    vocab_size: int
    num_hidden_layers: int = 1
    max_position_embeddings: int = 1_000_000
    model_type: str = MODEL_TYPE

    def to_dict(self) -> dict[str, Any]:
        """As ``config.json`` has it."""
        return asdict(self)


class Output(NamedTuple):
    """Hidden states as transformers returns them."""

    last_hidden_state: Tensor
    hidden_states: tuple[Tensor, Tensor]


class WordVectors(nn.Module):
    """The backbone.

    Args:
        weight_VH: the vectors; row 0, the padding, is zero.
    """

    def __init__(self, weight_VH: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight_VH, requires_grad=False)
        self.config = WordVectorsConfig(hidden_size=weight_VH.shape[1], vocab_size=weight_VH.shape[0])
        self._said: set[str] = set()

    def forward(self, input_ids: Tensor, **_: Any) -> Output:
        """Token ids [B, T] -> hidden states [B, T, H]."""
        vectors_BTH = F.embedding(input_ids, self.weight)
        return Output(vectors_BTH, (vectors_BTH, vectors_BTH))

    def say_unknown(self, tokens: Tokens) -> None:
        """Say on stderr how many of the texts hold no known word; the same line once."""
        unknown = int(((tokens.lengths == 1) & (tokens.flat[tokens.offsets[:-1]] == 0)).sum())
        line = (
            f"{unknown:,} of {len(tokens):,} sentences hold no word that the word vectors know: their vectors are zero"
        )
        if unknown and line not in self._said:
            self._said.add(line)
            print(line, file=sys.stderr, flush=True)  # noqa: T201


def is_static(folder: Path) -> bool:
    """Whether the model in ``folder`` is made of word vectors."""
    return (folder / FOLDER).is_dir()


def input_folder(folder: Path) -> Path:
    """Where a model directory of any kind has its weights and its tokenizer."""
    return folder / FOLDER if is_static(folder) else folder


def pooling_problem(pooling: str) -> str | None:
    """What is wrong with a pooling of word vectors, or None."""
    return "pooling=cls: word vectors have no token for a whole text; take mean or max" if pooling == "cls" else None


def load(folder: Path) -> tuple[WordVectors, Any]:
    """(backbone, tokenizer) of a model directory; the vectors stay on disk until they are asked for."""
    return WordVectors(load_file(folder / FOLDER / "model.safetensors")[_WEIGHT]), load_tokenizer(folder)


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model directory."""
    from raysts.models.shipped.words import Words

    return Words.load(folder / FOLDER)


def save(backbone: WordVectors, tokenizer: Any, folder: Path, max_length: int, plain: bool) -> None:
    """Write what a model directory has of its backbone and tokenizer; sentence-transformers reads it as WordEmbeddings.

    Args:
        backbone: the vectors.
        tokenizer: their tokenizer.
        folder: the model directory.
        max_length: words per text.
        plain: sentence-transformers' own class reads the tokenizer. It gives a text of unknown words no token, and mean
            pooling makes zeros of that; max pooling and heads that read tokens need the one padding token of ``Words``.
    """
    from raysts.models.shipped import words

    (folder / FOLDER).mkdir()
    blocks = (part.numpy() for part in backbone.weight.detach().cpu().split(BLOCK))
    write_vectors(folder / FOLDER / "model.safetensors", blocks)
    write_rest(folder, backbone.config, tokenizer.backend_tokenizer)
    kind = "sentence_transformers.models.tokenizer.TransformersTokenizerWrapper" if plain else "raysts_words.Words"
    write_json(
        folder / FOLDER / SETTINGS,
        {"tokenizer_class": kind, "update_embeddings": False, "max_seq_length": max_length},
    )
    if not plain:
        shutil.copyfile(words.__file__, folder / "raysts_words.py")


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a ``tokenizers.Tokenizer`` of words so that transformers reads it."""
    from raysts.models.shipped.words import PADDING

    tokenizer.no_truncation()
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": PADDING})


def write_rest(folder: Path, config: WordVectorsConfig, tokenizer: Any) -> None:
    """Write what a model directory has beside its vectors."""
    write_json(folder / "config.json", config.to_dict())
    save_tokenizer(tokenizer, folder / FOLDER)


def write_vectors(path: Path, blocks: Iterable[np.ndarray]) -> tuple[int, int]:
    """Stream blocks of vectors into a safetensors file -> [V, H], its shape."""
    rows = width = 0
    with path.open("wb") as file:
        file.write(bytes(_HEADER))
        for block in blocks:
            file.write(np.ascontiguousarray(block, "<f4").tobytes())
            rows, width = rows + len(block), block.shape[1]
        entry = {"dtype": "F32", "shape": [rows, width], "data_offsets": [0, rows * width * 4]}
        file.seek(0)
        file.write((_HEADER - 8).to_bytes(8, "little") + json.dumps({_WEIGHT: entry}).encode().ljust(_HEADER - 8))
    return rows, width
