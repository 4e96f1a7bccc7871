"""The embedded world: generated sentences, NLI triples and graded STS pairs whose labels follow from their meaning.

Sentences are made from a small formal semantics (`meaning`) by many wordings (`text`), so similarity and
entailment follow from meaning and not from shared words. It is the default data, and `backbone=tiny` is the
random-initialised BERT for its vocabulary. Nothing in it is copied from any corpus.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from raysts.data.world import facts, tables, tasks
from raysts.data.world.tables import SIZES, STS_SUBSETS, Row, Writer, nli_rows, sick_rows, sts_rows
from raysts.errors import InputError, nearest
from raysts.storage.atomic import cache_folder

WORLD_VERSION = "3870a7d0e3f5"
"""Names what is generated, and goes into every id of a run on the world. Give it a new value whenever a table changes:
``tests/data/world/test_generate.py`` holds the tables' contents against it."""


def _tables(seed: int, size: str) -> Iterator[tuple[str, list[Row]]]:
    sizes = SIZES[size]
    articles, sentences = Writer(seed, "wikipedia", "train").articles(sizes.articles, sizes.sentences_per_article)
    yield "wikipedia/articles", articles
    yield "wikipedia/sentences", Writer(seed, "wikipedia/order", "train").draws.shuffled(sentences)
    yield "nli/train", nli_rows(seed, "nli/train", "train", sizes.nli_train)
    yield "nli/snli_dev", nli_rows(seed, "nli/snli_dev", "dev", sizes.nli_eval)
    yield "nli/snli_test", nli_rows(seed, "nli/snli_test", "test", sizes.nli_eval)
    subsets = tuple(tables.PROFILES)
    for split in facts.SPLITS:
        rows = sizes.sts_train if split == "train" else sizes.sts_eval
        yield f"sts/stsb_{split}", sts_rows(seed, f"sts/stsb_{split}", split, rows, subsets)
    for name, year_subsets in STS_SUBSETS.items():
        yield f"sts/{name}", sts_rows(seed, f"sts/{name}", "test", sizes.sts_year, year_subsets)
    for name, split in (("train", "train"), ("trial", "dev"), ("test", "test")):
        yield f"sick/sick_{name}", sick_rows(seed, f"sick/sick_{name}", split, sizes.sick)
    yield from tasks.task_tables(seed, sizes.transfer)


def write_world(path: Path, seed: int = 0, size: str = "default") -> None:
    """Write the world's tables in the canonical layout; the folder appears complete or not at all.

    Args:
        seed: the same seed gives the same bytes; facts of train, dev and test are the same partition for every seed.
        size: `default`, or `small` for quick tests.

    Raises:
        InputError: an unknown size or a negative seed, or `path` is there already.
    """
    path = Path(path)
    if size not in SIZES:
        raise InputError(f"unknown world size '{size}'{nearest(size, SIZES)}: sizes are {', '.join(SIZES)}")
    if seed < 0:
        raise InputError(f"world seed {seed} is negative: seeds are integers from 0 on")
    if path.exists():
        raise InputError(f"'{path}' is there already: name a new folder, or remove it first")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as beside:
        draft = Path(beside) / path.name
        for name, rows in _tables(seed, size):
            file = draft / f"{name}.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows), file, compression="zstd")
        try:
            draft.rename(path)  # unlike atomic_write: never replaces a world that others read
        except OSError as error:
            raise InputError(f"'{path}' appeared while the world was being written: name a new folder") from error


def world_path(cache: Path | None = None, seed: int = 0, size: str = "default") -> Path:
    """The folder of a world, generated on first use; several processes may ask at once. ``cache``: folder that holds worlds;
    default `$XDG_CACHE_HOME/raysts`, else `~/.cache/raysts`."""
    path = Path(cache or cache_folder()) / f"world-{WORLD_VERSION}-{seed}-{size}"
    if not path.is_dir():
        try:
            write_world(path, seed, size)
        except InputError:
            # another process was first; its folder is complete, for it appeared by one rename
            if not path.is_dir():
                raise
    return path
