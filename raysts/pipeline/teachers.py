"""Teachers: models and files that give vectors of texts.

A teacher is an encoder that raysts loads, a directory with ``model.onnx`` and a tokenizer (exported by raysts or
sentence-transformers), or Parquet with texts and precomputed vectors (the output of ``raysts embed``). Each teacher
reads its own tokens. For precomputed vectors a text has one token, the number of its row.

Shapes: N texts, B of them at once, T tokens, H hidden, D dimensions, R rows.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from raysts.data.checks import type_rule
from raysts.data.parquet import open_parquet, pages
from raysts.errors import InputError, RunFailed
from raysts.ids import content_id, file_digest, folder_id, unchanged
from raysts.models import memory, pretrained
from raysts.models.layers import Layers
from raysts.models.modules import describe
from raysts.models.precision import Precision
from raysts.models.tokens import Tokens, tokenize
from raysts.ops.ensemble import unit
from raysts.schema import Column

if TYPE_CHECKING:
    import torch

TEXTS = ("text", "sentence")
"""Columns of precomputed vectors that may hold the texts: the first that is there."""
VECTORS = "embedding"
"""The column with their vectors, a list of numbers each."""
LONGEST = 512
"""Tokens of a text for an ONNX model whose tokenizer does not say how many it reads."""


def kind(path: Path) -> Literal["encoder", "onnx", "vectors"]:
    """Return the kind of teacher at ``path``.

    Parquet or a folder of it holds vectors. A folder with a graph and no other weights is ONNX.
    """
    if path.suffix == ".parquet" or (path.is_dir() and not (path / "config.json").exists() and _parquet(path)):
        return "vectors"
    if graph(path) is not None and not [*path.glob("*.safetensors"), *path.glob("pytorch_model*.bin")]:
        return "onnx"
    return "encoder"


def find(name: str, locate: Callable[[str], Path]) -> Path:
    """Return the path of the teacher ``name``. ``locate`` finds models that raysts loads."""
    path = Path(name).absolute()
    return path if name.strip() and path.exists() and kind(path) != "encoder" else locate(name).absolute()


def graph(folder: Path) -> Path | None:
    """Return the ONNX graph of a directory, or None."""
    places = (folder / "model.onnx", folder / "onnx" / "model.onnx")
    return next((place for place in places if place.is_file()), None)


def content_of(path: Path) -> str:
    """Return the id of a teacher's content."""
    return PrecomputedVectors(path).id if kind(path) == "vectors" else folder_id(path)


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


def tokenizer_id(path: Path) -> str:
    """Return the id of a teacher's tokenizer."""
    return PrecomputedVectors(path).id if kind(path) == "vectors" else pretrained.tokenizer_id(path)


def load_tokenizer(path: Path) -> Any:
    """Return a teacher's tokenizer, with the call signature of a Hugging Face tokenizer."""
    if kind(path) != "vectors":
        return pretrained.load_tokenizer(path)
    vectors = PrecomputedVectors(path)
    vectors.numbers  # noqa: B018 (reads the texts)
    return vectors.rows_of


def prompt_of(path: Path, prompt: str | None) -> str:
    """Return the prompt (a stored name, or text) before every text. Vectors have none."""
    return "" if kind(path) == "vectors" else describe(path).prompts.resolve(prompt)


def dim(path: Path) -> int:
    """Return D without reading an encoder's weights."""
    if kind(path) == "encoder":
        return pretrained.dim(path)
    if kind(path) == "vectors":
        return PrecomputedVectors(path).dim
    teacher = OnnxTeacher(path, device="cpu")
    try:
        (width,) = teacher.vectors(teacher.tokenize(["a"]))[0].shape
    except Exception as error:  # whatever a graph of others does
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"teacher '{path}': its graph gives no vector of a text ({reason})") from None
    return int(width)


def weight_bytes(path: Path) -> int:
    """Return the approximate memory of a teacher, in bytes."""
    if kind(path) == "encoder":
        return memory.weights(path)
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.suffix in (".onnx", ".parquet"))


def check(path: Path) -> None:
    """Raise InputError unless raysts can read the teacher."""
    if kind(path) == "encoder":
        pretrained.check(path)
    elif kind(path) == "vectors":
        PrecomputedVectors(path).numbers  # noqa: B018 (reads the texts)
    else:
        OnnxTeacher(path, device="cpu")


