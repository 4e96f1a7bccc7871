"""Model directories of static word vectors (GloVe, word2vec), without torch.

Commands read them before anything starts. Shapes: V words and the padding, H hidden dimensions.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raysts.storage.atomic import write_json

MODEL_TYPE = "static"
FOLDER = "0_WordEmbeddings"
"""Folder of the vectors and the tokenizer in a model directory."""

SETTINGS = "wordembedding_config.json"

WEIGHT = "emb_layer.weight"
_HEADER = 256  # bytes before the numbers of a safetensors file
BLOCK = 16_384
"""Vectors that are in memory at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordVectorsConfig:
    """Configuration of word vectors with the keys of a Hugging Face encoder.

    ``num_hidden_layers``: the vectors are the one layer, and the embedding layer below it. ``max_position_embeddings``:
    sentence-transformers' limit, since positions do not count.
    """

    hidden_size: int
    vocab_size: int
    num_hidden_layers: int = 1
    max_position_embeddings: int = 1_000_000
    model_type: str = MODEL_TYPE

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def is_static(folder: Path) -> bool:
    """Return True if the model in ``folder`` is made of word vectors."""
    return (folder / FOLDER).is_dir()


def input_folder(folder: Path) -> Path:
    """Return the folder of a model directory that holds its weights and its tokenizer."""
    return folder / FOLDER if is_static(folder) else folder


def pooling_problem(pooling: str) -> str | None:
    """Return what is wrong with a pooling of word vectors, or None."""
    return "pooling=cls: word vectors have no token for a whole text; take mean or max" if pooling == "cls" else None


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a model directory."""
    from raysts.models.shipped.words import Words

    return Words.load(folder / FOLDER)


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a ``tokenizers.Tokenizer`` of words so that transformers reads it."""
    from raysts.models.shipped.words import PADDING

    tokenizer.no_truncation()
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": PADDING})


def write_rest(folder: Path, config: WordVectorsConfig, tokenizer: Any) -> None:
    """Write the files of a model directory other than its vectors."""
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
        file.write((_HEADER - 8).to_bytes(8, "little") + json.dumps({WEIGHT: entry}).encode().ljust(_HEADER - 8))
    return rows, width
