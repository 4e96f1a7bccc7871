"""The tokenizer of word vectors. Model directories hold a copy of this file, ``raysts_words.py``.

It imports nothing of raysts: sentence-transformers runs the copy where its own reading of the tokenizer's files would give
a text without a known word no vector that can be pooled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import BatchEncoding, PreTrainedTokenizerFast

PADDING = "[PAD]"
"""The piece with id 0, whose vector is zero."""


class Words(PreTrainedTokenizerFast):
    """Tokenizer that keeps known words. A text without any is a padding token, with a zero vector."""

    model_input_names = ["input_ids"]

    def __call__(self, text: Any, **options: Any) -> BatchEncoding:
        """Return ``input_ids`` of a text, or of each of several."""
        encoded = super().__call__(text, **options)
        nothing = [self.pad_token_id]
        ids = encoded["input_ids"]
        encoded["input_ids"] = ids or nothing if isinstance(text, str) else [row or nothing for row in ids]
        return encoded

    @staticmethod
    def load(folder: str | Path) -> Words:
        return Words(tokenizer_file=str(Path(folder) / "tokenizer.json"), pad_token=PADDING)
