"""Where the public data sets are: hub repository, commit, split and number of rows, by canonical table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """One split of one hub data set.

    ``revision`` is the full commit; None where no commit could be verified when this table was written: then ``branch``
    is resolved at fetch time (or the user gives a revision), said aloud and recorded. ``rows`` is what the split holds.
    """

    dataset: str
    split: str
    rows: int
    shape: str
    revision: str | None
    config: str | None = None
    branch: str = "main"
    name: str | None = None


def _sts(year: int, rows: int, revision: str) -> Source:
    return Source(f"mteb/sts{year}-sts", "test", rows, "sts", revision)


def _stsb(split: str, rows: int) -> Source:
    return Source("mteb/stsbenchmark-sts", split, rows, "sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831")


def _sick(split: str, rows: int) -> Source:
    # The main branch is a loading script, which ``datasets`` no longer runs; the hub keeps it as Parquet on this one.
    # It is the corrected release of 9,840 pairs; that of SemEval 2014 had 4,500 + 500 + 4,927.
    return Source("RobZamp/sick", split, rows, "sick", None, branch="refs/convert/parquet")


def _snli(split: str, rows: int) -> Source:
    revision = "cdb5c3d5eed6ead6e5a341c8e56e669bb666725b"
    return Source("stanfordnlp/snli", split, rows, "nli", revision, config="plain_text", name="snli")


SOURCES: dict[str, tuple[Source, ...]] = {
    "sts/sts12": (_sts(12, 3_108, "a0d554a64d88156834ff5ae9920b964011b16384"),),
    "sts/sts13": (_sts(13, 1_500, "7e90230a92c190f1bf69ae9002b8cea547a64cca"),),
    "sts/sts14": (_sts(14, 3_750, "6031580fec1f6af667f0bd2da0a551cf4f0b2375"),),
    "sts/sts15": (_sts(15, 3_000, "ae752c7c21bf194d8b67fd573edf7ae58183cbe3"),),
    "sts/sts16": (_sts(16, 1_186, "4d8694f8f0e0100860b497b999b3dbed754a0513"),),
    "sts/stsb_train": (_stsb("train", 5_749),),
    "sts/stsb_dev": (_stsb("validation", 1_500),),
    "sts/stsb_test": (_stsb("test", 1_379),),
    "sick/sick_train": (_sick("train", 4_439),),
    "sick/sick_trial": (_sick("validation", 495),),
    "sick/sick_test": (_sick("test", 4_906),),
    "nli/train": (
        _snli("train", 550_152),
        Source("nyu-mll/multi_nli", "train", 392_702, "nli", "da70db2af9d09693783c3320c4249840212ee221", name="mnli"),
    ),
    "nli/snli_dev": (_snli("validation", 10_000),),
    "nli/snli_test": (_snli("test", 10_000),),
    "wikipedia/articles": (
        Source(
            "wikimedia/wikipedia", "train", 6_407_814, "articles", "b04c8d1ceb2f5cd4588862100d08de323dccfbaa",
            config="20231101.en",
        ),
    ),
}  # fmt: skip
"""Canonical tables that can be fetched, and from where. The revisions are those that public projects pin."""

SHARDED = frozenset({"wikipedia/articles"})
"""Tables written as a folder of shards."""
