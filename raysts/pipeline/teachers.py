"""What may teach: whatever gives vectors of texts.

An encoder that raysts loads; a directory with ``model.onnx`` and a tokenizer (raysts' own export, or sentence-transformers');
Parquet with texts and the vectors that somebody computed of them before (what ``raysts embed`` writes). Each reads its own
tokens of a text; of vectors that are there the one token of a text is the number of its row.

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
    """What ``path`` is: vectors if it is Parquet or a folder of it, ONNX if there are no other weights, else an encoder."""
    if path.suffix == ".parquet" or (path.is_dir() and not (path / "config.json").exists() and _parquet(path)):
        return "vectors"
    if graph(path) is not None and not [*path.glob("*.safetensors"), *path.glob("pytorch_model*.bin")]:
        return "onnx"
    return "encoder"


def find(name: str, locate: Callable[[str], Path]) -> Path:
    """Where the teacher called ``name`` is; ``locate`` finds models that raysts loads."""
    path = Path(name).absolute()
    return path if name.strip() and path.exists() and kind(path) != "encoder" else locate(name).absolute()


def graph(folder: Path) -> Path | None:
    """The ONNX graph of a directory, if it has one."""
    places = (folder / "model.onnx", folder / "onnx" / "model.onnx")
    return next((place for place in places if place.is_file()), None)


def content_of(path: Path) -> str:
    """Content id of a teacher."""
    return PrecomputedVectors(path).id if kind(path) == "vectors" else folder_id(path)


def short_names(names: Sequence[str]) -> list[str]:
    """Of each name as much of its end as tells it from the others; a folder ``model`` is called by the one that it is in."""
    parts, short = [[part for part in name.split("/") if part] for name in names], []
    for own in parts:
        least = 1 + (own[-1] == "model" and len(own) > 1)
        tails = (own[-count:] for count in range(least, len(own)))
        short.append(next((tail for tail in tails if sum(of[-len(tail) :] == tail for of in parts) == 1), own))
    return ["/".join(tail) for tail in short]


def tokenizer_id(path: Path) -> str:
    """Content id of what makes its tokens."""
    return PrecomputedVectors(path).id if kind(path) == "vectors" else pretrained.tokenizer_id(path)


def load_tokenizer(path: Path) -> Any:
    """What makes its tokens; it is called as Hugging Face's tokenizers are."""
    if kind(path) != "vectors":
        return pretrained.load_tokenizer(path)
    vectors = PrecomputedVectors(path)
    vectors.numbers  # noqa: B018 (reads the texts)
    return vectors.rows_of


def prompt_of(path: Path, asked: str | None) -> str:
    """What stands before every text that it reads where ``asked`` is a name or a text; vectors are of the texts alone."""
    return "" if kind(path) == "vectors" else describe(path).prompts.resolve(asked)


def dim(path: Path) -> int:
    """D, without reading an encoder's weights."""
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
    """About how much memory it takes, in bytes."""
    if kind(path) == "encoder":
        return memory.weights(path)
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.suffix in (".onnx", ".parquet"))


def check(path: Path) -> None:
    """Check that it can teach."""
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
    """The teacher at ``path``.

    Args:
        path: a model directory, or Parquet.
        pooling: of an encoder's token vectors; None: as its directory says.
        precision: what an encoder computes in; ONNX does as its graph says.
        content: as of :func:`raysts.models.pretrained.load`.
    """
    how = {"pooling": pooling, "layers": layers, "prompt": prompt, "device": device, "precision": precision}
    with unchanged(path, content, content_of):
        if kind(path) == "encoder":
            return EncoderTeacher(path, **how)
        if kind(path) == "onnx":
            return OnnxTeacher(path, prompt, device)
        vectors = PrecomputedVectors(path)
        vectors.numbers, vectors.table_RD  # noqa: B018 (reads them)
        return vectors


def finite(vectors_ND: np.ndarray, model: str) -> np.ndarray:
    """The vectors that a model gives, to be kept.

    Raises:
        RunFailed: some are no numbers.
    """
    if bad := len(vectors_ND) - int(np.isfinite(vectors_ND).all(axis=1).sum()):
        raise RunFailed(
            f"{model} gives NaN or infinite vectors of {bad:,} of {len(vectors_ND):,} texts (training diverged?); use an "
            f"earlier checkpoint, another model or another precision"
        )
    return vectors_ND


