"""Static vectors of words (GloVe, word2vec) or tokens, without torch.

Shapes: V words and the padding, R words of a block, H dimensions.
"""

import contextlib
import gzip
import itertools
import json
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from raysts.errors import InputError, RunFailed
from raysts.ids import file_digest, folder_id
from raysts.log import say
from raysts.storage.atomic import atomic_write, cache_folder, remove_drafts, write_json
from raysts.storage.bucket import is_inside
from raysts.storage.foreign import check_ordinary, read_json

MODEL_TYPE = "static"
FOLDER = "0_WordEmbeddings"
"""Folder of the vectors and the tokenizer in a model directory."""

TABLE = "0_StaticEmbedding"
"""The same of vectors of tokens, which are trained."""

SETTINGS = "wordembedding_config.json"

WEIGHTS = {FOLDER: "emb_layer.weight", TABLE: "embedding.weight"}
_HEADER = 256  # bytes before the numbers of a safetensors file
BLOCK = 16_384
"""Vectors that are in memory at once."""

_VERSION = 1
_MARK = "▁"  # begins every word of the tokenizer's vocabulary, so that no letter of an unknown word is a word
_LONGEST = 1 << 22  # bytes of a line; the rest of one that is longer is a line that says nothing
_CASED = 0.001  # share of words with upper-case letters above which case counts

_WORD = r"(?i)n't\b|'(?:s|m|d|re|ve|ll)\b|\d+(?:[.,:]\d+)*|\w+?(?=n't\b)|\w+|[^\w\s]"
"""Words, numbers, single punctuation marks, and the clitics of the Penn Treebank, whose tokens GloVe was trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordVectorsConfig:
    """Configuration of word vectors with the keys of a Hugging Face encoder.

    The vectors are the one layer, and the embedding layer below it. Positions do not count.
    """

    hidden_size: int
    vocab_size: int
    num_hidden_layers: int = 1
    max_position_embeddings: int = 1_000_000
    model_type: str = MODEL_TYPE

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def is_static(folder: Path) -> bool:
    """Return True if the model in ``folder`` is made of vectors of words or tokens."""
    return (folder / FOLDER).is_dir() or is_table(folder)


def is_table(folder: Path) -> bool:
    """Return True if the model in ``folder`` is made of vectors of tokens, which are trained."""
    return (folder / TABLE).is_dir()


def input_folder(folder: Path) -> Path:
    """Return the folder of a model directory that holds its weights and its tokenizer."""
    return next((folder / part for part in (FOLDER, TABLE) if (folder / part).is_dir()), folder)


def is_foreign_table(folder: Path) -> bool:
    """Return True if another library wrote the model in ``folder`` as vectors of tokens (StaticEmbedding)."""
    modules = read_json(folder / "modules.json", list) or [None]
    kind = modules[0].get("type") if isinstance(modules[0], dict) else None
    model_type = (read_json(folder / "config.json") or {}).get("model_type")
    return str(kind).rpartition(".")[2] == "StaticEmbedding" and model_type != MODEL_TYPE


def convert_table(folder: Path) -> Path:
    """Return the model directory of a foreign table of token vectors, in the cache, made once.

    Factors and a mapping of tokens, which model2vec may write, are multiplied into the vectors.

    Raises:
        InputError: it holds no such table.
    """
    target = cache_folder() / f"table-{_VERSION}-{folder_id(folder)}"
    if target.is_dir():
        return target
    import torch
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    from raysts.models.shipped.words import PADDING

    modules = read_json(folder / "modules.json", list)
    place = str(modules[0].get("path") or "")
    files = folder / place if not place or is_inside(place) else folder
    try:
        for name in ("model.safetensors", "tokenizer.json"):
            check_ordinary(files / name)
        stored, tokenizer = load_file(files / "model.safetensors"), Tokenizer.from_file(str(files / "tokenizer.json"))
        weight_VH = stored[WEIGHTS[TABLE]] if WEIGHTS[TABLE] in stored else stored["embeddings"]
        weight_VH = weight_VH.float()[stored["mapping"].long()] if "mapping" in stored else weight_VH.float()
        weight_VH = weight_VH * stored["weights"].float()[:, None] if "weights" in stored else weight_VH
        padding = next((word for word in (PADDING, "<pad>") if tokenizer.token_to_id(word) is not None), None)
        if padding is None:
            tokenizer.add_special_tokens([padding := PADDING])
        tokenizer.post_processor = None
        tokenizer.no_padding()
        missing = max(0, tokenizer.get_vocab_size() - len(weight_VH))
        weight_VH = torch.cat([weight_VH, weight_VH.new_zeros(missing, weight_VH.shape[1])])
        weight_VH[tokenizer.token_to_id(padding)] = 0
    except InputError:
        raise
    except Exception as error:  # foreign files may be anything
        raise InputError(f"'{folder}': not a readable StaticEmbedding ({error}); get the model again") from None
    with atomic_write(target) as draft:
        unread = shutil.ignore_patterns("*.safetensors", "*.bin", "*.onnx", "tokenizer*.json", "README.md")
        shutil.copytree(folder, draft, ignore=unread)
        write_model(draft, TABLE, [weight_VH.numpy()], lambda: tokenizer, padding)
        write_json(draft / "modules.json", [{**modules[0], "path": TABLE}, *modules[1:]])
    return target


def pooling_problem(pooling: str) -> str | None:
    """Return what is wrong with a pooling of word vectors, or None."""
    return "pooling=cls: word vectors have no token for a whole text; take mean or max" if pooling == "cls" else None


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a model directory."""
    from raysts.models.shipped.words import PADDING, Words

    files = input_folder(folder)
    padding = (read_json(files / "tokenizer_config.json") or {}).get("pad_token", PADDING)
    return Words(tokenizer_file=str(files / "tokenizer.json"), pad_token=padding)