def load(
    path: Path, *, pooling: str | None = None, layers: Layers | None = None, prompt: str | None = None,
    device: str | None = None, precision: Precision = "fp32", content: str | None = None,
) -> Teacher:  # fmt: skip
    """Return the teacher at ``path``.

    Args:
        path: a model directory, or Parquet.
        pooling: of an encoder's token vectors; None: as its directory configures.
        layers: of an encoder that are pooled; None: as its directory configures.
        prompt: a stored prompt's name, or its text.
        device: of an encoder or a graph.
        precision: of an encoder; an ONNX graph determines its own.
        content: as of :func:`raysts.models.pretrained.load`.
    """
    options = {"pooling": pooling, "layers": layers, "prompt": prompt, "device": device, "precision": precision}
    with unchanged(path, content, content_of):
        if kind(path) == "encoder":
            return EncoderTeacher(path, **options)
        if kind(path) == "onnx":
            return OnnxTeacher(path, prompt, device)
        vectors = PrecomputedVectors(path)
        vectors.numbers, vectors.table_RD  # noqa: B018 (reads them)
        return vectors


def finite(vectors_ND: np.ndarray, model: str) -> np.ndarray:
    """Return ``vectors_ND``, or raise RunFailed if a value is NaN or infinite."""
    if bad := len(vectors_ND) - int(np.isfinite(vectors_ND).all(axis=1).sum()):
        raise RunFailed(
            f"{model} gives NaN or infinite vectors of {bad:,} of {len(vectors_ND):,} texts (training diverged?); use an "
            f"earlier checkpoint, another model or another precision"
        )
    return vectors_ND