class EncoderTeacher:
    """A model that raysts loads; arguments as of :func:`raysts.models.pretrained.load`."""

    def __init__(self, path: Path, **how: Any) -> None:
        self.path, self.model = path, pretrained.load(path, **how)

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        return self.model.tokenize(texts)

    def vectors(self, tokens: Tokens) -> np.ndarray:
        from raysts.models.sentence_model import represent_tokens

        (found,) = represent_tokens(self.model.encoder, tokens, (self.model.layers,), self.model.precision)
        return finite(self.model.finished(found)["vectors"], f"teacher '{self.path}'")


class OnnxTeacher:
    """A graph that gives ``sentence_embedding`` [B, D], or token vectors [B, T, H] that the directory says how to pool.

    Raises:
        InputError: onnxruntime is not there, or does not run it.
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
        wanted = ["CUDAExecutionProvider"] if device == "cuda" else []
        providers = [name for name in wanted if name in onnxruntime.get_available_providers()]
        try:
            self.session = onnxruntime.InferenceSession(
                str(graph(folder)), options, [*providers, "CPUExecutionProvider"]
            )
        except Exception as error:  # whatever the runtime makes of a file of others
            raise InputError(
                f"teacher '{folder}': onnxruntime does not load it ({str(error).splitlines()[0]})"
            ) from None
        self.inputs = [given.name for given in self.session.get_inputs()]
        outputs = [given.name for given in self.session.get_outputs()]
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
        given = {"input_ids": ids_BT, "attention_mask": mask_BT.long(), "token_type_ids": torch.zeros_like(ids_BT)}
        (found,) = self.session.run([self.output], {name: given[name].numpy() for name in self.inputs})
        if found.ndim != (2 if self.pooled else 3):
            raise ValueError(f"'{self.output}' has {found.ndim} axes")
        if not self.pooled:
            tokens_BTH = torch.from_numpy(found.astype(np.float32, copy=False))
            found = pool(tokens_BTH, mask_BT, lengths_B, self.asked.pooling).numpy()
        if self.asked.normalize:
            found = unit(found)
        return found[:, : self.asked.truncate_dim].astype(np.float32, copy=False)  # type: ignore[no-any-return]


class PrecomputedVectors:
    """Vectors that are there, found by their texts.

    Args:
        path: a Parquet file, or a folder of them, with a column of texts (``TEXTS``) and one of vectors (``VECTORS``).

    Raises:
        InputError: the columns are not there; when it is read also: a text has rows of two vectors, or a vector is not like the
            others.
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
        """The row of every text; of one that is there again the first."""
        found: dict[str, int] = {}
        for number, text in enumerate(text for part in self._read(self.column) for text in part.to_pylist()):
            if text is None:  # nobody asks for it
                continue
            first = found.setdefault(text, number)
            if first != number and not _same(self.table_RD[first], self.table_RD[number]):
                raise InputError(
                    f"teacher '{self.path}': rows {first} and {number} are of one text ({_shown(text)}) and have different "
                    f"vectors; leave one out"
                )
        for text in [text for text in found if text != text.strip()]:  # as text of the user's own is read
            found.setdefault(text.strip(), found[text])
        return found

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
        """The row of each text as its one token, called as a tokenizer is.

        Raises:
            RunFailed: a text has no vector.
        """
        if (number := self.missing(texts)) is not None:
            raise RunFailed(f"teacher '{self.path}' has no vector of {_shown(texts[number])}")
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


def _same(a_D: np.ndarray, b_D: np.ndarray) -> bool:
    """Whether two vectors are of one text by one model: in bf16 they differ by what else was in their batches."""
    return bool(np.linalg.norm(a_D - b_D) <= 0.05 * np.linalg.norm(a_D))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


Teacher = EncoderTeacher | OnnxTeacher | PrecomputedVectors
"""Reads tokens of texts (``tokenize``), and gives vectors of them (``vectors``), float32 [N, D]."""
