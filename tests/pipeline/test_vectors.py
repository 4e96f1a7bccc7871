from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from small_runs import Interrupted, distillation, tokenize_table, write_backbone, write_vectors

from raysts.data.corpora import Corpus
from raysts.data.windows import StoreSpec, Windows, columns_of, shard_name
from raysts.data.world import world_tokenizer
from raysts.errors import InputError
from raysts.models.embedders import open_embedder
from raysts.models.pretrained import load
from raysts.ops import ensemble
from raysts.ops.ensemble import TARGETS
from raysts.pipeline.executor import LocalExecutor
from raysts.pipeline.plan import Plan
from raysts.pipeline.step import Context
from raysts.pipeline.steps import vectors as teacher
from raysts.recipes.recipe import DEFAULTS, Data, Evaluation, Resources
from raysts.storage.store import Store

ROWS, WINDOW = 38, 8


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three models that differ in their weights."""
    folder = tmp_path_factory.mktemp("members")
    return [write_backbone(folder / str(seed), "bert", seed=seed) for seed in range(3)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, small_corpus: Corpus) -> Path:
    """38 sentences in windows of 8."""
    folder = tmp_path_factory.mktemp("store")
    spec = StoreSpec(
        table="wikipedia/sentences", fingerprint="", texts=("sentence",), values=(), tokenizer="", max_length=20,
        data=Data(sample=ROWS),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raysts.data.windows.WINDOW", WINDOW)
        tokenize_table(small_corpus, spec, world_tokenizer(), folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _each_is_read_once() -> Iterator[None]:
    """The models stay as they are, and most of the time would go by with reading them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(teacher, "load_embedder", functools.cache(teacher.load_embedder))
        yield


def make(models: list[Path], store: Path, folder: Path, layers: int = 1, **how: Any) -> None:
    context = Context(LocalExecutor(device="cpu"), Store.of(folder))
    sources = [teacher.TeacherSource(model, store, "mean", layers, "") for model in models]
    teacher.write_targets(context, sources, folder, **how)


def means_of(store: Path, folder: Path, to_target: Path | None = None) -> np.ndarray:
    windows = Windows(store, folder)
    vectors = np.concatenate([columns_of(windows.read(i), (), ("teacher",))["teacher"] for i in range(len(windows))])
    return vectors if to_target is None else vectors @ np.load(to_target)


@functools.cache
def embedded(model_folder: Path, store: Path, layers: int = 1) -> np.ndarray:
    """A model's embeddings of all sentences, from their text tokens, one sentence at a time."""
    windows, model, rows = Windows(store), load(model_folder, layers=layers, device="cpu"), []
    for i in range(len(windows)):
        tokens = columns_of(windows.read(i), ("sentence",), ())["sentence"]
        for row in range(len(tokens)):
            ids, lengths = tokens.take([row]).pad(0)
            rows.append(model.encoder(ids, lengths).detach().numpy()[0])
    return np.stack(rows)


def test_the_mean_is_plain_in_the_order_of_the_members(members: list[Path], store: Path, tmp_path: Path) -> None:
    """Bit for bit: ((m0 + m1) + m2) / 3 in float32."""
    alone = []
    for folder, models in {"all": members, **{str(i): [member] for i, member in enumerate(members)}}.items():
        make(models, store, tmp_path / folder, layers=2)
        alone.append(means_of(store, tmp_path / folder))
    found, first, second, third = alone
    assert found.dtype == np.float32 and found.shape == (ROWS, 32)
    np.testing.assert_array_equal(found, ((first + second) + third) / np.float32(3))
    expected = np.mean([embedded(member, store, 2) for member in members], axis=0, dtype=np.float64)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


