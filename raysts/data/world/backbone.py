"""The embedded world's tokenizer and its backbone: a random-initialised BERT that trains on a CPU in seconds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from raysts.data.world.lexicon import ACTIONS, KINDS
from raysts.data.world.text import FUNCTION_WORDS, all_surfaces, inflect, plural
from raysts.storage.atomic import atomic_write

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SUFFIXES = ("s", "es", "ing", "ed", "d")
MAX_LENGTH = 128
_SAMPLED_TEXTS = 512
_TOKEN = re.compile(r"\w+|[^\w\s]")


def _phrases() -> Iterator[str]:
    """Everything that a sentence may contain, inflected."""
    yield from FUNCTION_WORDS
    yield from (surface for _, surface in all_surfaces())
    yield from (plural(form) for kind in KINDS.values() for form in kind.forms)
    yield from (form for action in ACTIONS.values() for verb in action.forms for form in inflect(verb).values())


@cache
def world_words() -> tuple[str, ...]:
    """Every word form of the world in lower case, sorted."""
    return tuple(sorted({word for phrase in _phrases() for word in phrase.lower().split()}))


@cache
def world_vocabulary() -> tuple[str, ...]:
    """Word pieces in the order of their ids: special tokens, suffixes, then the words that are no stem plus suffix."""
    words = set(world_words())
    pieces = [word for word in sorted(words) if _stem(word, words) is None]
    return (*SPECIAL_TOKENS, *(f"##{suffix}" for suffix in SUFFIXES), *pieces)


def _stem(word: str, words: set[str]) -> str | None:
    """The longest other word of which this one is an inflection by a mere suffix, if any."""
    for suffix in sorted(SUFFIXES, key=len):
        stem = word.removesuffix(suffix)
        if stem != word and len(stem) > 2 and stem in words and _stem(stem, words) is None:
            return stem
    return None


def world_tokenizer() -> PreTrainedTokenizerFast:
    """A lower-casing BERT WordPiece tokenizer whose vocabulary is the world's words."""
    from transformers import BertTokenizerFast  # type: ignore[attr-defined]

    vocabulary = {piece: index for index, piece in enumerate(world_vocabulary())}
    return BertTokenizerFast(vocab=vocabulary, do_lower_case=True, model_max_length=MAX_LENGTH)


def tiny_config() -> dict[str, Any]:
    """The shape of `backbone=tiny`: what its `config.json` says beside transformers' defaults."""
    return {
        "model_type": "bert",
        "vocab_size": len(world_vocabulary()),
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "max_position_embeddings": MAX_LENGTH,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.1,
        "pad_token_id": 0,
    }


def write_tiny_backbone(path: Path, seed: int) -> None:
    """Write a random-initialised tiny BERT and its tokenizer as a Hugging Face directory; there at once or not at all.
    ``path``: directory to make; an existing one is replaced. ``seed``: seed of the initialisation; the global random state
    is left as it was.
    """
    import torch
    from transformers import BertConfig, BertModel

    with atomic_write(Path(path)) as draft:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(crc32(b"tiny-backbone") ^ seed)
            model = BertModel(BertConfig.from_dict(tiny_config()), add_pooling_layer=False)
        model.float().save_pretrained(draft)
        world_tokenizer().save_pretrained(draft)


@cache
def _known_words() -> frozenset[str]:
    return frozenset(world_words())


def unknown_fraction(texts: list[str]) -> float:
    """Share of the word tokens of `texts` that the world's vocabulary does not know, 0..1; 0 where there is no word.

    At most 512 texts, evenly spaced, are looked at, so the cost does not grow with the corpus.
    """
    step = max(1, -(-len(texts) // _SAMPLED_TEXTS))
    known = total = 0
    for text in texts[::step]:
        tokens = _TOKEN.findall(text.lower())
        total += len(tokens)
        known += sum(token in _known_words() for token in tokens)
    return 1.0 - known / total if total else 0.0
