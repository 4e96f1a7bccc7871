"""Sources of vectors of texts: an encoder, an ONNX graph, precomputed vectors, or a server.

Shapes: N texts, B of them at once, T tokens, H hidden, D dimensions, R rows.
"""

from __future__ import annotations

import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from raysts.errors import InputError, RunFailed
from raysts.ids import content_id, file_digest, folder_id, guard_content
from raysts.models import pretrained
from raysts.models.endpoint import Endpoint, is_endpoint, open_endpoint
from raysts.models.layers import Layers, pooling_modes
from raysts.models.modules import Description, describe, head_of
from raysts.models.precision import Precision, check_finite
from raysts.models.prompts import Prompts, Text
from raysts.models.tokens import Tokens, tokenize
from raysts.ops.similarity import Similarity, cosine_of_vectors
from raysts.storage.parquet import is_text, open_parquet, pages

if TYPE_CHECKING:
    from raysts.models.sentence_model import Representation, SentenceModel

LONGEST = 512
"""Tokens of a text if the tokenizer of a graph does not say how many the model reads."""

TEXTS = ("text", "sentence")
"""Columns that may hold the texts of precomputed vectors; the first that exists counts."""
VECTORS = "embedding"
"""Column with the vectors, a list of numbers in each row."""


class Embedder(ABC):
    """Model directory, or file, that gives vectors of texts.

    Args:
        path: of the directory or file.
        prompt: a stored prompt's name, or its text.
        device: for the computation.
    """

    kind: ClassVar[str]
    """``encoder``, ``onnx``, ``vectors`` or ``address``."""

    def __init__(self, path: Path, prompt: str | None = None, device: str | None = None) -> None:
        self.path, self.prompt_name, self.device = path, prompt, device

    @cached_property
    def description(self) -> Description:
        return describe(self.path)

    @property
    def id(self) -> str:
        return folder_id(self.path)

    @property
    def tokenizer_id(self) -> str:
        return pretrained.tokenizer_id(self.path)

    @cached_property
    def tokenizer(self) -> Any:
        """Tokenizer with the call signature of a Hugging Face tokenizer."""
        return pretrained.load_tokenizer(self.path)

    @property
    @abstractmethod
    def max_length(self) -> int:
        """Tokens per text that it reads."""

    @property
    def prompts(self) -> Prompts:
        return self.description.prompts

    @property
    def prompt(self) -> str:
        """Text before every text."""
        return self.prompts.resolve(self.prompt_name)

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
        self.check()

    def find_missing(self, texts: Sequence[Text]) -> int | None:
        """Return the number of the first text that has no vector, or None."""
        return None

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        return tokenize(self.tokenizer, texts, self.max_length, self.prompt)

    @abstractmethod
    def vectors(self, tokens: Tokens) -> np.ndarray:
        """Return the vectors of tokenised texts, float32 [N, D]."""

    def represent_layers(
        self, texts: Sequence[Text], layers: Sequence[Layers], progress: Callable[[int], None] | None = None
    ) -> dict[Layers, Representation]:
        """Return representations for several choices of layers, or for the first alone if they cannot vary."""
        vectors = self.vectors(self.tokenize([str(text) for text in texts]))
        if progress is not None:
            progress(len(texts))
        return {layers[0]: {"vectors": vectors}}


