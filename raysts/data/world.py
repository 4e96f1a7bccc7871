"""The embedded world: the tables that travel with the package.

`tools/world` generates them from a small formal semantics, so that similarity and entailment follow from meaning and not from
shared words. They are the default data. Nothing in them is copied from any corpus. `backbone=tiny` is a random-initialised
BERT for their vocabulary, which trains on a CPU in seconds.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from raysts.storage.atomic import atomic_write, cache_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

WORLD_VERSION = "3870a7d0e3f5"
"""Names the tables, and goes into every id of a run on the world. Give it a new value whenever a table changes:
``tests/data/test_world.py`` compares the tables' contents with it."""

EMBEDDED = Path(__file__).parent / "embedded"
"""The tables in the canonical layout, `words.txt` (every word form) and `vocab.txt` (word pieces in the order of their ids)."""

MAX_LENGTH = 128
_SAMPLED_TEXTS = 512
_TOKEN = re.compile(r"\w+|[^\w\s]")


def world_path(cache: Path | None = None) -> Path:
    """Return a folder with the world's tables, copied to the cache on first use.

    Several processes may ask at once. The path does not depend on where the package is installed, which may differ between
    the nodes of a cluster.

    Args:
        cache: folder that holds the copy; default `$XDG_CACHE_HOME/raysts`, else `~/.cache/raysts`.

    Raises:
        OSError: the cache cannot be written.
    """
    path = Path(cache or cache_folder()) / f"world-{WORLD_VERSION}"
    if path.is_dir():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as parent:
        draft = shutil.copytree(EMBEDDED, Path(parent) / path.name, ignore=shutil.ignore_patterns("*.txt"))
        try:
            draft.rename(path)  # unlike atomic_write, a rename never replaces a world that another process reads
        except OSError:
            if not path.is_dir():
                raise
    return path


def is_world(folder: Path) -> bool:
    """Return True for the folder of :func:`world_path`, which need not exist."""
    return folder.name == f"world-{WORLD_VERSION}"


@cache
def world_words() -> tuple[str, ...]:
    """Return every word form of the world in lower case, sorted."""
    return _lines("words.txt")


@cache
def world_vocabulary() -> tuple[str, ...]:
    """Return the word pieces in the order of their ids: special tokens, suffixes, then other words."""
    return _lines("vocab.txt")


def _lines(name: str) -> tuple[str, ...]:
    return tuple((EMBEDDED / name).read_text(encoding="utf-8").splitlines())


def world_tokenizer() -> PreTrainedTokenizerFast:
    """Return a lower-casing BERT WordPiece tokenizer for the world's words."""
    from transformers import BertTokenizerFast  # type: ignore[attr-defined]

    vocabulary = {piece: index for index, piece in enumerate(world_vocabulary())}
    return BertTokenizerFast(vocab=vocabulary, do_lower_case=True, model_max_length=MAX_LENGTH)


def tiny_config() -> dict[str, Any]:
    """Return the `config.json` of `backbone=tiny`, without the values that are transformers' defaults."""
    return {
        "model_type": "bert", "vocab_size": len(world_vocabulary()), "hidden_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 256, "max_position_embeddings": MAX_LENGTH,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.1, "pad_token_id": 0,
    }  # fmt: skip


def write_tiny_backbone(path: Path, seed: int) -> None:
    """Write a random-initialised tiny BERT and its tokenizer as a Hugging Face directory.

    Args:
        path: directory to make; an existing one is replaced.
        seed: seed of the initialisation; the global random state stays as it is.
    """
    import torch
    from transformers import BertConfig, BertModel

    with atomic_write(Path(path)) as draft:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(crc32(b"tiny-backbone") ^ seed)
            model = BertModel(BertConfig.from_dict(tiny_config()), add_pooling_layer=False)
        model.float().save_pretrained(draft)
        world_tokenizer().save_pretrained(draft)


def unknown_fraction(texts: list[str]) -> float:
    """Return the share of the words of `texts` that the world lacks, or 0 for texts without words.

    At most 512 texts, evenly spaced, are looked at, so the cost does not grow with the corpus.
    """
    step, words = max(1, -(-len(texts) // _SAMPLED_TEXTS)), frozenset(world_words())
    tokens = [token for text in texts[::step] for token in _TOKEN.findall(text.lower())]
    return 1.0 - sum(token in words for token in tokens) / len(tokens) if tokens else 0.0