def test_one_member_is_its_own_mean_in_shards_with_the_rows_of_their_windows(
    members: list[Path], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest comes last. Blocks of a window are read behind each other."""
    folder, windows = tmp_path / "cache", Windows(store)
    make(members[:1], store, folder)
    found, names = means_of(store, folder), [shard_name(window) for window in range(5)]
    np.testing.assert_allclose(found, embedded(members[0], store), rtol=0, atol=2e-6)
    assert sorted(path.name for path in folder.glob("[!.]*")) == ["manifest.json", *names]
    assert windows.sizes.tolist() == [8, 8, 8, 8, 6]
    for window, name in enumerate(names):
        assert pq.read_table(folder / name).column("row").equals(windows.read(window).column("row"))
    monkeypatch.setattr(teacher, "BLOCK", 3)
    make(members[:1], store, tmp_path / "blocks")
    np.testing.assert_allclose(means_of(store, tmp_path / "blocks"), found, atol=1e-6)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("block", "files", "reached"),
    [(1_024, 2, [16 + 8, 16 + 16, 38]), (3, 13, [38])],  # rows of 38, in windows of 8
)
def test_killed_after_some_files_it_goes_on_to_the_same_bytes(
    block: int, files: int, reached: list[int], members: list[Path], store: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Blocks are whole windows, or three of the eight rows of one. It says from where it goes on."""
    monkeypatch.setattr(teacher, "BLOCK", block)
    monkeypatch.setattr(teacher, "MOST_SPLIT", 5)  # as many windows as there are
    said: list[str] = []
    monkeypatch.setattr(teacher, "say", said.append)
    make(members, store, tmp_path / "whole")
    assert len(said) == (5 if block > 3 else 10), "with each tenth, of which blocks of eight rows are two"
    names = [block.file for block in teacher.blocks_of(Windows(store))]
    assert sorted(path.name for path in (tmp_path / "whole").glob("shard*")) == names == sorted(names)
    assert len(names) == (5 if block > 3 else 14)
    written: list[Path] = []
    write = teacher.write_embeddings

    def counted(path: Path, *rest: object) -> None:
        if len(written) == files:
            raise Interrupted
        write(path, *rest)  # type: ignore[arg-type]
        written.append(path)

    with monkeypatch.context() as patch:
        patch.setattr(teacher, "write_embeddings", counted)
        with pytest.raises(Interrupted):
            make(members, store, tmp_path / "killed")
    assert not (tmp_path / "killed" / "manifest.json").exists()
    done_before = {path: path.stat().st_mtime_ns for path in written if path.exists()}
    said.clear()
    make(members, store, tmp_path / "killed")
    assert said == [f"teachers: {rows} of 38 texts" for rows in reached]
    assert content(tmp_path / "killed") == content(tmp_path / "whole")
    for path, changed in done_before.items():
        assert not path.exists() or path.stat().st_mtime_ns == changed, "a finished shard is not made again"


def test_teachers_that_do_not_fit_are_loaded_for_each_window(
    members: list[Path], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for just two of three: the same bytes."""
    make(members, store, tmp_path / "whole")
    size = open_embedder(members[0]).weight_bytes
    monkeypatch.setattr(teacher, "room_on", lambda *_: 2 * size)
    loaded: list[Path] = []
    load_one = teacher.load_embedder
    monkeypatch.setattr(teacher, "load_embedder", lambda path, **how: loaded.append(path) or load_one(path, **how))
    make(members, store, tmp_path / "cache")
    assert loaded == [members[0], members[1], *[members[2]] * 5]
    assert content(tmp_path / "cache") == content(tmp_path / "whole")


def test_targets_with_weights(members: list[Path], store: Path, tmp_path: Path) -> None:
    weights = [3.0, 1.0, 0.5]
    alone = [embedded(member, store).astype(np.float64) for member in members]
    units = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in alone]
    found = {}
    for target in sorted({*TARGETS} - {"gaussian"}):  # of one teacher with a variance: test_teachers
        make(members, store, tmp_path / target, target=target, weights=weights)
        found[target] = means_of(store, tmp_path / target)
    np.testing.assert_allclose(found["mean"], np.average(alone, axis=0, weights=weights), atol=2e-6)
    np.testing.assert_allclose(found["unit-mean"], np.average(units, axis=0, weights=weights), atol=2e-6)
    assert found["concat"].shape == (ROWS, 96) and np.array_equal(found["concat"], found["similarity"])
    cosines = np.average([unit @ unit.T for unit in units], axis=0, weights=weights)
    np.testing.assert_allclose(found["concat"] @ found["concat"].T, cosines, atol=2e-6)


def test_a_reduction_keeps_what_it_can_of_the_cosines(members: list[Path], store: Path, tmp_path: Path) -> None:
    make(members, store, tmp_path / "cache", target="concat")
    whole = means_of(store, tmp_path / "cache")
    for width in (8, 96, 100):
        to_target = tmp_path / "cache" / f"{width}.npy"
        teacher.FitTarget(None, to_target, store, True, None)(width)
        reduced = means_of(store, tmp_path / "cache", to_target)
        assert reduced.shape == (ROWS, width)
        lost = np.abs(reduced @ reduced.T - whole @ whole.T).max()
        assert lost < 1e-5 if width > 8 else 1e-3 < lost < 0.5, "of 96 dimensions all that there is"


def test_a_target_on_the_axes_of_the_student(members: list[Path], store: Path, tmp_path: Path) -> None:
    """No cosine changes, and it lies closer to where the student starts: fitted on what the student reads."""
    given = embedded(members[2], store)

    def apart(target: np.ndarray) -> float:
        return float(np.linalg.norm(ensemble.unit(target) - ensemble.unit(given)))

    for target, reduced in (("mean", False), ("concat", True)):
        cache = tmp_path / target
        make(members[:2], store, cache, target=target)
        plain = means_of(store, cache)
        if reduced:
            teacher.FitTarget("cpu", cache / "plain.npy", store, reduced, None)(32)
            plain = means_of(store, cache, cache / "plain.npy")
        start = teacher.TeacherSource(members[2], store, "mean", 1, "")
        teacher.FitTarget("cpu", cache / "turned.npy", store, reduced, start)(32)
        turned = means_of(store, cache, cache / "turned.npy")
        np.testing.assert_allclose(turned @ turned.T, plain @ plain.T, rtol=1e-4, atol=1e-4)
        assert apart(turned) < 0.9 * apart(plain)


def test_vectors_of_different_lengths_have_no_mean() -> None:
    ones = np.ones((4, 4))
    assert teacher.norms_problem(["a", "b"], [ones, 1.2 * ones]) is None
    assert "a 2.00, b 2.42" in str(teacher.norms_problem(["a", "b"], [ones, 1.21 * ones]))


class Watched(LocalExecutor):
    """An executor that counts the units of each worker."""

    def __init__(self) -> None:
        super().__init__(threads=1, device="cpu")
        self.units: Counter[str] = Counter()

    def map(self, worker: Any, args: tuple[Any, ...], units: Any, resources: Any) -> Iterator[Any]:
        self.units[worker.__name__] += len(units)
        return super().map(worker, args, units, resources)


def test_teachers_are_sampled_for_lengths_and_weights(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    """Of three files of vectors the second has those of the first, twice as long, and the third says nothing."""
    world = Corpus(few_world)
    read, dev = world.read("wikipedia/sentences")["sentence"].to_pylist(), world.read("sts/stsb_dev").to_pydict()
    texts = list(dict.fromkeys([*read, *dev["sentence1"], *dev["sentence2"]]))
    given = load(tiny_backbone, device="cpu").encode(texts)
    noise = np.random.default_rng(0).normal(size=given.shape).astype(np.float32)
    files = {"once": given, "twice": 2 * given, "noise": noise}
    teachers = [str(write_vectors(tmp_path / f"{name}.parquet", texts, each)) for name, each in files.items()]

    def sampled(count: int, **settings: Any) -> tuple[int, Any]:
        recipe = DEFAULTS["sed"].replace(settings=DEFAULTS["sed"].settings.replace(**settings), data=Data(sample=40))
        evaluation = Evaluation(resamples=0)
        pipeline = distillation(tiny_backbone, *teachers[:count], recipe=recipe, evaluation=evaluation)
        plan, executor = Plan(pipeline=pipeline, corpus=Corpus(few_world), storage=tmp_path / "storage"), Watched()
        for step in plan.making[:-1]:
            assert step.work is not None
            step.work(Context(executor, plan.store))
        assert plan.teacher is not None
        return executor.units["SampleTeachers"], plan.teacher.weights(plan.store)

    with pytest.raises(InputError, match="different lengths .in the mean .*once.parquet .*sed.target=unit-mean"):
        sampled(2, target="mean")
    assert sampled(1, target="mean") == (0, [1.0]) and sampled(2, target="unit-mean") == (0, [1.0, 1.0])
    units, (once, twice, says_nothing) = sampled(3, target="unit-mean", weights="agreement")
    assert units == 3 and once == pytest.approx(twice, rel=1e-3) and once > 2 * says_nothing
    assert sampled(3, target="unit-mean", weights="agreement")[0] == 0, "the weights are there"
    assert sampled(2, target="unit-mean", weights=(3.0, 1.0)) == (0, [3.0, 1.0])
    units, by_dev = sampled(2, target="unit-mean", weights="dev")
    assert units == 0 and len(by_dev) == 2 and sampled(2, target="unit-mean", weights="dev") == (0, by_dev)
    teachers[0] = str(write_vectors(tmp_path / "read.parquet", [*dict.fromkeys(read)], given[: len({*read})]))
    with pytest.raises(InputError, match="a teacher has no vectors of the development set; embed it too"):
        sampled(2, target="unit-mean", weights="dev")


def test_the_room_for_teachers_is_half_of_what_a_process_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def room(device: str | None, **asked: Any) -> float:
        return teacher.room_on(device, Resources(**asked))

    assert room("cpu", memory=4.0) == 2e9
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2
    assert room("cpu", cpus=1) == pytest.approx(half / (os.cpu_count() or 1)) and room("cpu", cpus=999) == half
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (1, 80_000))
    assert [room(None, gpus=gpus) for gpus in (None, 0.5, 2)] == [40_000, 20_000, 40_000]
    assert room("cpu", memory=4.0) == 2e9, "whatever the machine has besides"
