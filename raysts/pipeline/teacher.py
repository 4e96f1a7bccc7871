"""Mean embeddings of an ensemble, computed once and cached: one pass per member, one shard per window.

While members pass, the running sums stand in ``sum-<members so far>/``; the last pass divides and writes the shards of
the finished cache. A shard is complete or absent, so a killed pass goes on where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.data.windows import Windows, columns_of, shard_name
from raysts.models.encoder import Encoder
from raysts.models.layers import Layers
from raysts.models.sentence_model import represent_tokens
from raysts.storage.atomic import read_json, remove_drafts
from raysts.storage.manifests import remove
from raysts.storage.store import aside, names, need, push, write_json


def sum_folder(folder: Path, members: int) -> Path:
    """Where the sums over the first ``members`` members stand."""
    return folder / f"sum-{members:03d}"


def add_member(
    encoder: Encoder, windows: Windows, window: int, folder: Path, member: int, members: int, layers: Layers
) -> None:
    """Write one shard: the sum so far plus this member's embeddings, in float32; the mean after the last member.

    Args:
        encoder: member number ``member`` of ``members``; members are summed in this order, so sums are reproducible.
        windows: token store of the student's sentences.
        window: the window to do.
        folder: the cache.
        member: 0-based.
        members: size of the ensemble.
        layers: last layers pooled.
    """
    target = (folder if member + 1 == members else sum_folder(folder, member + 1)) / shard_name(window)
    if target.exists():
        push(target)  # a killed process may not have come to it
        return
    table = windows.read(window)
    tokens = columns_of(table, ("sentence",), ())["sentence"]
    total_ND = represent_tokens(encoder, tokens, (layers,))[0]["vectors"]
    if member > 0:
        sums = sum_folder(folder, member) / shard_name(window)
        need(sums)
        before = pq.read_table(sums)
        total_ND = columns_of(before, (), ("embedding",))["embedding"] + total_ND
    if member + 1 == members:
        total_ND = total_ND / np.float32(members)
    write_embeddings(target, table.column("row"), total_ND)


def write_embeddings(path: Path, rows: Any, embeddings_ND: np.ndarray) -> None:
    """One Parquet file with columns ``row`` and ``embedding`` (fixed-size list of float32)."""
    values = pa.array(np.ascontiguousarray(embeddings_ND, dtype=np.float32).reshape(-1))
    lists = pa.FixedSizeListArray.from_arrays(values, embeddings_ND.shape[1])
    with aside(path) as draft:
        # Floats do not compress: plain pages are written and read at memory speed.
        pq.write_table(pa.table({"row": rows, "embedding": lists}), draft, compression="none", use_dictionary=False)


def left(windows: Windows, folder: Path, member: int, members: int) -> list[int]:
    """Windows that this member's pass has still to do."""
    target = folder if member + 1 == members else sum_folder(folder, member + 1)
    there = names(target)
    return [window for window in range(len(windows)) if shard_name(window) not in there]


def first_pass(windows: Windows, folder: Path, members: int) -> int:
    """The first member whose pass is not complete (earlier sums may be gone already)."""
    for member in reversed(range(members)):
        if not left(windows, folder, member, members):
            return member + 1
    return 0


def end_pass(folder: Path, member: int) -> None:
    """Forget the sums that the finished pass of ``member`` was built on."""
    remove(sum_folder(folder, member))


def finish(windows: Windows, folder: Path, member_ids: Sequence[str], facts: dict[str, Any]) -> None:
    """Write the manifest: the cache is complete."""
    for member in range(1, len(member_ids)):
        remove(sum_folder(folder, member))
    remove_drafts(folder)
    write_json(folder / "manifest.json", {"members": list(member_ids), "rows": windows.rows, **facts})


def is_done(folder: Path) -> bool:
    """Whether the cache is complete."""
    return read_json(folder / "manifest.json") is not None
