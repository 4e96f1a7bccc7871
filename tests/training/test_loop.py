from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_runs import Interrupted, Stage, Watched, difference, interrupted_at, metrics, without
from torch.optim.optimizer import register_optimizer_step_pre_hook

from raysts.cpu import native
from raysts.data.batches import BatchOrder, read_batches
from raysts.data.windows import Windows
from raysts.errors import RunFailed, StoreFailed
from raysts.models.pretrained import load
from raysts.models.tokens import LocalBatch
from raysts.pipeline.executor import LocalExecutor, attempt
from raysts.recipes.recipe import DEFAULTS, Optim, Resources, Train
from raysts.storage.atomic import lock
from raysts.storage.bucket import Bucket
from raysts.storage.checksums import write_record
from raysts.storage.foreign import read_json
from raysts.storage.runs import RunFolder
from raysts.storage.store import Store
from raysts.training import checkpoint, loop
from raysts.training.job import total_steps
from raysts.training.loop import train
from raysts.training.record import begin
from raysts.training.runtime import Runtime

HOT = Optim(name="adamw", lr=1e30, schedule="constant", warmup=0.0, clip=None)
STILL = Optim(name="adamw", lr=1e-12, schedule="constant", warmup=0.0)


class Untouchable(Watched):
    """A runtime for a run that must not be trained any more."""

    def wrap(self, module: torch.nn.Module, precision: str) -> torch.nn.Module:
        raise AssertionError("this run was to be left alone")


class DiesAfter(Watched):
    """Dies when the evaluation of a step is reported."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.last = step

    def report(self, job: Any, line: dict[str, Any]) -> None:
        if line["step"] == self.last:
            raise Interrupted


def test_every_step_has_its_noise_rate_and_clipped_gradient_whenever_it_began(stage: Stage, tmp_path: Path) -> None:
    optim = Optim(name="adamw", lr=1e-4, schedule="linear", warmup=0.5, clip=0.01)
    steps: list[tuple[int, float]] = []
    norms: list[float] = []

    def watch(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        (rate,) = {group["lr"] for group in optimizer.param_groups}
        steps.append((torch.initial_seed(), rate))
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norms.append(float(torch.cat([p.grad.to_dense().flatten() for p in parameters]).norm()))

    hook = register_optimizer_step_pre_hook(watch)
    try:
        train(stage.job("nli", tmp_path / "whole", max_steps=4, dev=False, optim=optim), Watched())
        for last in (2, None):  # killed after two steps, and gone on with
            job = stage.job("nli", tmp_path / "killed", max_steps=4, dev=False, optim=optim, checkpoint_every=1)
            with contextlib.suppress(Interrupted):
                train(job, Watched(read=interrupted_at(last)) if last else Watched())
    finally:
        hook.remove()
    whole, killed = steps[:4], steps[4:]
    assert list(dict.fromkeys(killed)) == whole and len({seed for seed, _ in whole}) == 4
    assert [rate for _, rate in whole] == pytest.approx([5e-5, 1e-4, 1e-4, 5e-5])
    assert norms == pytest.approx([0.01] * len(norms), rel=1e-3)


def test_a_run_finished_meanwhile_is_left_alone(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, asked, lock_run = stage.job("nli", tmp_path / "run", epochs=1.0, dev=False), threading.Event(), RunFolder.lock

    def asking(*arguments: Any) -> Any:
        asked.set()
        return lock_run(*arguments)

    monkeypatch.setattr(RunFolder, "lock", asking)
    with ThreadPoolExecutor(1) as pool:
        with lock(job.folder / "writer.lock", "the first process"):
            second = pool.submit(train, job, Untouchable())
            assert asked.wait(300), "the second has found the run unfinished and waits for the first"
            (job.folder / "model").mkdir()
            write_record(job.folder / "run.json", {"status": "done", "run_id": job.id})
        assert second.result(300) == {"status": "done", "run_id": job.id}


def test_a_checkpoint_goes_to_a_bucket_beside_the_steps(stage: Stage, s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third step is done while the checkpoint of the second is on its way; the run ends when it has arrived."""
    store, stepped, seen = Store.open(s3), threading.Event(), []
    send = Bucket.upload

    def slow(bucket: Bucket, local: Path, path: str) -> None:
        if path.endswith("step-0000002.pt"):
            seen.append(stepped.wait(120))
        send(bucket, local, path)

    class Seen(Watched):
        def observe(self, job: Any, line: dict[str, Any]) -> None:
            if line["step"] == 3:
                stepped.set()

    monkeypatch.setattr(Bucket, "upload", slow)
    job = stage.job("nli", store.path("runs/x"), max_steps=3, dev=False, checkpoint_every=2)
    monkeypatch.setattr(checkpoint, "clear", lambda folder: None)
    assert train(job, Seen())["status"] == "done" and seen == [True]
    assert {path.name for path in store.list("runs/x/checkpoints")} == {"step-0000003.pt"}
    assert store.get_dir("runs/x/model", fresh=True)


