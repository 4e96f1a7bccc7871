"""Training tables made of other tables: triplets, pairs and sentences.

A data folder may hold any of them itself; then that one is used.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysts.schema import NLI_LABELS

VERSION = 1
"""Part of the fingerprint of what is made; raise it when rows or their order change."""


class DerivedTable(NamedTuple):
    """Rule that makes a table of others. It needs all ``sources``, or with ``any_source`` one of them."""

    sources: tuple[str, ...]
    make: Callable[[Mapping[str, pa.Table]], pa.Table]
    any_source: bool = False


def label_codes(values: pa.ChunkedArray | pa.Array, labels: Sequence[str]) -> np.ndarray:
    """Return int64 codes of class labels, which are names or codes and -1 for an unknown one."""
    if pa.types.is_dictionary(values.type):
        values = pc.cast(values, values.type.value_type)
    if not pa.types.is_integer(values.type):
        words = pa.array([*labels, *map(str, range(len(labels)))])
        places = pc.index_in(pc.utf8_lower(values.cast(pa.string())), value_set=words)
        values = pc.if_else(pc.less(places, len(labels)), places, pc.subtract(places, len(labels)))
    # cast first: unsigned types have no -1
    codes = pc.fill_null(values.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
    return np.where((codes >= 0) & (codes < len(labels)), codes, -1)


def triplets(tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return anchor (premise), positive (entailment), negative (contradiction) and source.

    Within a premise the k-th entailment stands with the k-th contradiction (SimCSE, section 4.1). Premises without either
    give none.
    """
    pairs, place, count = _pair_sentences(tables["nli/train"])
    return pairs.filter(pa.array(place < count))


def pairs(tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return :func:`triplets` of every entailment.

    The contradictions of a premise take turns; without one the negative is null. A folder's own
    triplets are all the pairs there are.
    """
    return tables["nli/triplets"] if "nli/triplets" in tables else _pair_sentences(tables["nli/train"])[0]


def _pair_sentences(table: pa.Table) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """Return the pairs, the place of each within its premise, and the contradictions of that."""
    premise = table.column("premise").combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    label = label_codes(table.column("label"), NLI_LABELS)
    entailed, contradicted = (np.flatnonzero(label == NLI_LABELS.index(n)) for n in ("entailment", "contradiction"))
    contradicted = contradicted[np.argsort(premise[contradicted], kind="stable")]
    begin, end = (np.searchsorted(premise[contradicted], premise[entailed], side) for side in ("left", "right"))
    place, count = _place_in_group(premise[entailed]), end - begin
    turn = begin + place % np.maximum(count, 1)
    negative = pa.array(contradicted[np.minimum(turn, len(contradicted) - 1)] if len(contradicted) else 0 * turn)
    columns = {
        "anchor": table.column("premise").take(entailed),
        "positive": table.column("hypothesis").take(entailed),
        "negative": table.column("hypothesis").take(pc.if_else(pa.array(count > 0), negative, None)),
    }
    return pa.table(columns | {"source": _sources(table).take(entailed)}), place, count


def _place_in_group(group: np.ndarray) -> np.ndarray:
    """Return the number of equal values before each value."""
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.zeros(0, np.int64)
    sizes = np.diff(np.r_[begins, len(ordered)])
    place = np.empty(len(group), np.int64)
    place[order] = np.arange(len(ordered)) - np.repeat(begins, sizes)
    return place


def _sources(table: pa.Table) -> pa.ChunkedArray:
    if "source" in table.column_names:
        return table.column("source").cast(pa.string())
    return pa.chunked_array([pa.array(["nli"] * table.num_rows, pa.string())])


def nli_sentences(tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return the distinct premises and hypotheses of each source in order of first appearance."""
    table = tables["nli/train"]
    sides = [{"sentence": table.column(name), "source": _sources(table)} for name in ("premise", "hypothesis")]
    return _distinct(pa.concat_tables(map(pa.table, sides)))


def mixed_sentences(tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return the sentences of NLI and Wikipedia with their source."""
    parts = [nli_sentences(tables)] if "nli/train" in tables else []
    if "wikipedia/sentences" in tables:
        sentence = tables["wikipedia/sentences"].column("sentence")
        parts.append(pa.table({"sentence": sentence, "source": pa.array(["wikipedia"] * len(sentence), pa.string())}))
    return _distinct(pa.concat_tables(parts))


def targets(tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return the distinct sentences of each test set without their scores (BERT-flow, section 4)."""
    parts = []
    for name, table in tables.items():
        source = pa.array([source_of(name)] * table.num_rows, pa.string())
        parts += [pa.table({"sentence": table.column(side), "source": source}) for side in ("sentence1", "sentence2")]
    return _distinct(pa.concat_tables(parts))


def source_of(table: str) -> str:
    """Return the name of a table of test sentences in ``data.sources``: ``sts12``, ``stsb_test``."""
    return table.rsplit("/", 1)[-1]


def _distinct(table: pa.Table) -> pa.Table:
    numbered = table.append_column("row", pa.array(np.arange(table.num_rows)))
    first = numbered.group_by(["sentence", "source"]).aggregate([("row", "min")]).column("row_min")
    return table.take(pa.array(np.sort(first.to_numpy())))


TARGETS = "targets"

DERIVED: dict[str, DerivedTable] = {
    "nli/triplets": DerivedTable(("nli/train",), triplets),
    "nli/pairs": DerivedTable(("nli/triplets", "nli/train"), pairs, any_source=True),
    "nli/sentences": DerivedTable(("nli/train",), nli_sentences),
    "sentences": DerivedTable(("nli/train", "wikipedia/sentences"), mixed_sentences, any_source=True),
    TARGETS: DerivedTable(
        (*(f"sts/sts{year}" for year in range(12, 17)), "sts/stsb_test", "sick/sick_test"), targets, any_source=True
    ),
}
"""Derived tables by name."""