class EncoderModel(Embedder):
    """Model that raysts loads. Further options as of :func:`raysts.models.pretrained.load`."""

    kind = "encoder"

    def __init__(self, path: Path, prompt: str | None = None, device: str | None = None, **options: Any) -> None:
        super().__init__(path, prompt, device)
        self.options = options

    @property
    def stored_pooling(self) -> tuple[str, Layers] | None:
        return self.description.stored_pooling

    @property
    def stored_length(self) -> int:
        """Tokens per text that the directory configures."""
        return int(self.description.max_length or self.tokenizer.model_max_length)

    @property
    def max_length(self) -> int:
        config = pretrained.check(self.path)
        return min(self.stored_length, pretrained.family_of(config["model_type"]).most_tokens(config))

    @property
    def similarities(self) -> Mapping[str, Similarity]:
        from raysts.models.head import similarities_of

        heads = [head_of(*head) for head in self.description.heads[-1:]]
        return similarities_of(heads, self.description.similarity)

    @property
    def dim(self) -> int:
        described = self.description
        modes = len(pooling_modes(described.pooling))
        full = head_of(*described.heads[-1]).dim if described.heads else pretrained.width(self.path) * modes
        return min(full, described.truncate_dim or full)

    @property
    def weight_bytes(self) -> int:
        return pretrained.weight_bytes(self.path)

    @cached_property
    def model(self) -> SentenceModel:
        return pretrained.load(self.path, prompt=self.prompt_name, device=self.device, **self.options)

    def check(self) -> None:
        pretrained.check(self.path)

    def load(self) -> None:
        self.model  # noqa: B018 (reads it)

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        return self.model.tokenize(texts)

    def vectors(self, tokens: Tokens, variance: bool = False) -> np.ndarray:
        """Return the vectors [N, D], or mean and log variance of Gaussians side by side [N, 2D]."""
        from raysts.models.sentence_model import represent_tokens

        (representation,) = represent_tokens(self.model.encoder, tokens, (self.model.layers,), self.model.precision)
        arrays = self.model.finish(representation)
        vectors = np.concatenate([arrays["vectors"], arrays["log_var"]], axis=1) if variance else arrays["vectors"]
        return check_finite(vectors, f"teacher '{self.path}'")

    def represent_layers(
        self, texts: Sequence[Text], layers: Sequence[Layers], progress: Callable[[int], None] | None = None
    ) -> dict[Layers, Representation]:
        return self.model.represent_layers(texts, layers, self.prompt_name, progress=progress)


class OnnxModel(EncoderModel):
    """ONNX graph that embeds, in the place of an encoder (:class:`raysts.models.onnx.GraphEncoder`)."""

    kind = "onnx"
    stored_pooling = None

    @property
    def similarities(self) -> Mapping[str, Similarity]:
        from raysts.models.head import similarities_of

        return similarities_of((), self.description.similarity)

    @property
    def dim(self) -> int:
        return self.model.dim

    @property
    def weight_bytes(self) -> int:
        files = graph_of(self.path).parent.glob("model.onnx*")  # weights may stand in model.onnx_data
        return sum(file.stat().st_size for file in files)

    @cached_property
    def model(self) -> SentenceModel:
        from raysts.models.onnx import GraphEncoder
        from raysts.models.sentence_model import SentenceModel

        prompts = self.prompts.replace_default(self.prompt_name)
        skipped = prompts.tokens(self.tokenizer, prompts.resolve())
        pad_id, begin = self.tokenizer.pad_token_id or 0, f"model '{self.path}'"
        encoder = GraphEncoder(begin, graph_of(self.path), self.description, pad_id, skipped, self.device == "cuda")
        encoder.weight_bytes = self.weight_bytes
        similarity = self.description.similarity
        return SentenceModel(encoder, self.tokenizer, self.max_length, prompts=prompts, similarity_name=similarity)

    def check(self) -> None:
        self.load()

    @property
    def max_length(self) -> int:
        return self.stored_length if self.stored_length < 10**6 else LONGEST

    def represent_layers(
        self, texts: Sequence[Text], layers: Sequence[Layers], progress: Callable[[int], None] | None = None
    ) -> dict[Layers, Representation]:
        (representation,) = super().represent_layers(texts, (self.model.layers,), progress).values()
        return {layers[0]: representation}