class EncoderTeacher:
    """A model that raysts loads. Arguments as of :func:`raysts.models.pretrained.load`."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path, self.model = path, pretrained.load(path, **options)

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        return self.model.tokenize(texts)

    def vectors(self, tokens: Tokens) -> np.ndarray:
        from raysts.models.sentence_model import represent_tokens

        (representation,) = represent_tokens(self.model.encoder, tokens, (self.model.layers,), self.model.precision)
        return finite(self.model.finished(representation)["vectors"], f"teacher '{self.path}'")


class OnnxTeacher:
    """An ONNX graph as a teacher.

    Its output is ``sentence_embedding`` [B, D], or token vectors [B, T, H] that are pooled as the directory configures.

    Raises:
        InputError: onnxruntime is not installed, or does not load the graph.
    """

    def __init__(self, folder: Path, prompt: str | None = None, device: str | None = None) -> None:
        if importlib.util.find_spec("onnxruntime") is None:
            raise InputError(
                f"teacher '{folder}' is ONNX, and onnxruntime is not installed: pip install 'raysts[onnx]'"
            )
        import onnxruntime
        import torch

        self.folder, self.asked = folder, describe(folder)
        self.prompt, self.tokenizer = self.asked.prompts.resolve(prompt), pretrained.load_tokenizer(folder)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        preferred = ["CUDAExecutionProvider"] if device == "cuda" else []
        providers = [name for name in preferred if name in onnxruntime.get_available_providers()]
        try:
            self.session = onnxruntime.InferenceSession(
                str(graph(folder)), options, [*providers, "CPUExecutionProvider"]
            )
        except Exception as error:  # whatever the runtime makes of a file of others
            raise InputError(
                f"teacher '{folder}': onnxruntime does not load it ({str(error).splitlines()[0]})"
            ) from None
        self.inputs = [node.name for node in self.session.get_inputs()]
        outputs = [node.name for node in self.session.get_outputs()]
        self.pooled = "sentence_embedding" in outputs
        self.output = "sentence_embedding" if self.pooled else outputs[0]
        if unknown := set(self.inputs) - {"input_ids", "attention_mask", "token_type_ids"}:
            raise InputError(
                f"teacher '{folder}': its graph reads {', '.join(sorted(unknown))}, which raysts does not give"
            )
        if self.asked.heads and not self.pooled:
            raise InputError(
                f"teacher '{folder}': has modules behind its pooling, which are not in the graph; export it as one graph"
            )

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        longest = min(self.asked.max_length or self.tokenizer.model_max_length, 10**6)
        return tokenize(self.tokenizer, texts, longest if longest < 10**6 else LONGEST, self.prompt)

    def vectors(self, tokens: Tokens) -> np.ndarray:
        from raysts.models.sentence_model import TOKEN_BUDGET

        batches = list(tokens.batches(TOKEN_BUDGET["cpu"]))
        if not batches:  # of no text the graph says no width
            return self.vectors(self.tokenize(["a"]))[:0]
        parts = [self._batch(*tokens.take(rows).pad(self.tokenizer.pad_token_id or 0)) for rows in batches]
        return finite(np.concatenate(parts)[np.argsort(np.concatenate(batches))], f"teacher '{self.folder}'")

    def _batch(self, ids_BT: torch.Tensor, lengths_B: torch.Tensor) -> np.ndarray:
        import torch

        from raysts.models.encoder import pool

        mask_BT = torch.arange(ids_BT.shape[1]) < lengths_B[:, None]
        feeds = {"input_ids": ids_BT, "attention_mask": mask_BT.long(), "token_type_ids": torch.zeros_like(ids_BT)}
        (output,) = self.session.run([self.output], {name: feeds[name].numpy() for name in self.inputs})
        if output.ndim != (2 if self.pooled else 3):
            raise ValueError(f"'{self.output}' has {output.ndim} axes")
        if not self.pooled:
            tokens_BTH = torch.from_numpy(output.astype(np.float32, copy=False))
            output = pool(tokens_BTH, mask_BT, lengths_B, self.asked.pooling).numpy()
        if self.asked.normalize:
            output = unit(output)
        return output[:, : self.asked.truncate_dim].astype(np.float32, copy=False)  # type: ignore[no-any-return]


class PrecomputedVectors:
    """Precomputed vectors, looked up by text.

    Args:
        path: a Parquet file, or a folder of them, with a column of texts (``TEXTS``) and one of vectors (``VECTORS``).

    Raises:
        InputError: a column is missing. On reading: a text has two different vectors, or widths differ.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.files = path, _parquet(path)
        if not self.files:
            raise InputError(f"teacher '{path}': no Parquet file there; give one with a text and its '{VECTORS}' a row")
        names = open_parquet(self.files[0], "write it again").schema_arrow.names
        self.column = next((name for name in TEXTS if name in names), "")
        if not self.column or VECTORS not in names:
            raise InputError(
                f"teacher '{path}' has columns {', '.join(names)}; vectors that teach need '{VECTORS}' and, for the text that "
                f"each is of, {' or '.join(map(repr, TEXTS))}: they are found by their texts, never by an id"
            )

    @cached_property
    def id(self) -> str:
        return content_id([self.column, *(file_digest(path).hex() for path in self.files)])

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Return the row of every text. A repeated text has its first row."""
        rows: dict[str, int] = {}
        for number, text in enumerate(text for part in self._read(self.column) for text in part.to_pylist()):
            if text is None:  # nobody asks for it
                continue
            first = rows.setdefault(text, number)
            if first != number and not _is_same_vector(self.table_RD[first], self.table_RD[number]):
                raise InputError(
                    f"teacher '{self.path}': rows {first} and {number} are of one text ({_shorten(text)}) and have different "
                    f"vectors; leave one out"
                )
        for text in [text for text in rows if text != text.strip()]:  # as text of the user's own is read
            rows.setdefault(text.strip(), rows[text])
        return rows

    @cached_property
    def table_RD(self) -> np.ndarray:
        parts: list[np.ndarray] = []
        for part in self._read(VECTORS):
            try:
                lists = part.cast(pa.list_(pa.float32()))
            except pa.ArrowException:
                lists = pa.nulls(len(part), pa.list_(pa.float32()))
            widths = np.diff(lists.offsets.to_numpy())
            if lists.null_count or {*widths.tolist()} != {parts[0].shape[1] if parts else max(1, widths[0])}:
                raise InputError(
                    f"teacher '{self.path}': column '{VECTORS}' ({part.type}) must have a vector of one width in every row"
                )
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

    def missing(self, texts: Sequence[str]) -> int | None:
        return next((number for number, text in enumerate(texts) if text not in self.numbers), None)

    def rows_of(self, texts: Sequence[str], **_: Any) -> dict[str, list[list[int]]]:
        """Return the row of each text as its one token, with the signature of a tokenizer.

        Raises:
            RunFailed: a text has no vector.
        """
        if (number := self.missing(texts)) is not None:
            raise RunFailed(f"teacher '{self.path}' has no vector of {_shorten(texts[number])}")
        return {"input_ids": [[self.numbers[text]] for text in texts]}

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        return tokenize(self.rows_of, texts, 1)

    def vectors(self, tokens: Tokens) -> np.ndarray:
        return self.table_RD[tokens.flat]

    def _read(self, column: str) -> Iterator[pa.Array]:
        for path in self.files:
            file = open_parquet(path, "write it again")
            if column not in file.schema_arrow.names:
                raise InputError(f"teacher '{path}' has no column '{column}', as {self.files[0].name} beside it has")
            kind = file.schema_arrow.field(column).type
            if column == self.column and (rule := type_rule(kind, Column(column, "text"))):
                raise InputError(f"teacher '{path}': column '{column}' has type {kind}; {rule}")
            for batch in pages(path, file, [column], "write it again"):
                yield batch.column(0)


def _parquet(path: Path) -> list[Path]:
    return sorted(path.glob("[!.]*.parquet")) if path.is_dir() else [path] if path.is_file() else []


def _is_same_vector(a_D: np.ndarray, b_D: np.ndarray) -> bool:
    """Return True if the vectors differ by no more than bf16 does between batches."""
    return bool(np.linalg.norm(a_D - b_D) <= 0.05 * np.linalg.norm(a_D))


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


Teacher = EncoderTeacher | OnnxTeacher | PrecomputedVectors
"""Reads tokens of texts (``tokenize``), and gives vectors of them (``vectors``), float32 [N, D]."""