def save_tokenizer(tokenizer: Any, folder: Path, padding: str = "") -> None:
    """Write a ``tokenizers.Tokenizer`` of words or tokens so that transformers reads it."""
    from raysts.models.shipped.words import PADDING

    tokenizer.no_truncation()
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": padding or PADDING}
    write_json(folder / "tokenizer_config.json", settings)


def write_model(
    folder: Path, place: str, blocks: Iterable[np.ndarray], tokenizer: Callable[[], Any], padding: str = ""
) -> int:
    """Write blocks of vectors as a model directory, and return the number of vectors.

    ``place``: ``FOLDER`` or ``TABLE``. ``tokenizer`` gives that of the vectors when all are written.
    """
    (folder / place).mkdir(parents=True, exist_ok=True)
    rows = width = 0
    with (folder / place / "model.safetensors").open("wb") as file:
        file.write(bytes(_HEADER))
        for block in blocks:
            file.write(np.ascontiguousarray(block, "<f4").tobytes())
            rows, width = rows + len(block), block.shape[1]
        entry = {"dtype": "F32", "shape": [rows, width], "data_offsets": [0, rows * width * 4]}
        header = json.dumps({WEIGHTS[place]: entry}).encode().ljust(_HEADER - 8)
        file.seek(0)
        file.write((_HEADER - 8).to_bytes(8, "little") + header)
    save_tokenizer(tokenizer(), folder / place, padding)
    write_json(folder / "config.json", WordVectorsConfig(hidden_size=width, vocab_size=rows).to_dict())
    return rows


def convert(path: Path) -> Path:
    """Return the model directory of a file of word vectors, in the cache, made once.

    The file has a word and its numbers a line, perhaps gzipped. word2vec's first line, with the numbers of words and
    dimensions, is optional. ``.bin``: word2vec's binary format. The first vector of a repeated word counts.

    Raises:
        InputError: it is not such a file.
        RunFailed: the cache cannot be written to.
    """
    try:
        digest = file_digest(path).hex()[:16]
    except OSError as error:
        raise InputError(f"word vectors '{path}' cannot be read ({error.strerror}); check its permissions") from None
    folder = cache_folder() / f"vectors-{_VERSION}-{digest}"
    if folder.is_dir():
        return folder
    say(f"reading the word vectors {path} into {folder}")
    try:
        remove_drafts(folder.parent)
        with atomic_write(folder) as draft:
            words: dict[str, None] = {}
            if write_model(draft, FOLDER, _blocks(path, words), lambda: _tokenizer(list(words))) < 2:
                raise InputError(f"word vectors '{path}': holds none; expected a word and its numbers a line")
    except OSError as error:
        raise RunFailed(
            f"the word vectors cannot be written to the cache ({error}); set XDG_CACHE_HOME to a folder with room that you "
            f"may write in"
        ) from error
    return folder