class VectorsModel(Embedder):
    """Precomputed vectors, looked up by text in Parquet with both, as ``raysts embed`` writes.

    ``path``: a file, or a folder of them, with columns of ``TEXTS`` and ``VECTORS``. A text has one token, its row's number.
    """

    kind = "vectors"
    prompt = ""
    prompts = Prompts()
    max_length = sys.maxsize

    @cached_property
    def files(self) -> list[Path]:
        if files := parquet_files(self.path):
            return files
        raise InputError(
            f"teacher '{self.path}': no Parquet file there; give one with a text and its '{VECTORS}' a row"
        )

    @cached_property
    def column(self) -> str:
        """Name of the column of texts."""
        names = open_parquet(self.files[0], "write it again").schema_arrow.names
        column = next((name for name in TEXTS if name in names), "")
        if not column or VECTORS not in names:
            raise InputError(
                f"teacher '{self.path}' has columns {', '.join(names)}; vectors that teach need '{VECTORS}' and, for the "
                f"text that each is of, {' or '.join(map(repr, TEXTS))}: they are found by their texts, never by an id"
            )
        return column

    @cached_property
    def id(self) -> str:
        return content_id([self.column, *(file_digest(path).hex() for path in self.files)])

    @property
    def tokenizer_id(self) -> str:
        return self.id

    @cached_property
    def row_numbers(self) -> dict[str, int]:
        """Row of every text. A repeated text has its first row."""
        rows: dict[str, int] = {}
        for number, text in enumerate(text for part in self._read(self.column) for text in part.to_pylist()):
            if text is None or (first := rows.setdefault(text, number)) == number:  # no text looks null up
                continue
            vector_D, other_D = self.table_RD[first], self.table_RD[number]
            near = 0.05 * np.linalg.norm(vector_D)  # bf16 differs between batches
            if not np.linalg.norm(vector_D - other_D) <= near:
                raise InputError(
                    f"teacher '{self.path}': rows {first} and {number} are of one text ({_shorten(text)}) and have different "
                    f"vectors; remove one"
                )
        for text in [text for text in rows if text != text.strip()]:  # user text is read without white space around it
            rows.setdefault(text.strip(), rows[text])
        return rows

    @cached_property
    def table_RD(self) -> np.ndarray:
        parts: list[np.ndarray] = []
        for part in self._read(VECTORS):
            lists = pa.nulls(len(part), pa.list_(pa.float32()))
            with contextlib.suppress(pa.ArrowException):
                lists = part.cast(pa.list_(pa.float32()))
            widths = np.diff(lists.offsets.to_numpy())
            if lists.null_count or {*widths.tolist()} != {parts[0].shape[1] if parts else max(1, widths[0])}:
                rule = f"column '{VECTORS}' ({part.type}) must have a vector of one width in every row"
                raise InputError(f"teacher '{self.path}': {rule}")
            parts.append(lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), -1))
        if not parts:
            raise InputError(f"teacher '{self.path}': has no rows; give the vectors of the texts that it teaches on")
        table_RD = np.concatenate(parts)
        if not np.isfinite(table_RD).all():
            row = int(np.flatnonzero(~np.isfinite(table_RD).all(1))[0])
            raise InputError(f"teacher '{self.path}': the vector of row {row} is not finite")
        return table_RD

    @property
    def dim(self) -> int:
        return int(self.table_RD.shape[1])

    @property
    def weight_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    def check(self) -> None:
        self.row_numbers  # noqa: B018 (reads the texts)

    def load(self) -> None:
        self.row_numbers, self.table_RD  # noqa: B018 (reads them)

    def find_missing(self, texts: Sequence[Text]) -> int | None:
        return next((number for number, text in enumerate(texts) if str(text) not in self.row_numbers), None)

    @property
    def tokenizer(self) -> Any:
        self.row_numbers  # noqa: B018 (reads the texts)
        return self.row_tokens

    def row_tokens(self, texts: Sequence[str], **_: Any) -> dict[str, list[list[int]]]:
        """Return the row of each text as its one token, with the signature of a tokenizer.

        Raises:
            RunFailed: a text has no vector.
        """
        if (number := self.find_missing(texts)) is not None:
            raise RunFailed(f"teacher '{self.path}' has no vector of {_shorten(texts[number])}")
        return {"input_ids": [[self.row_numbers[text]] for text in texts]}

    def vectors(self, tokens: Tokens) -> np.ndarray:
        return self.table_RD[tokens.flat]

    def _read(self, column: str) -> Iterator[pa.Array]:
        for path in self.files:
            file = open_parquet(path, "write it again")
            if column not in file.schema_arrow.names:
                raise InputError(f"teacher '{path}' has no column '{column}', as {self.files[0].name} beside it has")
            kind = file.schema_arrow.field(column).type
            if column == self.column and not is_text(kind):
                raise InputError(f"teacher '{path}': column '{column}' has type {kind}; text must be a string column")
            for batch in pages(path, file, [column], "write it again"):
                yield batch.column(0)


