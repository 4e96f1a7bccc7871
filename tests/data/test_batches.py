import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from small_runs import tokenize_table

from raysts.data.batches import BatchOrder, examples_in, read_batches
from raysts.data.corpora import Corpus
from raysts.data.windows import StoreSpec, Windows
from raysts.data.world import world_tokenizer
from raysts.models.tokens import LocalBatch
from raysts.recipes.catalog import ANCHORED, CATALOG, EACH, FRESH, ContrastiveTensionSettings, Group
from raysts.recipes.recipe import Data


class Numbers:
    """A token store in memory whose texts are their own row number: windows of given sizes."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = np.array(sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def read(self, window: int) -> pa.Table:
        first = int(self.sizes[:window].sum())
        rows = np.arange(first, first + int(self.sizes[window]))
        columns = {"row": pa.array(rows)}
        columns |= {name: pa.array([[7, row, 8] for row in rows.tolist()]) for name in ("premise", "hypothesis")}
        return pa.table(columns | {"label": pa.array(rows.astype(np.float64))})


def shares(
    sizes: list[int], group: Group, batch: int, start: int = 0, stop: int | None = None, *, seed: int = 0,
    epochs: int = 1, rank: int = 0, world: int = 1, bootstrap: bool = False,
) -> list[LocalBatch]:  # fmt: skip
    windows = Numbers(sizes)
    order = BatchOrder(windows.sizes, group, batch, seed, bootstrap=bootstrap)
    end = epochs * order.steps_per_epoch if stop is None else stop
    return list(read_batches(windows, order, start, end, rank, world))  # type: ignore[arg-type]


def sentences_of(share: LocalBatch, text: str) -> list[tuple[int, ...]]:
    """Per example the rows it reads, taken from the tokens themselves."""
    tokens = share.rows[text]
    assert (tokens.flat[tokens.offsets[:-1]] == 7).all() and (tokens.flat[tokens.offsets[1:] - 1] == 8).all()
    numbers = tokens.flat[tokens.offsets[:-1] + 1]
    np.testing.assert_array_equal(numbers, share.ids)
    return [tuple(int(numbers[place]) for place in example) for example in share.examples]


def same(a: list[LocalBatch], b: list[LocalBatch]) -> bool:
    def numbers(x: LocalBatch) -> list[Any]:
        return [x.ids.tolist(), x.examples, x.weight.tolist(), x.seeds.tolist(), x.size]

    return [*map(numbers, a)] == [*map(numbers, b)]


SIZES = [[13, 13, 13, 1], [100, 3, 50]]
GROUPS = (EACH, FRESH, ANCHORED)


@pytest.mark.parametrize(("sizes", "batch"), [([40], 1), ([13, 13, 13, 1], 7), ([5] * 9 + [2], 16), ([40], 40)])
def test_every_row_once_in_an_epoch_with_its_values(sizes: list[int], batch: int) -> None:
    found, total = shares(sizes, EACH, batch, epochs=3), sum(sizes)
    per_epoch = -(-total // batch)
    assert len(found) == 3 * per_epoch
    for epoch in range(3):
        part = found[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(np.concatenate([share.ids for share in part]).tolist()) == list(range(total))
        assert [share.size for share in part] == [batch] * (total // batch) + [total % batch] * (total % batch > 0)
    for share in found:
        np.testing.assert_array_equal(share.rows["label"], share.ids)
        assert sentences_of(share, "premise") == sentences_of(share, "hypothesis") == [(i,) for i in share.ids.tolist()]


def order_of(sizes: list[int], batch: int, **options: int) -> list[int]:
    return np.concatenate([share.ids for share in shares(sizes, EACH, batch, **options)]).tolist()


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    sizes = [13, 13, 13, 1]
    first = order_of(sizes, 4, seed=3, epochs=2)
    assert first == order_of(sizes, 4, seed=3, epochs=2)
    assert first[:40] == order_of(sizes, 16, seed=3), "not of the batch"
    assert first[:40] != first[40:], "epochs differ"
    assert first[:40] != order_of(sizes, 4, seed=4), "seeds differ"
    assert first[:40] != list(range(40))


def test_every_epoch_has_its_own_order_of_windows_and_of_the_rows_in_each() -> None:
    sizes = [5] * 9
    order = BatchOrder(np.array(sizes), EACH, 5, seed=3)
    windows = [[part.window for part in order.slices(9 * epoch, 9 * epoch + 9)] for epoch in range(4)]
    assert all(sorted(epoch) == list(range(9)) for epoch in windows) and len(set(map(tuple, windows))) == 4
    for epoch in (0, 2):
        read = [part.window for part in order.slices(9 * epoch + 2, 9 * epoch + 4)]
        assert read == windows[epoch][2:4], "no more is read"
    rows = np.array(order_of(sizes, 5, seed=3, epochs=4)).reshape(4, 9, 5)
    assert (rows // 5 == np.array(windows)[:, :, None]).all(), "batches follow the order of windows"
    within = [{w: tuple(epoch[i] % 5) for i, w in enumerate(seen)} for epoch, seen in zip(rows, windows, strict=True)]
    assert all(len({epoch[window] for epoch in within}) > 1 for window in range(9))


def test_a_bootstrap_sample_is_drawn_once_with_replacement() -> None:
    """As many rows of every window as it has, another draw for every seed, and the same draw in every epoch."""

    def epochs(seed: int) -> np.ndarray:
        batches = shares([300, 100], EACH, 16, seed=seed, epochs=2, bootstrap=True)
        return np.concatenate([share.ids for share in batches]).reshape(2, 400)

    first, second = epochs(seed=0)
    assert sorted(first) == sorted(second) and list(first) != list(second) and (first < 300).sum() == 300
    for seed in range(2):  # 1 - 1/e of the rows are drawn, 253 of 400, deviation 6
        assert 220 <= len(np.unique(epochs(seed)[0])) <= 290
    assert sorted(epochs(seed=1)[0]) != sorted(first)
    parts = [shares([300, 100], EACH, 16, rank=rank, world=2, bootstrap=True) for rank in range(2)]
    whole = shares([300, 100], EACH, 16, bootstrap=True)
    assert all([*a.ids, *b.ids] == [*both.ids] for a, b, both in zip(*parts, whole, strict=True))


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("sizes", SIZES)
def test_a_start_in_the_middle_is_the_tail_of_the_whole(sizes: list[int], group: Group) -> None:
    whole = shares(sizes, group, 16, epochs=3)
    for start in {1, len(whole) // 2, len(whole) - 1, len(whole)}:
        assert same(shares(sizes, group, 16, start, len(whole)), whole[start:])
    assert same(shares(sizes, group, 16, 1, len(whole) - 1), whole[1:-1])


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("sizes", SIZES)
def test_ranks_share_out_the_examples_of_one_process(sizes: list[int], group: Group) -> None:
    whole = shares(sizes, group, 16, epochs=2)
    by_world = [[shares(sizes, group, 16, epochs=2, rank=rank, world=n) for rank in range(n)] for n in (2, 5)]
    for (step, alone), ranks in itertools.product(enumerate(whole), by_world):
        parts = [rank[step] for rank in ranks]
        assert alone.weight.tolist() == [1.0] * len(alone.examples) and alone.size == len(alone.examples)
        joined, counts, seeds = [], [], []
        for part in parts:
            examples = sentences_of(part, "premise")
            assert len(examples) >= 1 and part.size == alone.size
            assert set(part.weight.tolist()) <= {0.0, 1.0} and len(part.weight) == len(examples)
            real = [example for example, weight in zip(examples, part.weight, strict=True) if weight]
            joined += real
            seeds += part.seeds[part.weight > 0].tolist()
            counts.append(len(real))
            # A process reads the rows of its own examples and no others.
            assert sorted(part.ids.tolist()) == sorted({row for example in examples for row in example})
        assert joined == sentences_of(alone, "premise") and seeds == alone.seeds.tolist()
        assert max(counts) - min(counts) <= 1


def test_more_processes_than_examples_get_a_filler_of_weight_zero() -> None:
    ranks = [shares([9], EACH, 4, rank=rank, world=3) for rank in range(3)]
    last = [rank[-1] for rank in ranks]
    assert sum(float(share.weight.sum()) for share in last) == 1.0
    assert all(len(share.examples) == 1 for share in last) and len({int(share.ids[0]) for share in last}) == 1


# -- contrastive tension -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("rows", "examples"), [(14, []), (15, [8]), (44, [16]), (45, [16, 8]), (75, [16, 16, 8])])
def test_ct_batches_hold_whole_groups_of_fresh_sentences(rows: int, examples: list[int]) -> None:
    """16 pairs: 2 identical and 14 of two fresh sentences; no sentence twice in a batch. What is left of an epoch below
    15 sentences is left out; the next epoch draws from all rows again."""
    sizes = [rows // 2, rows - rows // 2]
    assert BatchOrder(np.array(sizes), FRESH, 16, 0).steps_per_epoch == len(examples)
    found = shares(sizes, FRESH, 16, epochs=3)
    assert [share.size for share in found] == examples * 3
    for share in found:
        pairs = sentences_of(share, "premise")
        identical = [len(pair) for pair in pairs].count(1)
        assert (identical, len(pairs) - identical) == (share.size // 8, 7 * share.size // 8)
        sentences = [row for pair in pairs for row in pair]
        assert len(sentences) == len(set(sentences)) == 15 * share.size // 8


def test_ct_pairs_of_an_anchor_share_their_first_sentence() -> None:
    group = CATALOG["ct"].group_of(ContrastiveTensionSettings(negatives="anchored"))
    assert group == ANCHORED and CATALOG["ct"].group_of(ContrastiveTensionSettings()) == FRESH
    examples = examples_in(group, 17)
    assert examples[:3] == [(0,), (0, 1), (0, 2)] and examples[8:10] == [(8,), (8, 9)] and len(examples) == 16


# -- a real store --------------------------------------------------------------------------------------------------------
def test_a_real_store_is_like_memory(small_corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysts.data.windows.WINDOW", 32)
    spec = StoreSpec(
        table="wikipedia/sentences", fingerprint="", texts=("sentence",), values=(), tokenizer="", max_length=20,
        data=Data(sample=150),
    )  # fmt: skip
    tokenize_table(small_corpus, spec, world_tokenizer(), tmp_path / "store")
    windows = Windows(tmp_path / "store")
    assert windows.sizes.tolist() == [32, 32, 32, 32, 22]
    order = BatchOrder(windows.sizes, FRESH, 16, 5)
    real = list(read_batches(windows, order, 0, 2 * order.steps_per_epoch))
    assert same(real, shares(windows.sizes.tolist(), FRESH, 16, epochs=2, seed=5))
    tokens = {}
    for number in range(len(windows)):
        table = windows.read(number)
        tokens.update(zip(table.column("row").to_pylist(), table.column("sentence").to_pylist(), strict=True))
    for share in real:
        read = share.rows["sentence"]
        for place, row in enumerate(share.ids.tolist()):
            assert read.flat[read.offsets[place] : read.offsets[place + 1]].tolist() == tokens[row]
