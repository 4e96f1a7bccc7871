from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import ray
from processes import small_windows, wait_until
from small_runs import tokenize_table

from raysts.data.batches import BatchOrder, read_batches
from raysts.data.windows import Windows, shard_name
from raysts.models.pretrained import load_tokenizer
from raysts.models.tokens import LocalBatch
from raysts.pipeline.plan import Plan
from raysts.pipeline.steps.vectors import write_embeddings
from raysts.recipes.catalog import EACH, FRESH
from raysts.recipes.recipe import DEFAULTS

BATCHES = {"nli": 22, "ct": 16, "sts": 24, "sed": 48}


@pytest.fixture(autouse=True)
def _streamed_however_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysts.cluster.stream.FEW", 0)


@pytest.fixture(scope="module")
def windows(planned, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Windows]:
    """Token stores in windows of 64 rows; that of sed beside random teacher means."""
    with small_windows(64):
        return _stores(planned, tmp_path_factory.mktemp("stores"))


def _stores(planned, folder: Path) -> dict[str, Windows]:
    made: Plan = planned(folder, "nli-ct-sts-sed", {"sed.data.sample": 700, "members": 1})
    made.write_backbone()
    tokenizer = load_tokenizer(made.backbone)
    found = {}
    for stage, recipe in made.pipeline.recipes.items():
        spec = made.store_spec(recipe)
        tokenize_table(made.corpus, spec, tokenizer, made.store_folder(spec))
        found[stage] = Windows(made.store_folder(spec))
    teacher, rng = folder / "teacher", np.random.default_rng(0)
    for window, size in enumerate(found["sed"].sizes):
        rows = found["sed"].read(window).column("row")
        write_embeddings(teacher / shard_name(window), rows, rng.normal(size=(size, 8)).astype(np.float32))
    found["sed"] = Windows(found["sed"].folder, teacher)
    return found


def _same(a: LocalBatch, b: LocalBatch) -> None:
    assert np.array_equal(a.ids, b.ids) and a.examples == b.examples and a.size == b.size
    assert np.array_equal(a.weight, b.weight) and set(a.rows) == set(b.rows)
    for name, column in a.rows.items():
        if hasattr(column, "offsets"):
            assert np.array_equal(column.offsets, b.rows[name].offsets), name
            assert np.array_equal(column.flat, b.rows[name].flat), name
        else:
            assert column.dtype == b.rows[name].dtype and np.array_equal(column, b.rows[name]), name