class EndpointModel(Embedder):
    """Server behind an address (:mod:`raysts.models.endpoint`). The tokens of a text are its characters."""

    kind = "address"
    prompts = Prompts()
    max_length = sys.maxsize
    tokenizer_id = content_id(["characters"])
    weight_bytes = 0

    @property
    def endpoint(self) -> Endpoint:
        return open_endpoint(self.path)

    @property
    def id(self) -> str:
        return content_id([self.endpoint.url, self.endpoint.model])

    @property
    def dim(self) -> int:
        return self.endpoint.dim

    def check(self) -> None:
        self.dim  # noqa: B018 (asks for a vector)

    @property
    def tokenizer(self) -> Any:
        return lambda texts, **_: {"input_ids": [[*map(ord, text)] for text in texts]}

    def vectors(self, tokens: Tokens) -> np.ndarray:
        texts = ["".join(map(chr, tokens.flat[first:last])) for first, last in pairwise(tokens.offsets)]
        return self.endpoint.vectors(texts)


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def graph_of(folder: Path) -> Path:
    """Return the place of the ONNX graph in a directory, which may lack it."""
    graph = folder / "model.onnx"
    return graph if graph.is_file() else folder / "onnx" / "model.onnx"


def parquet_files(path: Path) -> list[Path]:
    """Return the Parquet files of a folder, or a file."""
    return [path] if path.is_file() else sorted(path.glob("[!.]*.parquet"))


def open_embedder(
    path: Path, *, pooling: str | None = None, layers: Layers | None = None, prompt: str | None = None,
    device: str | None = None, precision: Precision = "fp32",
) -> Embedder:  # fmt: skip
    """Return what embeds at ``path``, without its weights.

    Parquet or a folder of it holds vectors. A folder with a graph and no other weights is ONNX. A folder of a storage's
    ``endpoints`` stands for a server. Options that a kind does not have are ignored. Without ``pooling`` or ``layers`` an
    encoder pools as its directory configures.
    """
    if is_endpoint(path):
        return EndpointModel(path, prompt)
    if path.suffix == ".parquet" or (path.is_dir() and not (path / "config.json").exists() and parquet_files(path)):
        return VectorsModel(path)
    if graph_of(path).is_file() and not [*path.glob("*.safetensors"), *path.glob("pytorch_model*.bin")]:
        return OnnxModel(path, prompt, device)
    return EncoderModel(path, prompt, device, pooling=pooling, layers=layers, precision=precision)


def load_embedder(path: Path, *, content: str | None = None, **options: Any) -> Embedder:
    """Return what embeds at ``path``, with its weights. Options as of :func:`open_embedder`.

    ``content``: the id that its content must have; None: any.
    """
    with guard_content(path, content, lambda path: open_embedder(path).id):
        embedder = open_embedder(path, **options)
        embedder.load()
    return embedder


def find_embedder(name: str, locate: Callable[[str], Path]) -> Path:
    """Return the path of what is called ``name``. ``locate`` finds models that raysts loads."""
    path = Path(name).absolute()
    exists = bool(name.strip()) and path.exists()
    return path if exists and open_embedder(path).kind != "encoder" else locate(name).absolute()


def short_names(names: Sequence[str]) -> list[str]:
    """Return for each name the shortest tail that tells it from the others, of ``x/model`` both parts."""
    parts, short = [[part for part in name.split("/") if part] for name in names], []
    for path in parts:
        least = 1 + (path[-1] == "model" and len(path) > 1)
        tails = (path[-count:] for count in range(least, len(path)))
        short.append(next((tail for tail in tails if sum(other[-len(tail) :] == tail for other in parts) == 1), path))
    return ["/".join(tail) for tail in short]