def vocabulary(tokenizer: Any) -> dict[str, int]:
    """Return the words of a tokenizer of this module, as the file has them, and their rows."""
    return {piece[1:]: row for piece, row in tokenizer.get_vocab().items() if piece.startswith(_MARK)}


def _blocks(path: Path, words: dict[str, None]) -> Iterator[np.ndarray]:
    """Yield the vectors in blocks, padding first, and fill ``words`` in the same order."""
    read = _binary if path.name.removesuffix(".gz").endswith(".bin") else _lines
    block: list[np.ndarray] = []
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for word, vector in read(path, file):
                if not words:
                    block.append(np.zeros_like(vector))
                if word not in words:
                    words[word] = None
                    block.append(vector)
                if len(block) >= BLOCK:
                    yield np.stack(block)
                    block = []
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"word vectors '{path}' cannot be read ({error}); get the file again") from None
    if block:
        yield np.stack(block)


def _lines(path: Path, file: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield every word that is not white space alone, with its vector [H] float32."""
    dim = promised = seen = 0
    for number, line in enumerate(iter(partial(file.readline, _LONGEST), b""), start=1):
        fields = line.rsplit(None, dim) if dim else line.split()
        if not fields:
            continue
        if not seen and not dim and len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit():
            promised, dim = map(int, fields)
            continue
        seen += 1
        dim = dim or len(fields) - 1
        if len(fields) == dim and line[:1].isspace():
            continue
        vector = np.zeros(0, np.float32)
        with contextlib.suppress(ValueError):
            vector = np.array(fields[1:], dtype=np.float32)
        if not len(vector) or len(vector) != dim or not np.isfinite(vector).all():
            raise InputError(
                f"word vectors '{path}', line {number}: expected a word and {dim or 'its'} finite numbers, as GloVe has them "
                f"and word2vec saved as text; a model directory is given by its folder, and word2vec's binary format by a "
                f"name that ends in .bin"
            )
        yield fields[0].decode("utf-8", errors="replace"), vector
    if seen < promised:
        raise InputError(
            f"word vectors '{path}': the first line promises {promised:,} words, and {seen:,} are there; get it again"
        )


def _binary(path: Path, file: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield every word of word2vec's binary format, with its vector [H] float32."""
    head = file.readline(_LONGEST).split()
    if len(head) != 2 or not all(map(bytes.isdigit, head)):
        raise InputError(f"word vectors '{path}': its first line must have the numbers of words and dimensions")
    rows, dim = map(int, head)
    for number in range(1, rows + 1):
        letters = iter(partial(file.read, 1), b"")
        word = b"".join(itertools.takewhile(lambda letter: letter != b" ", letters))
        numbers = file.read(4 * dim)
        vector = np.frombuffer(numbers if len(numbers) == 4 * dim else b"", "<f4")
        if len(vector) < dim or not np.isfinite(vector).all():
            raise InputError(f"word vectors '{path}': word {number:,} of {rows:,} has no whole vector; get it again")
        yield word.lstrip(b"\n").decode("utf-8", errors="replace"), vector


def _tokenizer(words: list[str]) -> Any:
    """Return a tokenizer that splits a text as ``_WORD`` does and omits words outside ``words``.

    Ids begin at 1. It is a BPE model without merges: another word becomes letters, which are not in the vocabulary.
    """
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    from raysts.models.shipped.words import PADDING, Words

    pieces = {PADDING: 0} | {_MARK + word: number for number, word in enumerate(words, start=1)}
    tokenizer = Tokenizer(models.BPE(vocab=pieces, merges=[], ignore_merges=True))
    if sum(word != word.lower() for word in words) <= _CASED * len(words):
        tokenizer.normalizer = normalizers.Lowercase()
    split = pre_tokenizers.Split(Regex(_WORD), "removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.Metaspace(_MARK, "always", split=False)])
    return Words(tokenizer_object=tokenizer, pad_token=PADDING).backend_tokenizer
