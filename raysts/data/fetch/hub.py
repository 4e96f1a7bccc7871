"""Reading one split of a hub data set, or a file of a GitHub repository, as a stream of converted batches.

They are read from there or from a local copy of the repository.
"""

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from raysts.data.fetch import web
from raysts.data.fetch.convert import convert
from raysts.data.fetch.sources import Source
from raysts.errors import InputError, RunFailed

BATCH_ROWS = 1_000
SHA = re.compile(r"[0-9a-f]{40}")
GITHUB = "https://raw.githubusercontent.com"


@dataclass(frozen=True, slots=True)
class Located:
    """A source with the place it will be read from."""

    source: Source
    path: str
    config: str | None
    revision: str | None
    local: bool

    def facts(self) -> dict[str, Any]:
        part = self.source
        return {
            "dataset": part.dataset,
            **({"file": part.file} if part.file else {"config": part.config, "split": part.split}),
            "revision": "local copy" if self.local else self.revision,
            "pinned": not self.local and self.revision == part.revision,
        }


def locate(part: Source, folder: str | Path | None) -> Located:
    """Where to read ``part``: the local copy below ``folder``, else the hub at the pinned revision.

    Raises:
        InputError: ``folder`` does not hold the data set.
    """
    if folder is not None:
        candidates = [Path(folder) / part.dataset, Path(folder) / part.dataset.split("/")[-1]]
        path = next((candidate for candidate in candidates if candidate.is_dir()), None)
        if path is None:
            raise InputError(
                f"--source '{folder}' does not hold data set {part.dataset}: expected its files in {candidates[0]}/ "
                f"or {candidates[1]}/; copy the repository there"
            )
        return Located(part, str(path), part.config, None, local=True)
    return Located(part, part.dataset, part.config, part.revision or part.branch, local=False)


def resolve(part: Located, progress: Callable[[str], None]) -> Located:
    """``part`` with its revision as a full commit; asks the hub, and says so, only where it is not one yet.

    Raises:
        RuntimeError: the hub cannot be reached or does not have that revision.
    """
    if part.local or part.source.file is not None or SHA.fullmatch(part.revision or ""):
        return part
    from huggingface_hub import HfApi

    progress(
        f"WARNING {part.path}: not a pinned commit; taking what '{part.revision}' holds today. "
        "manifest.json records the commit"
    )
    try:
        commit = HfApi().dataset_info(part.path, revision=part.revision).sha
    except Exception as error:
        raise _unreachable(part, error) from error
    return replace(part, revision=commit)


def read_split(part: Located) -> Iterator[tuple[int, pa.Table]]:
    """Batches of a split: (rows read, the canonical columns of those that could be used).

    Raises:
        RuntimeError: the hub or the copy cannot be read, or does not hold what was asked for.
    """
    if part.source.file is not None:
        yield _read_file(part, part.source.file)
        return
    from datasets import ClassLabel, get_dataset_config_names, load_dataset

    # Whatever goes wrong below comes from one of a dozen libraries (HTTP, file systems, formats), each with its own
    # exceptions; the user needs the data set's name and the remedy.
    try:
        options: dict[str, Any] = {"revision": part.revision} if not part.local else {}
        config = part.config
        if part.local and config is not None and config not in get_dataset_config_names(part.path):
            # a copy without the repository's README: the config is then the folder of that name, if there is one
            options["data_dir"] = config if (Path(part.path) / config).is_dir() else None
            config = None
        stream = load_dataset(part.path, config, split=part.source.split, streaming=True, **options)
        features = stream.features or {}
        names = {column: kind.names for column, kind in features.items() if isinstance(kind, ClassLabel)}
        for batch in stream.with_format("arrow").iter(batch_size=BATCH_ROWS):
            rows = convert(_with_label_names(batch, names), part.source.shape, part.source.name)
            yield batch.num_rows, rows
    except Exception as error:
        raise _unreachable(part, error) from error


def _read_file(part: Located, file: str) -> tuple[int, pa.Table]:
    """The rows of a CSV file with a header, or of a text file with two words and their score a line."""
    try:
        text = (
            Path(part.path, file).read_bytes()
            if part.local
            else web.read(f"{GITHUB}/{part.path}/{part.revision}/{file}")
        )
        lines = text.decode("utf-8").splitlines()
        if file.endswith(".csv"):
            rows: list[dict[str, str | None]] = list(csv.DictReader(lines))
        else:
            rows = [dict(zip(("word1", "word2", "score"), line.split(), strict=True)) for line in lines if line.strip()]
        return len(rows), convert(pa.Table.from_pylist(rows), part.source.shape, part.source.name)
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise _unreachable(part, error) from error


def _with_label_names(batch: pa.Table, names: dict[str, list[str]]) -> pa.Table:
    for column, labels in names.items():
        codes = batch.column(column).to_pylist()
        values = [labels[code] if code is not None and 0 <= code < len(labels) else None for code in codes]
        batch = batch.set_column(batch.schema.get_field_index(column), column, pa.array(values, pa.string()))
    return batch


def _unreachable(part: Located, error: Exception) -> RunFailed:
    file = part.source.file
    place = "GitHub" if file else "the Hugging Face hub"
    where = part.path if part.local else f"{place} at revision {part.revision}"
    remedy = (
        "it must hold the files of the repository (of the hub: Parquet or JSON lines, one file per split)"
        if part.local
        else f"check the network, {'' if file else 'or name a mirror in HF_ENDPOINT, '}or give a local copy with "
        f"--source FOLDER"
    )
    return RunFailed(
        f"data set {part.source.dataset} ({file or f'split {part.source.split}'}) could not be read from {where}: "
        f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}; {remedy}"
    )
