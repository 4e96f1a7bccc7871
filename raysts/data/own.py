"""Data of the user's own that stands where a canonical table is read: text, a development set, test sets.

Nothing is written to say so: text is read from its file, once to check and count it and once more when it is tokenised.
Fingerprints are those of the texts and scores, so that the same content in another file, or another format, is the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from raysts.data.user_files import LINES, TABLES, files_of, format_of, missing, rows_of, title_of
from raysts.errors import InputError
from raysts.schema import TESTS

TEXT = "wikipedia/sentences"
"""The table that text of the user's own stands for."""

DEV = "sts/stsb_dev"
"""The table that development sets of the user's own stand for."""

BATCH_ROWS = 8_192
HELD_OUT = 2_000
"""Most texts that are held out, half of them to select by and half to report on."""

SHARE = 10
"""At most one text in so many is held out."""

FEWEST = 20
"""Fewer held-out texts say nothing."""

NAME = re.compile(r"[A-Za-z0-9][\w.+=-]{0,99}")
PAIR = ("sentence1", "sentence2", "score")
_MOST_PROBLEMS = 20


class OwnTable(Protocol):
    """A table that stands where a canonical one is read."""

    @property
    def title(self) -> str:
        """What people call it."""
        ...

    @property
    def path(self) -> Path:
        """The file that messages name."""
        ...

    @property
    def sha256(self) -> str:
        """Of its content."""
        ...

    @property
    def rows(self) -> int: ...

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Its rows, checked, with their canonical columns."""
        ...


# -- text ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scan:
    """What one pass over a text found.

    Attributes:
        rows: texts that are not empty.
        empty: rows without a text (null, or white space alone), which are left out.
        repeated: rows whose text stood there before; they stay.
        sha256: of the texts in order.
        smallest: the texts of the smallest hashes, ascending, with how often each stands there.
    """

    rows: int
    empty: int
    repeated: int
    sha256: str
    smallest: tuple[tuple[bytes, str, int], ...]


@dataclass(frozen=True, slots=True)
class Text:
    """Text of the user's own, column ``sentence``.

    Attributes:
        title: name of its file or folder.
        files: what is read, in order.
        column: that holds the texts; None: the only one that can.
        scan: what it holds.
        held: how many of ``scan.smallest`` are held out: texts that nothing is trained on, whichever rows they stand in.
    """

    title: str
    files: tuple[Path, ...]
    column: str | None
    scan: Scan
    held: int = 0

    @property
    def path(self) -> Path:
        return self.files[0]

    @property
    def rows(self) -> int:
        return self.scan.rows - sum(count for *_, count in self.scan.smallest[: self.held])

    @property
    def sha256(self) -> str:
        if not self.held:
            return self.scan.sha256
        return hashlib.sha256(f"{self.scan.sha256} without {self.held}".encode()).hexdigest()

    @property
    def held_out(self) -> list[str]:
        """The held-out texts."""
        return [text for _, text, _ in self.scan.smallest[: self.held]]

    def holding_out(self) -> Text:
        """Without some texts, drawn by their content alone: as good as at random, and the same wherever they stand."""
        count = min(HELD_OUT, (self.scan.rows - self.scan.repeated) // SHARE) // 2 * 2
        return replace(self, held=count if count >= FEWEST else 0)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        held = {key for key, *_ in self.scan.smallest[: self.held]}
        texts: list[str] = []
        for text in _texts(self.files, self.column):
            if text is None or (held and _hash(text) in held):
                continue
            texts.append(text)
            if len(texts) == BATCH_ROWS:
                yield pa.record_batch({"sentence": pa.array(texts, pa.string())})
                texts = []
        if texts:
            yield pa.record_batch({"sentence": pa.array(texts, pa.string())})

    def facts(self) -> dict[str, Any]:
        """As plans and records show it."""
        counts = {"rows": self.scan.rows, "empty": self.scan.empty, "repeated": self.scan.repeated}
        return {"name": self.title, **counts, "held_out": self.held, "sha256": self.sha256}

    @property
    def line(self) -> str:
        """What was read, for people."""
        parts = [f"text {self.title}: {self.scan.rows:,} texts"]
        if self.scan.empty:
            parts.append(f"{self.scan.empty:,} empty rows left out")
        if self.scan.repeated:
            parts.append(f"{self.scan.repeated:,} rows repeat an earlier text ('raysts data import' can drop them)")
        if self.held:
            parts.append(f"{self.held:,} texts held out, on which nothing is trained")
        return "; ".join(parts)


def open_text(where: str | Path, column: str | None) -> Text:
    """Text in a file, a folder, a saved data set or one of the hub, read once from end to end.

    Raises:
        InputError: it cannot be read, has no such column, or no text.
    """
    files = files_of(where, "--text")
    stamps = tuple((file, stat.st_mtime_ns, stat.st_size) for file in files if (stat := _stat(file)))
    scan = _scan(files, column, stamps)
    if not scan.rows:
        empty = f" ({scan.empty:,} empty rows)" if scan.empty else ""
        raise InputError(f"--text '{where}': holds no text{empty}; every row needs a text of at least one character")
    return Text(title_of(str(where)), files, column, scan)


def _stat(file: Path) -> Any:
    return None if str(file).startswith("hf:") else file.stat()


@lru_cache(maxsize=8)
def _scan(files: tuple[Path, ...], column: str | None, stamps: tuple[Any, ...]) -> Scan:
    """One pass; ``stamps`` are those of the files, so that what has changed is read again."""
    digest, hashes, empty = hashlib.sha256(), array("Q"), 0
    smallest: dict[bytes, str] = {}
    bound = b"\xff" * 8
    for text in _texts(files, column):
        if text is None:
            empty += 1
            continue
        content = text.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "big") + content)
        key = _hash(text)
        hashes.append(int.from_bytes(key, "big"))
        if key < bound:
            smallest[key] = text
            if len(smallest) >= 2 * HELD_OUT:
                kept = sorted(smallest)[:HELD_OUT]
                smallest, bound = {name: smallest[name] for name in kept}, kept[-1]
    keys = sorted(smallest)[:HELD_OUT]
    distinct, counts = np.unique(np.array(hashes, np.uint64), return_counts=True)
    first = tuple((key, smallest[key], int(count)) for key, count in zip(keys, counts, strict=False))
    return Scan(len(hashes), empty, len(hashes) - len(distinct), digest.hexdigest(), first)


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=b"raysts").digest()


def _texts(files: Sequence[Path], column: str | None) -> Iterator[str | None]:
    """The texts without white space around them; None for a row that has none."""

    def choose(path: Path, present: Sequence[str]) -> Sequence[str]:
        if format_of(path) == LINES and not str(path).startswith("hf:"):
            if column not in (None, "text"):
                raise InputError(f"{path}: plain lines have no column '{column}'; leave --column out")
            return ["text"]
        if column is None and len(present) != 1:
            raise InputError(
                f"{path}: say with --column NAME which column holds the text; there are: {', '.join(present)}"
            )
        chosen = column or present[0]
        missing(path, [chosen], present, "--column must name the one that holds the text")
        return [chosen]

    for path in files:
        for where, row in rows_of(path, choose):
            (name, value), *_ = row.items()
            if value is not None and not isinstance(value, str):
                raise InputError(
                    f"{path}{where}: column '{name}' holds {value!r:.40}, which is no text; name another one"
                )
            yield (value or "").strip() or None


# -- scored pairs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnPairs:
    """Scored pairs in memory, columns sentence1, sentence2, score, perhaps ``subset``."""

    title: str
    path: Path
    sha256: str
    table: pa.Table

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        wanted = [name for name in columns or self.table.column_names if name in self.table.column_names]
        yield from self.table.select(wanted).to_batches()


def open_pairs(path: str | Path, option: str, title: str | None = None) -> OwnPairs:
    """Scored pairs of a file, every row checked; scores may lie in any finite range.

    CSV and TSV have a header line; CSV is quoted as RFC 4180 says, TSV is not quoted (as the STS Benchmark is).

    Raises:
        InputError: the file cannot be read, lacks a column or holds rows that cannot be used (each named by its row,
            counted from 0, and in text files its line, counted from 1).
    """
    (file, *others) = files_of(path, option, TABLES)
    if others or not file.is_file():
        raise InputError(f"{option} '{path}': name one file of scored pairs ({', '.join(TABLES)})")

    def choose(file: Path, present: Sequence[str]) -> Sequence[str]:
        remedy = (
            f"a pairs file needs {', '.join(PAIR)}: rename or add it, or write it with 'raysts data import {path} --as "
            f"pairs --columns sentence1=A,sentence2=B,score=C --data DIR'"
        )
        missing(file, PAIR, present, remedy)
        return [*PAIR, *(["subset"] if "subset" in present else [])]

    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for index, (where, row) in enumerate(rows_of(file, choose)):
        found, score = _row_problems(f"{file}: row {index}{where}", row)
        problems += found
        if len(problems) >= _MOST_PROBLEMS:
            break
        rows.append({**row, "score": score})
    if problems:
        raise InputError(problems[:_MOST_PROBLEMS])
    if not rows:
        raise InputError(f"{file}: no rows; a pairs file must hold at least two scored pairs")
    table = pa.table(
        {name: pa.array([row[name] for row in rows], pa.string()) for name in PAIR[:2]}
        | {"score": pa.array([row["score"] for row in rows], pa.float64())}
        | ({"subset": pa.array([_subset(row) for row in rows], pa.string())} if "subset" in rows[0] else {})
    )
    with file.open("rb") as content:
        return OwnPairs(title or title_of(str(path)), file, hashlib.file_digest(content, "sha256").hexdigest(), table)


def _subset(row: dict[str, Any]) -> str | None:
    value = row.get("subset")
    return None if value is None or value == "" else str(value)


def _row_problems(place: str, row: dict[str, Any]) -> tuple[list[str], float]:
    problems = []
    for name in PAIR[:2]:
        text = row.get(name)
        if not isinstance(text, str) or not text.strip():
            what = "null or missing" if text is None else "empty sentence" if isinstance(text, str) else f"{text!r}"
            problems.append(
                f"{place}, column '{name}': {what}; every row needs a text of at least one character, "
                f"correct or remove it"
            )
    value, score = row.get("score"), math.nan
    if value is not None and not isinstance(value, bool):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            score = float(value)
    if not math.isfinite(score):
        problems.append(
            f"{place}, column 'score': {value!r} must be a finite number (decimal point, no thousands separator); "
            f"correct or remove the row"
        )
    return problems, score


def joined(sets: Sequence[OwnPairs]) -> OwnPairs:
    """Several development sets as one, each a subset."""
    if len(sets) == 1:
        return sets[0]
    parts = [
        one.table.select(PAIR).append_column("subset", pa.array([one.title] * one.rows, pa.string())) for one in sets
    ]
    sha256 = hashlib.sha256("".join(one.sha256 for one in sets).encode()).hexdigest()
    return OwnPairs("+".join(one.title for one in sets), sets[0].path, sha256, pa.concat_tables(parts))


# -- what a command is given ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Own:
    """The data of the user's own that a command is given, by name and place; :meth:`open` reads it.

    Attributes:
        text: file, folder or URI of text.
        column: of it.
        dev: files of scored pairs by name, which select.
        test: files of scored pairs by name, which are reported on.
    """

    text: str | None = None
    column: str | None = None
    dev: Mapping[str, str] = field(default_factory=dict)
    test: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        text: str | Path | None = None,
        column: str | None = None,
        dev: Mapping[str, str | Path] | None = None,
        test: Mapping[str, str | Path] | None = None,
    ) -> Own:
        """Of options as they are given; a path on this machine becomes absolute, for records.

        Raises:
            InputError: a column without a text, or a name that cannot be one.
        """
        if column is not None and text is None:
            raise InputError(f"--column '{column}': says which column of --text PATH holds the text; give that too")
        for option, sets in (("--dev", dev or {}), ("--test", test or {})):
            for name in sets:
                if not NAME.fullmatch(name):
                    raise InputError(
                        f"{option} {name}=...: a name has up to 100 letters, digits and '_', '.', '-', '+'"
                    )
        devs, tests = ({name.lower(): _absolute(path) for name, path in (s or {}).items()} for s in (dev, test))
        if twice := sorted({*devs} & {*tests}):
            raise InputError(f"--test {twice[0]}: is the name of a development set too; give the two different names")
        return cls(_absolute(text) if text else None, column, devs, tests)

    def __bool__(self) -> bool:
        return bool(self.text or self.dev or self.test)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any] | None) -> Own:
        """As :meth:`as_plain` wrote it; of an older record there is none."""
        return cls(**(plain or {}))

    def open(self) -> dict[str, OwnTable]:
        """What is given, by the name of the canonical table that it stands for.

        Raises:
            InputError: a file cannot be read or holds what cannot be used.
        """
        tables: dict[str, OwnTable] = {}
        problems: list[str] = []
        try:
            tables |= {TEXT: open_text(self.text, self.column)} if self.text else {}
        except InputError as error:
            problems += error.problems
        read: dict[str, OwnPairs] = {}
        for option, sets in (("--dev", self.dev), ("--test", self.test)):
            for name, path in sets.items():
                try:
                    read[name] = open_pairs(path, f"{option} {name}", name)
                except InputError as error:
                    problems += error.problems
        if problems:
            raise InputError(problems)
        tables |= {DEV: joined([read[name] for name in self.dev])} if self.dev else {}
        return tables | {f"{TESTS}{name}": read[name] for name in self.test}

    def as_plain(self) -> dict[str, Any]:
        """As records hold it."""
        return {"text": self.text, "column": self.column, "dev": dict(self.dev), "test": dict(self.test)}

    def arguments(self) -> list[str]:
        """As a command line has it."""
        line = ["--text", self.text] if self.text else []
        line += ["--column", self.column] if self.column else []
        return line + [
            part
            for option, sets in (("--dev", self.dev), ("--test", self.test))
            for name, path in sets.items()
            for part in (option, f"{name}={path}")
        ]


def _absolute(path: str | Path) -> str:
    return str(path) if "://" in str(path) else str(Path(path).absolute())