def test_a_checkpoint_that_cannot_be_sent_ends_the_run(stage: Stage, s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(bucket: Bucket, local: Path, path: str) -> None:
        raise StoreFailed("no room")

    job = stage.job("nli", Store.open(s3).path("runs/x"), max_steps=6, dev=False, checkpoint_every=2)
    monkeypatch.setattr(Bucket, "upload", refused)
    with pytest.raises(StoreFailed, match="no room"):
        train(job, Watched())


def test_a_run_leaves_its_record_its_metrics_and_its_model(stage: Stage, tmp_path: Path) -> None:
    job = stage.job("nli", tmp_path / "run", export_layers=2, gradient_checkpointing=True)
    runtime = Watched()
    record = train(job, runtime)
    assert runtime.module is not None
    assert all("forward" in vars(layer) for layer in runtime.module.encoder.layer_list()), "layers are computed again"
    assert record == read_json(tmp_path / "run" / "run.json")
    assert record["status"] == "done" and record["steps"] == 15 and record["run_id"] == job.id and record["seed"] == 7
    assert record["stage"] == "nli" and record["layout"]["world_size"] == 1 and record["layout"]["precision"] == "fp32"
    assert {"torch", "raysts", "transformers"} <= set(record["versions"]) and record["timings"]["train_seconds"] > 0
    started, finished = (datetime.fromisoformat(record[name]) for name in ("started_at", "finished_at"))
    assert timedelta(0) <= finished - started < timedelta(minutes=10)
    assert record["kept"] == {"step": 15, "candidate": "encoder"} and record["selected_by"] is None
    assert read_json(tmp_path / "run" / "recipe.json")["batch"] == 16
    assert not (tmp_path / "run" / "checkpoints").exists()

    lines = metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == list(range(1, 16)) and lines[-1]["epoch"] == 3.0 and lines[-1]["lr"] > 0
    assert all(line["steps"] == 15 and np.isfinite(line["loss"]) and 0 <= line["accuracy"] <= 1 for line in lines)
    assert [line["step"] for line in lines if "dev" in line] == [4, 8, 12, 15], "unasked, after every quarter"
    assert [line["step"] for line in runtime.lines] == [4, 8, 12, 15], "progress is reported when there is news"
    assert record["dev"]["kept"] == lines[-1]["dev"]

    model, trained = load(tmp_path / "run" / "model", device="cpu"), runtime.module.encoder.state_dict()
    assert (model.layers, model.pooling, model.max_length) == (2, "mean", load(job.parent).max_length)
    assert difference(model.encoder.state_dict(), trained) == 0.0
    assert difference(trained, load(stage.backbone, device="cpu").encoder.state_dict()) > 1e-3


def test_seconds_progress_and_checkpoints_by_the_clock_go_on_where_a_killed_run_has_been(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch takes 4 s to come and all else no time; the first of a process is part of its start. The first checkpoint is due
    3 s after that, the next 10 s after it: at steps 2 and 5."""
    now = [1000.0]
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def slow(stop: int) -> Any:
        def read(*args: Any) -> Iterator[LocalBatch]:
            for share in interrupted_at(stop)(*args):
                now[0] += 4
                yield share

        return read

    warm = {"beta_warmup_fraction": 0.5, "beta": 0.8}
    job = stage.job("latte", tmp_path / "run", rows=128, epochs=1.0, dev=False, settings=warm)
    with pytest.raises(Interrupted):
        train(job, Watched(read=slow(6)))
    assert [path.name for path in (job.folder / "checkpoints").glob("step-*.pt")] == ["step-0000005.pt"]
    record = train(job, Watched(read=slow(8)))
    lines = [json.loads(line) for line in (job.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["seconds"] for line in lines] == [0, 4, 8, 12, 16, 16, 20, 24]
    assert [line["examples_per_second"] for line in lines if line["step"] not in (1, 6)] == [16 / 4] * 6
    assert [line["beta"] for line in lines] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 0.8, 0.8, 0.8])
    assert record["timings"] == {"startup_seconds": 4.0, "train_seconds": 24.0, "last_start_seconds": 3 * 4.0}


def test_too_few_rows(stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="too few for one batch"):
        train(stage.job("ct", tmp_path / "run", rows=14), Watched())


@pytest.mark.parametrize(("rows", "options", "steps"), [
    (70, {"epochs": 3.0, "max_steps": 4}, 4), (70, {"epochs": 0.5}, 3), (70, {"epochs": 1.0, "min_steps": 12}, 15),
    (70, {"epochs": 1.0, "min_steps": 3}, 5), (70, {"epochs": 1.0, "min_steps": 12, "max_steps": 7}, 7),
    (1600, {"epochs": 1.1}, 110),  # 1.1 * 100 is 110.00000000000001
])  # fmt: skip
def test_the_number_of_steps(rows: int, options: dict[str, Any], steps: int) -> None:
    """70 rows are 5 batches of 16: passes are added until there are enough steps, 12 of which take 3."""
    recipe = DEFAULTS["nli"].replace(train=Train(**options))
    assert total_steps(recipe, BatchOrder(np.array([rows]), recipe.group, 16, 0)) == steps


# -- resuming ------------------------------------------------------------------------------------------------------------


def test_a_run_that_began_with_compiled_layers_does_not_go_on_without(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With them again it ends as one that was never interrupted; that there are none is said once."""
    if native.library() is None:
        pytest.skip("there is no compiler here")
    job = stage.job("nli", tmp_path / "run", checkpoint_every=2, dev=False, epochs=1.0)
    with pytest.raises(Interrupted):
        train(job, Watched(threads=1, read=interrupted_at(4)))
    native.library.cache_clear()
    with monkeypatch.context() as without:
        without.setenv("CXX", "no-such-compiler")
        for _ in range(2):
            with pytest.raises(RunFailed, match="began with compiled layers.*Install g"):
                train(job, Watched(threads=1))
    assert len([line for line in caplog.messages if "layers are not compiled here" in line]) == 1
    other = begin(job, Runtime("meta", threads=1))  # stands for a GPU, which has no use for them
    assert other["layout"]["fused_layers"]
    native.library.cache_clear()
    train(job, Watched(threads=1))
    whole = replace(job, folder=tmp_path / "whole")
    train(whole, Watched(threads=1))
    weights = [(of.folder / "model/model.safetensors").read_bytes() for of in (job, whole)]
    assert weights[0] == weights[1]


def test_the_layout_of_a_run_is_kept_on_resume(stage: Stage, tmp_path: Path) -> None:
    job = stage.job("nli", tmp_path / "run", precision="auto", checkpoint_every=2, dev=False, epochs=1.0)
    with pytest.raises(Interrupted):
        train(job, Watched(threads=1, read=interrupted_at(4)))
    record = read_json(job.folder / "run.json")
    assert record["status"] == "running" and record["layout"]["threads"] == 1
    # As if it had begun on a machine that multiplies bf16 natively and has no compiler.
    layout = {"world_size": 1, "threads": 1, "precision": "bf16", "fused_layers": False}
    assert layout.keys() == record["layout"].keys()
    write_record(job.folder / "run.json", record | {"layout": layout})
    run = Watched(threads=2)
    resumed = train(job, run)
    assert resumed["layout"] == layout and torch.get_num_threads() == 1
    assert run.module is not None and not run.module.encoder.fused
    assert resumed["started_at"] == record["started_at"]


def test_a_run_that_another_trains_is_left_alone(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of two commands at once on one storage that share a member: the second says so, and marks nothing as failed."""
    monkeypatch.setattr(loop, "ORPHAN_WAIT", 0.0)
    job = stage.job("nli", tmp_path / "run", dev=False, max_steps=1)
    folder = RunFolder(job.folder)
    with folder.lock("the first command"):
        folder.write({"run_id": job.id, "status": "running"})
        reason = attempt([job], Watched()).reason
        assert reason is not None and "is held by the first command" in reason
        assert folder.written() == {"run_id": job.id, "status": "running"} and not (job.folder / "error.log").exists()
    assert attempt([job], Watched()).reason is None


def test_a_failed_run_goes_on_and_forgets_its_failure(stage: Stage, tmp_path: Path) -> None:
    job = stage.job("nli", tmp_path / "run", checkpoint_every=2, dev=False, epochs=1.0)
    reason = attempt([job], Watched(read=interrupted_at(3))).reason
    assert reason is not None and "Interrupted: at step 3" in reason and "error.log" in reason
    assert read_json(job.folder / "run.json")["status"] == "failed"
    assert "Interrupted" in (job.folder / "error.log").read_text() and attempt([job], Watched()).reason is None
    record = read_json(job.folder / "run.json")
    assert record["status"] == "done" and "reason" not in record


def test_a_kill_between_the_last_step_and_the_record(stage: Stage, tmp_path: Path) -> None:
    job = stage.job("sts", tmp_path / "run", eval_every=2, epochs=1.0)
    with pytest.raises(Interrupted):
        train(job, DiesAfter(5))
    lines = metrics(job.folder)

    def read(windows: Windows, order: BatchOrder, start: int, stop: int, *share: int) -> Iterator[LocalBatch]:
        assert start == stop, "nothing is left to train on"
        return read_batches(windows, order, start, stop, *share)

    assert train(job, Watched(read=read))["status"] == "done" and metrics(job.folder) == lines
    whole = without(job, folder=tmp_path / "whole")
    train(whole, Watched())
    weights = [(of.folder / "model/model.safetensors").read_bytes() for of in (job, whole)]
    assert weights[0] == weights[1]


# -- selection -----------------------------------------------------------------------------------------------------------


def test_random_weights_are_those_of_the_seed(stage: Stage, tmp_path: Path) -> None:
    """With next to no rate they stay: each seed its own, none of the backbone's, of the spread that BERT begins with."""
    folders = [stage.backbone]
    for number, seed in enumerate((1, 1, 2)):
        job = stage.job("nli", tmp_path / str(number), max_steps=1, seed=seed, init="random", optim=STILL, dev=False)
        train(job, Watched())
        folders.append(job.folder / "model")
    name = "encoder.layer.0.attention.self.query.weight"
    given, first, again, other = (load_file(folder / "model.safetensors")[name] for folder in folders)
    assert torch.equal(first, again) and abs(float(first.std()) - 0.02) < 0.002
    assert (first - other).abs().mean() > 0.01 < (first - given).abs().mean()


def test_a_bootstrap_sample_is_what_is_trained_on(stage: Stage, tmp_path: Path) -> None:
    """The batches that a run reads hold rows twice, those of its seed."""
    seen: dict[str, list[int]] = {}

    def read(*args: Any) -> Iterator[LocalBatch]:
        for share in read_batches(*args):
            seen[name] += share.ids.tolist()
            yield share

    for name, seed in (("one", 1), ("other", 2)):
        job, seen[name] = stage.job("nli", tmp_path / name, rows=64, epochs=1.0, dev=False, seed=seed), []
        recipe = job.recipe.replace(data=job.recipe.data.replace(bootstrap=True))
        train(replace(job, recipe=recipe), Watched(read=read))
    assert len(seen["one"]) == 64 and len(set(seen["one"])) < 55 and sorted(seen["one"]) != sorted(seen["other"])


def test_the_best_encoder_on_dev_is_kept_and_no_checkpoint_but_it_and_the_last(stage: Stage, tmp_path: Path) -> None:
    job = stage.job("sts", tmp_path / "run", eval_every=1, keep="best", checkpoint_every=1, epochs=2.0)
    folder, seen = job.folder / "checkpoints", list[list[str]]()

    def read(*args: Any) -> Iterator[LocalBatch]:
        for share in read_batches(*args):
            seen.append(sorted(path.suffix for path in folder.glob("[!.]*")))
            yield share

    record = train(job, Watched(read=read))
    assert len(seen) >= 8 and all(names == [".pt", ".safetensors"] for names in seen[2:])
    scores = {line["step"]: line["dev"] for line in metrics(job.folder) if "dev" in line}
    assert len(scores) >= 8 and record["dev"]["kept"] == max(scores.values())
    assert record["kept"]["step"] == next(step for step, score in scores.items() if score == max(scores.values()))
    assert record["selected_by"] == "stsb-dev" and job.dev is not None
    found = job.dev.scores(load(job.folder / "model", device="cpu"))
    assert list(found) == ["spearman", "pearson"] and found["spearman"] != found["pearson"]
    assert found == pytest.approx(record["dev"]["scores"], abs=1e-6)
    assert record["dev"]["scores"]["spearman"] == record["dev"]["kept"]
    (line,) = (line for line in metrics(job.folder) if line["step"] == record["kept"]["step"])
    assert (line["dev"], line["dev_pearson"]) == tuple(record["dev"]["scores"].values())


@pytest.mark.parametrize(("options", "scores", "killed", "steps", "best"), [
    ({"patience": 2}, (0.1, 0.0, 0.2, 0.1, 0.1), None, 5, 3),  # a better score begins anew
    ({"patience": 3}, (0.1, 0.1, 0.1, 0.1), None, 4, 1),  # an equal score is no better
    ({"patience": 4}, (0.1, 0.2, 0.1, 0.1, 0.1, 0.1), Watched(read=interrupted_at(3)), 6, 2),  # killed on the way
    ({"patience": 2}, (0.1, 0.0, 0.0), DiesAfter(3), 3, 1),  # killed when it has stopped
    ({"patience": 2, "eval_first": True}, (0.3, 0.1, 0.2), None, 2, 0),  # the untrained model is the best
])  # fmt: skip
def test_patience_ends_a_run_so_many_evaluations_after_the_best(
    options: dict[str, Any], scores: tuple[float, ...], killed: Watched | None, steps: int, best: int,
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    every = None if isinstance(killed, DiesAfter) else 1
    job = stage.job("sts", tmp_path / "run", keep="best", eval_every=1, checkpoint_every=every, epochs=9.0, **options)
    coming = iter(scores)
    monkeypatch.setattr(type(job.dev), "scores", lambda *_: {"spearman": next(coming), "pearson": 0.0})
    if killed is not None:
        with pytest.raises(Interrupted):
            train(job, killed)
    record = train(job, Watched())
    assert (record["steps"], record["kept"]["step"], list(coming)) == (steps, best, [])


def test_ct_by_dev_keeps_the_better_of_both_encoders_over_all_evaluations(stage: Stage, tmp_path: Path) -> None:
    job = stage.job("ct", tmp_path, rows=75, keep="dev", eval_every=1, seed=0, epochs=1.0)
    record = train(job, Watched())
    assert record["kept"]["candidate"] in ("first", "second") and job.dev is not None
    kept = job.dev.scores(load(job.folder / "model", device="cpu"))["spearman"]
    assert kept == pytest.approx(record["dev"]["best"], abs=1e-6)
    assert record["dev"]["best"] == max(line["dev"] for line in metrics(job.folder))


def test_ct_keeps_the_second_encoder_of_the_last_step(stage: Stage, tmp_path: Path) -> None:
    job, runtime = stage.job("ct", tmp_path / "run", dev=False, epochs=1.0), Watched()
    assert train(job, runtime)["kept"] == {"step": 2, "candidate": "second"}
    kept = load(job.folder / "model", device="cpu").encoder.state_dict()
    assert runtime.module is not None and difference(kept, runtime.module.encoder.state_dict()) == 0.0
    assert difference(kept, runtime.module.first.state_dict()) > 0.0


# -- what goes wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"max_steps": 1}, {"checkpoint_every": 1}])
def test_infinite_weights_are_neither_kept_nor_saved(options: dict[str, int], stage: Stage, tmp_path: Path) -> None:
    """The loss of a step is that of the weights before it; after the last step there is no next loss."""
    beyond_float32 = Optim(name="adamw", lr=1e39, schedule="constant", warmup=0.0, clip=None)
    job = stage.job("nli", tmp_path / "run", dev=False, optim=beyond_float32, **options)
    with pytest.raises(RunFailed, match=r"weights are not finite after step 0; lower nli.optim.lr"):
        train(job, Watched())
    states = [torch.load(path, weights_only=True)["module"] for path in job.folder.rglob("step-*.pt")]
    assert all(bool(value.isfinite().all()) for state in states for value in state.values())
    assert not (job.folder / "model").exists()


def test_a_member_that_diverges_fails_alone(stage: Stage, tmp_path: Path) -> None:
    good = stage.job("nli", tmp_path / "good", dev=False, epochs=1.0)
    bad = without(stage.job("nli", tmp_path / "bad", dev=False, optim=HOT), id="bad")
    after = without(good, folder=tmp_path / "after")
    outcomes = [attempt(chain, Watched()).reason for chain in ([good], [bad, after])]
    assert outcomes[0] is None and outcomes[1] is not None and "bad" in outcomes[1] and "the loss is" in outcomes[1]
    assert not after.folder.exists(), "the stage after the failed one is not begun"


def test_a_gpu_that_is_not_wanted_is_left_alone(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # whoever uses it fails
    job = stage.job("nli", tmp_path / "run", epochs=0.5, dev=False)
    here, none = LocalExecutor(threads=1), Resources(gpus=0)
    assert here.train([[job]], none) == [None]
    assert [*here.map(lambda device: lambda unit: device, (), [1], none)] == ["cpu"]
    assert [*here.map(lambda device: lambda unit: device, (), [1], Resources())] == [None]


def test_a_run_with_a_bank_resumes_bit_for_bit(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 70 texts 40 are drawn, and the teachers' vectors are mapped."""
    monkeypatch.setattr("raysts.training.loop.BANK_TEXTS", 40)
    settings = {"loss": "cosine", "bank": 0.1}
    job = stage.job("sed", tmp_path / "whole", dev=False, checkpoint_every=2, max_steps=4, settings=settings)
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(32, 32)))
    np.save(tmp_path / "map.npy", turn.astype(np.float32))
    job = replace(job, to_target=tmp_path / "map.npy")
    whole, resumed = Watched(), Watched()
    train(job, whole)
    killed = without(job, folder=tmp_path / "killed")
    with pytest.raises(Interrupted):
        train(killed, Watched(read=interrupted_at(3)))
    train(killed, resumed)
    assert difference(whole.weights(), resumed.weights()) == 0.0
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "killed")
    draw, unit_NE, target_ND, _ = whole.module.bank
    assert len(draw) == 40 and torch.equal(draw, resumed.module.bank[0])
    torch.testing.assert_close(target_ND, unit_NE @ torch.from_numpy(turn).float())