@pytest.mark.parametrize("stage", [stage for stage in BATCHES if stage != "ct"])
def test_streamed_batches_are_those_read_here(
    stage: str, windows: dict[str, Windows], cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of ct are, in the next test. A plan of Ray Data has one epoch; what goes beyond has another one."""
    from raysts.cluster.stream import read_streamed

    store = windows[stage]
    monkeypatch.setattr("raysts.cluster.stream.SEGMENT", len(store))
    order = BatchOrder(store.sizes, DEFAULTS[stage].group, BATCHES[stage], seed=11)
    epoch = order.steps_per_epoch
    assert len(store) > 3 and order.rows % order.rows_per_batch  # several windows, and a ragged last batch
    parts = [(order, 0, epoch + 3, 1, 2)]
    if stage == "nli":
        # A batch of several windows: each of the two processes reads only half of them, and passes over the others.
        wide = BatchOrder(store.sizes, EACH, 400, seed=3)
        parts = [(order, epoch // 2, epoch, 0, 1), (wide, 1, 2 * wide.steps_per_epoch, 0, 2)]
    for part in parts:
        for here, streamed in zip(read_batches(store, *part), read_streamed(store, *part), strict=True):
            _same(here, streamed)
    if stage == "sed":
        first = next(iter(read_streamed(store, order, 0, 1, 0, 1)))
        means = {
            row: mean
            for window in range(len(store))
            for row, mean in zip(*(store.read(window)[name].to_pylist() for name in ("row", "teacher")), strict=True)
        }
        assert np.array_equal(first.rows["teacher"], np.array([means[i] for i in first.ids], np.float32))


@pytest.mark.anyray
def test_kills_mid_stream_lose_and_double_nothing(windows: dict[str, Windows], tmp_path: Path, cluster: None) -> None:
    """Tasks that read windows are killed at it; every batch of the epochs is that of a calm run."""
    from raysts.cluster.stream import read_streamed

    order = BatchOrder(windows["ct"].sizes, FRESH, 16, seed=5)
    stop = 2 * order.steps_per_epoch

    class Deadly(Windows):
        def read(self, window: int) -> pa.Table:
            if window in (1, 3) and not (killed := tmp_path / str(window)).exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return Windows.read(self, window)

    streamed = read_streamed(Deadly(windows["ct"].folder), order, 0, stop, 0, 1)
    for here in read_batches(windows["ct"], order, 0, stop, 0, 1):
        _same(here, next(streamed))
    assert next(streamed, None) is None and len(list(tmp_path.iterdir())) == 2


def test_leaving_in_mid_epoch_is_clean(windows: dict[str, Windows], cluster: None) -> None:
    from raysts.cluster.stream import read_streamed

    order = BatchOrder(windows["nli"].sizes, EACH, 20, seed=3)
    shares = read_streamed(windows["nli"], order, 0, order.steps_per_epoch, 0, 1)
    first = [next(shares) for _ in range(5)]
    shares.close()
    again = read_streamed(windows["nli"], order, 3, order.steps_per_epoch, 0, 1)
    _same(first[3], next(again))
    _same(first[4], next(again))
    again.close()


LARGE_ROWS, LARGE_WIDTH, LARGE_WINDOW = 180_000, 200, 7_500
"""144 MB of token ids in 24 windows: 48 batches without a rest."""


def _write_large(folder: Path) -> None:
    """A token store in which the ids of every sentence begin with its row."""
    parts = []
    for number, first in enumerate(range(0, LARGE_ROWS, LARGE_WINDOW * 20)):
        name, sizes = f"part-{number:05d}.arrow", []
        schema = pa.schema([("row", pa.int64()), ("sentence", pa.list_(pa.int32()))])
        with pa.ipc.new_file(str(folder / name), schema) as writer:
            for low in range(first, min(first + LARGE_WINDOW * 20, LARGE_ROWS), LARGE_WINDOW):
                row = np.arange(low, low + LARGE_WINDOW)
                flat = np.repeat(row.astype(np.int32), LARGE_WIDTH)
                offsets = np.arange(0, len(flat) + 1, LARGE_WIDTH, dtype=np.int32)
                lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat))
                writer.write_batch(pa.RecordBatch.from_arrays([pa.array(row), lists], schema=schema))
                sizes.append(LARGE_WINDOW)
        parts.append({"file": name, "windows": sizes})
    (folder / "manifest.json").write_text(json.dumps({"parts": parts, "rows": LARGE_ROWS}))


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "large"
    folder.mkdir()
    _write_large(folder)
    yield folder
    for path in folder.iterdir():
        path.unlink()


def test_a_corpus_larger_than_memory_streams_flat_while_a_trainer_holds_every_cpu(large: Path, cluster: None) -> None:
    """A trainer holds both CPUs and reads 144 MB through an object store of 100 MB, every row once."""

    @ray.remote(num_cpus=2)
    class Trainer:  # here, for a class of a module would be imported where no tests are
        def read(self, folder: Path) -> tuple[np.ndarray, list[int]]:
            """How often each row came, and the megabytes of this process at each batch."""
            from raysts.cluster.stream import read_streamed

            windows = Windows(folder)
            order = BatchOrder(windows.sizes, FRESH, 2_000, seed=1)  # batches of 3,750 sentences
            seen, anonymous = np.zeros(windows.rows, np.int8), []
            for share in read_streamed(windows, order, 0, order.steps_per_epoch, 0, 1):
                tokens = share.rows["sentence"]
                assert (tokens.flat.reshape(len(share.ids), -1) == share.ids[:, None]).all()
                seen[share.ids] += 1
                status = Path("/proc/self/status").read_text()
                anonymous.append(int(status.split("RssAnon:")[1].split()[0]) // 1024)
            return seen, anonymous

    def spilled() -> int:
        session = Path(ray.nodes()[0]["RayletSocketName"]).parents[1]
        return sum(path.stat().st_size for path in session.glob("ray_spilled_objects*/**/*") if path.is_file())

    before = spilled()
    trainer = Trainer.remote()
    assert ray.cluster_resources()["object_store_memory"] == 100 << 20
    wait_until(lambda: not ray.available_resources().get("CPU", 0))
    seen, anonymous = ray.get(trainer.read.remote(large))
    ray.kill(trainer)
    assert spilled() == before and (seen == 1).all() and len(anonymous) == 48
    # A reader that gathered what it read would reach 144 MB more.
    assert max(anonymous[15:]) < np.median(anonymous[5:15]) + 100, anonymous


def test_a_task_unpacks_what_the_tasks_share_once(cluster: None, windows: dict[str, Windows]) -> None:
    """A billion rows are 122,070 windows: a task carries the reference of their list alone."""
    from raysts.cluster import stream

    order = BatchOrder(windows["nli"].sizes, EACH, 20, seed=3)
    shared = [ray.put((windows["nli"], order.share(0, 1)))]
    assert len(ray.cloudpickle.dumps((stream._read, shared))) < 2_000
    first, second = (stream._read(part._asdict(), shared) for part in [*order.slices(0, 10)][:2])
    assert first["table"] != second["table"] and stream._load(shared[0]) is stream._load(shared[0])
