"""A user's own scored pairs: Parquet, CSV, TSV or JSON lines with sentence1, sentence2 and score."""

from __future__ import annotations

from pathlib import Path

from raysts.data.own import open_pairs
from raysts.errors import InputError
from raysts.evaluation.sts import Pairs, pairs_from_table, problems_of


def load_pairs_file(path: str | Path) -> Pairs:
    """Read and check scored pairs; scores may lie in any finite range, a column ``subset`` is used where there is one.

    Raises:
        InputError: as :func:`raysts.data.own.open_pairs`, or a subset whose scores are all equal.
    """
    own = open_pairs(path, "--pairs")
    pairs = pairs_from_table(own.table, own.title.lower(), own.sha256)
    problems = problems_of(pairs)
    if problems:
        raise InputError([f"{path}: {problem}" for problem in problems])
    return pairs
