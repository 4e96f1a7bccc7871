"""Static vectors as an encoder: those of words are frozen on disk, those of tokens are trained.

Shapes: B texts, T tokens, V words and the padding, H hidden dimensions.
"""

import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from raysts.models.static import BLOCK, FOLDER, SETTINGS, TABLE, WordVectorsConfig, write_model
from raysts.models.tokens import Tokens
from raysts.storage.atomic import write_json


class Output(NamedTuple):
    """Hidden states as transformers returns them."""

    last_hidden_state: Tensor
    hidden_states: tuple[Tensor, Tensor]


class WordVectors(nn.Module):
    """Backbone of static vectors.

    Args:
        weight_VH: the vectors, with zeros as that of the padding.
        pad_id: row of the padding.
        trained: they are those of tokens.
    """

    def __init__(self, weight_VH: Tensor, pad_id: int = 0, trained: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight_VH, requires_grad=trained)
        self.pad_id, self.trained = pad_id, trained
        self.config = WordVectorsConfig(hidden_size=weight_VH.shape[1], vocab_size=weight_VH.shape[0])
        self._said: set[str] = set()

    def forward(self, input_ids: Tensor, **_: Any) -> Output:
        """Return hidden states [B, T, H] of token ids [B, T]."""
        vectors_BTH = F.embedding(input_ids, self.weight, self.pad_id)
        return Output(vectors_BTH, (vectors_BTH, vectors_BTH))

    def say_unknown(self, tokens: Tokens) -> None:
        """Print on stderr how many texts hold no known word, each line once."""
        unknown = int(((tokens.lengths == 1) & (tokens.flat[tokens.offsets[:-1]] == self.pad_id)).sum())
        counts = f"{unknown:,} of {len(tokens):,} sentences"
        line = f"{counts} hold no word that the word vectors know: their vectors are zero"
        if unknown and line not in self._said:
            self._said.add(line)
            print(line, file=sys.stderr, flush=True)  # noqa: T201


def save(backbone: WordVectors, tokenizer: Any, folder: Path, max_length: int, plain: bool) -> tuple[str, str]:
    """Write backbone and tokenizer, and return folder and type of their module in sentence-transformers.

    ``plain``: its own class reads the tokenizer, which gives a text of unknown words no token. Max pooling and heads that
    read tokens need the one padding token of ``Words``.
    """
    from raysts.models.shipped import words

    place = TABLE if backbone.trained else FOLDER
    blocks = (part.numpy() for part in backbone.weight.detach().cpu().split(BLOCK))
    write_model(folder, place, blocks, lambda: tokenizer.backend_tokenizer, tokenizer.pad_token)
    if backbone.trained:
        return place, "StaticEmbedding"
    kind = "sentence_transformers.models.tokenizer.TransformersTokenizerWrapper" if plain else "raysts_words.Words"
    settings = {"tokenizer_class": kind, "update_embeddings": False, "max_seq_length": max_length}
    write_json(folder / place / SETTINGS, settings)
    if not plain:
        shutil.copyfile(words.__file__, folder / "raysts_words.py")
    return place, "WordEmbeddings"
