from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
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
from raysts.pipeline.local import LocalExecutor
from raysts.recipes.recipe import DEFAULTS, Optim, Resources, Train
from raysts.storage.atomic import lock
from raysts.storage.bucket import Bucket
from raysts.storage.checksums import write_record
from raysts.storage.foreign import read_json
from raysts.storage.runs import RunFolder
from raysts.storage.store import Store
from raysts.training import checkpoint, loop
from raysts.training.attempt import attempt
from raysts.training.job import total_steps
from raysts.training.loop import train
from raysts.training.optim import learning_rate
from raysts.training.record import begin
from raysts.training.runtime import Runtime

HOT = Optim(name="adamw", lr=1e30, schedule="constant", warmup=0.0, clip=None)
STILL = Optim(name="adamw", lr=1e-12, schedule="constant", warmup=0.0)


class Untouchable(Watched):
    """A runtime for a run that must not be trained any more."""

    def wrap(self, module: torch.nn.Module, precision: str) -> torch.nn.Module:
        raise AssertionError("this run was to be left alone")


def test_the_gradient_that_the_optimiser_gets_is_clipped_to_its_norm(stage: Stage, tmp_path: Path) -> None:
    norms: list[float] = []

    def watch(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        gradients = [
            p.grad.to_dense().flatten()
            for group in optimizer.param_groups
            for p in group["params"]
            if p.grad is not None
        ]
        norms.append(float(torch.cat(gradients).norm()))

    hook = register_optimizer_step_pre_hook(watch)
    try:
        for clip in (None, 0.01):
            train(
                stage.job("nli", tmp_path / str(clip), max_steps=2, dev=False, optim=HOT.replace(lr=1e-5, clip=clip)),
                Watched(),
            )
    finally:
        hook.remove()
    assert min(norms[:2]) > 0.1 and norms[2:] == pytest.approx([0.01, 0.01], rel=1e-3)


def test_every_step_is_made_at_its_own_rate() -> None:
    """The gradient is 1, so a weight moves by the rate of its step."""

    class Weight(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def forward(self, batch: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            return self.weight * 1.0, {}

    steps, rates = 4, Optim(lr=0.5, schedule="linear", warmup=0.5, clip=None)
    module, state = Weight(), SimpleNamespace(step=0)
    run: Any = SimpleNamespace(
        job=SimpleNamespace(recipe=SimpleNamespace(train=Train(), optim=rates)), runtime=Watched(), precision="fp32",
        wrapped=module, objective=module, optimizer=torch.optim.SGD(module.parameters(), lr=99.0), state=state,
        seed_rng=lambda: None, rate=lambda step: learning_rate(rates, step, steps),
    )  # fmt: skip
    weights = [0.0]
    for state.step in range(steps):
        loop.update(run, {})
        weights.append(float(module.weight.detach()))
    assert np.diff(weights).tolist() == pytest.approx([-0.25, -0.5, -0.5, -0.25])


def test_every_step_draws_its_own_noise_whenever_the_run_began(stage: Stage, tmp_path: Path) -> None:
    seeds: list[int] = []
    hook = register_optimizer_step_pre_hook(lambda *_: seeds.append(torch.initial_seed()))
    try:
        train(stage.job("nli", tmp_path / "whole", max_steps=4, dev=False), Watched())
        for last in (2, None):  # killed after two steps, and gone on with
            job = stage.job("nli", tmp_path / "killed", max_steps=4, dev=False, checkpoint_every=1)
            with contextlib.suppress(Interrupted):
                train(job, Watched(read=interrupted_at(last)) if last else Watched())
    finally:
        hook.remove()
    assert len(set(seeds[:4])) == 4 and list(dict.fromkeys(seeds[4:])) == seeds[:4]


def test_gradient_checkpointing_ends_in_the_same_weights(stage: Stage, tmp_path: Path) -> None:
    runs = [Watched(), Watched()]
    for again, run in zip((False, True), runs, strict=True):
        train(stage.job("nli", tmp_path / str(again), max_steps=3, dev=False, gradient_checkpointing=again), run)
        assert run.module is not None
        layers = run.module.encoder.backbone.encoder.layer
        assert [("forward" in vars(layer)) for layer in layers] == [again, again]
    assert difference(runs[0].weights(), runs[1].weights()) == 0.0


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
    job = stage.job("nli", tmp_path / "run", export_layers=2, eval_every=4)
    runtime = Watched()
    record = train(job, runtime)
    assert record == read_json(tmp_path / "run" / "run.json")
    assert record["status"] == "done" and record["steps"] == 15 and record["run_id"] == job.id and record["seed"] == 7
    assert record["stage"] == "nli" and record["layout"]["world_size"] == 1 and record["layout"]["precision"] == "fp32"
    assert {"torch", "raysts", "transformers"} <= set(record["versions"]) and record["timings"]["train_seconds"] > 0
    assert record["kept"] == {"step": 15, "candidate": "encoder"} and record["selected_by"] is None
    assert read_json(tmp_path / "run" / "recipe.json")["batch"] == 16
    assert not (tmp_path / "run" / "checkpoints").exists()

    lines = metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == list(range(1, 16)) and lines[-1]["epoch"] == 3.0 and lines[-1]["lr"] > 0
    assert all(line["steps"] == 15 and np.isfinite(line["loss"]) and 0 <= line["accuracy"] <= 1 for line in lines)
    assert [line["step"] for line in lines if "dev" in line] == [4, 8, 12, 15]
    assert [line["step"] for line in runtime.lines] == [4, 8, 12, 15], "progress is reported when there is news"
    assert record["dev"]["kept"] == lines[-1]["dev"]

    model = load(tmp_path / "run" / "model", device="cpu")
    assert (model.layers, model.pooling, model.max_length) == (2, "mean", load(job.parent).max_length)
    trained = {
        name.removeprefix("encoder."): value for name, value in runtime.weights().items() if "classifier" not in name
    }
    assert difference(model.encoder.state_dict(), trained) == 0.0
    assert difference(trained, load(stage.backbone, device="cpu").encoder.state_dict()) > 1e-3


def test_a_run_that_another_process_finishes_meanwhile_is_not_run_again(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = stage.job("nli", tmp_path / "run", epochs=1.0, dev=False)
    outcome: list[Any] = []
    asked = threading.Event()

    lock_run = RunFolder.lock

    def asking(*arguments: Any) -> Any:
        asked.set()
        return lock_run(*arguments)

    monkeypatch.setattr(RunFolder, "lock", asking)

    def second() -> None:
        try:
            outcome.append(train(job, Untouchable()))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=second)
    with lock(job.folder / "writer.lock", "the first process"):
        thread.start()
        assert asked.wait(300), "the second has found the run unfinished and waits for the first"
        (job.folder / "model").mkdir()
        write_record(job.folder / "run.json", {"status": "done", "run_id": job.id})
    thread.join(300)
    assert outcome == [{"status": "done", "run_id": job.id}]


def test_too_few_rows(stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="too few for one batch"):
        train(stage.job("ct", tmp_path / "run", rows=14), Watched())


@pytest.mark.parametrize(
    ("rows", "options", "steps"),
    [
        (70, {"epochs": 3.0, "max_steps": 4}, 4), (70, {"epochs": 0.5}, 3), (70, {"epochs": 1.0, "min_steps": 12}, 15),
        (70, {"epochs": 1.0, "min_steps": 3}, 5), (70, {"epochs": 1.0, "min_steps": 12, "max_steps": 7}, 7),
        (1600, {"epochs": 1.1}, 110),  # 1.1 * 100 is 110.00000000000001
    ],
)  # fmt: skip
def test_the_number_of_steps(rows: int, options: dict[str, Any], steps: int) -> None:
    """70 rows are 5 batches of 16: passes are added until there are enough steps, 12 of which take 3."""
    recipe = DEFAULTS["nli"].replace(train=Train(**options))
    assert total_steps(recipe, BatchOrder(np.array([rows]), recipe.group, 16, 0)) == steps


def test_the_loss_of_a_line_is_the_mean_since_the_last(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine = stage.job("nli", tmp_path / "fine", dev=False, dropout=False, epochs=2.0)
    train(fine, Watched())
    # As in a long run: a line every fifth step only.
    monkeypatch.setattr(loop, "min", lambda *values: 5, raising=False)
    monkeypatch.setattr(loop, "total_steps", lambda recipe, order: 10)
    train(without(fine, folder=tmp_path / "coarse"), Watched())
    losses = [line["loss"] for line in metrics(tmp_path / "fine")]
    coarse = metrics(tmp_path / "coarse")
    assert [line["step"] for line in coarse] == [5, 10]
    for i, line in enumerate(coarse):
        assert line["loss"] == pytest.approx(float(np.mean(losses[5 * i : 5 * i + 5])), abs=1e-6)


# -- resuming ------------------------------------------------------------------------------------------------------------


def test_checkpoints_are_bounded(stage: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    seen: list[list[str]] = []

    def read(
        windows: Windows, order: BatchOrder, start: int, stop: int, rank: int = 0, world: int = 1
    ) -> Iterator[LocalBatch]:
        for share in read_batches(windows, order, start, stop, rank, world):
            if folder.exists():
                seen.append(sorted(path.suffix for path in folder.glob("[!.]*")))
            yield share

    train(stage.job("sts", tmp_path / "run", eval_every=2, checkpoint_every=1, epochs=2.0), Watched(read=read))
    assert len(seen) >= 8 and all(names.count(".pt") <= 1 and names.count(".safetensors") <= 1 for names in seen)
    assert [".pt", ".safetensors"] in seen


@pytest.mark.parametrize("gone", ["compiler", "cache"])
def test_a_run_that_began_with_compiled_layers_does_not_go_on_without(
    gone: str, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With them again it ends as one that was never interrupted; that there are none is said once."""
    if native.library() is None:
        pytest.skip("there is no compiler here")
    job = stage.job("nli", tmp_path / "run", checkpoint_every=2, dev=False, epochs=1.0)
    with pytest.raises(Interrupted):
        train(job, Watched(threads=1, read=interrupted_at(4)))
    native.library.cache_clear()
    with monkeypatch.context() as without:
        if gone == "compiler":
            without.setenv("CXX", "no-such-compiler")
        else:
            (tmp_path / "file").touch()
            without.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
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


def test_a_run_that_another_process_trains_is_left_as_it_is(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert "Interrupted" in (job.folder / "error.log").read_text()
    assert attempt([job], Watched()).reason is None
    record = read_json(job.folder / "run.json")
    assert record["status"] == "done" and "reason" not in record


def test_a_kill_between_the_last_step_and_the_record(stage: Stage, tmp_path: Path) -> None:
    class DiesAtTheEnd(Watched):
        def report(self, job: Any, line: dict[str, Any]) -> None:
            if line["step"] == line["steps"]:
                raise Interrupted

    job = stage.job("sts", tmp_path / "run", eval_every=2, epochs=1.0)
    with pytest.raises(Interrupted):
        train(job, DiesAtTheEnd())
    lines = metrics(job.folder)

    def read(
        windows: Windows, order: BatchOrder, start: int, stop: int, rank: int = 0, world: int = 1
    ) -> Iterator[LocalBatch]:
        assert start == stop, "nothing is left to train on"
        return read_batches(windows, order, start, stop, rank, world)

    assert train(job, Watched(read=read))["status"] == "done"
    assert metrics(job.folder) == lines
    whole = without(job, folder=tmp_path / "whole")
    train(whole, Watched())
    assert (job.folder / "model" / "model.safetensors").read_bytes() == (
        whole.folder / "model" / "model.safetensors"
    ).read_bytes()


# -- selection -----------------------------------------------------------------------------------------------------------


def test_random_weights_are_those_of_the_seed(stage: Stage, tmp_path: Path) -> None:
    """With next to no rate they stay: each seed its own, none of the backbone's, of the spread that BERT begins with."""
    found = []
    for number, (seed, init) in enumerate([(1, "random"), (1, "random"), (2, "random"), (1, "given")]):
        job = stage.job("nli", tmp_path / str(number), max_steps=1, seed=seed, init=init, optim=STILL)
        train(job, Watched())
        found.append(load_file(job.folder / "model" / "model.safetensors"))
    name = "encoder.layer.0.attention.self.query.weight"
    first, again, other, given = (state[name] for state in found)
    assert torch.equal(first, again) and abs(float(first.std()) - 0.02) < 0.002
    assert (first - other).abs().mean() > 0.01 < (first - given).abs().mean()


def test_a_bootstrap_sample_is_what_is_trained_on(stage: Stage, tmp_path: Path) -> None:
    """The batches that a run reads hold rows twice, those of its seed; ``data.bootstrap`` is all that asks for it."""
    seen: dict[str, list[int]] = {}

    def read(*args: Any) -> Iterator[LocalBatch]:
        for share in read_batches(*args):
            seen[name] += share.ids.tolist()
            yield share

    for name, seed, bootstrap in (("all", 1, False), ("one", 1, True), ("other", 2, True)):
        job, seen[name] = stage.job("nli", tmp_path / name, rows=64, epochs=1.0, dev=False, seed=seed), []
        data = job.recipe.data.replace(bootstrap=bootstrap)
        train(replace(job, recipe=job.recipe.replace(data=data)), Watched(read=read))
    assert sorted(seen["all"]) == list(range(64))
    assert len(seen["one"]) == 64 and len(set(seen["one"])) < 55 and sorted(seen["one"]) != sorted(seen["other"])


def test_the_best_encoder_on_dev_is_kept(stage: Stage, tmp_path: Path) -> None:
    job = stage.job("sts", tmp_path / "run", eval_every=1, keep="best", epochs=2.0)
    record = train(job, Watched())
    scores = {line["step"]: line["dev"] for line in metrics(job.folder) if "dev" in line}
    assert len(scores) >= 8 and record["dev"]["kept"] == max(scores.values())
    assert record["kept"]["step"] == next(step for step, score in scores.items() if score == max(scores.values()))
    assert record["selected_by"] == "stsb-dev"
    assert job.dev is not None
    found = job.dev.scores(load(job.folder / "model", device="cpu"))
    assert list(found) == ["spearman", "pearson"] and found["spearman"] != found["pearson"]
    assert found == pytest.approx(record["dev"]["scores"], abs=1e-6)
    assert record["dev"]["scores"]["spearman"] == record["dev"]["kept"]
    (line,) = (line for line in metrics(job.folder) if line["step"] == record["kept"]["step"])
    assert (line["dev"], line["dev_pearson"]) == tuple(record["dev"]["scores"].values())


def test_early_stopping_stops_and_restores_the_best(stage: Stage, tmp_path: Path) -> None:
    job = stage.job("sed", tmp_path / "run", keep="best", patience=2, eval_every=2, epochs=30.0)
    record = train(job, Watched())
    lines = [line for line in metrics(job.folder) if "dev" in line]
    scores = [line["dev"] for line in lines]
    assert record["steps"] == lines[-1]["step"] < lines[-1]["steps"], "it stopped before its time"
    assert int(np.argmax(scores)) == len(scores) - 3, "two evaluations after the best"
    assert record["kept"]["step"] == lines[-3]["step"]
    assert job.dev is not None
    assert job.dev.scores(load(job.folder / "model", device="cpu"))["spearman"] == pytest.approx(scores[-3], abs=1e-6)


def test_patience_counts_equal_scores_as_no_better(stage: Stage, tmp_path: Path) -> None:
    job = stage.job(
        "sts", tmp_path / "run", keep="best", patience=3, eval_every=1, epochs=9.0, optim=STILL, dropout=False
    )
    record = train(job, Watched())
    assert (record["steps"], record["kept"]["step"]) == (4, 1)


def test_patience_begins_anew_with_every_better_score(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = stage.job("sts", tmp_path / "run", keep="best", patience=2, eval_every=1)
    scores = iter((0.1, 0.0, 0.2, 0.1, 0.1, 0.3))
    monkeypatch.setattr(type(job.dev), "scores", lambda *_: {"spearman": next(scores), "pearson": 0.0})
    record = train(job, Watched())
    assert (record["steps"], record["kept"]["step"]) == (5, 3)


class DiesAtStep3(Watched):
    def report(self, job: Any, line: dict[str, Any]) -> None:
        if line["step"] == 3:
            raise Interrupted


@pytest.mark.parametrize(
    ("patience", "every", "killed", "steps"),
    [(5, 1, Watched(read=interrupted_at(3)), 6), (2, None, DiesAtStep3(), 3)],
    ids=["while it counts", "when it has stopped"],
)
def test_patience_survives_a_kill(
    patience: int, every: int | None, killed: Watched, steps: int, stage: Stage, tmp_path: Path
) -> None:
    job = stage.job(
        "sts", tmp_path / "run", keep="best", patience=patience, eval_every=1, checkpoint_every=every, epochs=9.0,
        optim=STILL, dropout=False,
    )  # fmt: skip
    with pytest.raises(Interrupted):
        train(job, killed)
    assert train(job, Watched())["steps"] == steps


def test_ct_by_dev_keeps_the_better_of_both_encoders_over_all_evaluations(stage: Stage, tmp_path: Path) -> None:
    job = stage.job("ct", tmp_path, rows=75, keep="dev", eval_every=1, seed=0, epochs=1.0)
    record = train(job, Watched())
    assert record["kept"]["candidate"] in ("first", "second")
    assert job.dev is not None
    kept = job.dev.scores(load(job.folder / "model", device="cpu"))["spearman"]
    assert kept == pytest.approx(record["dev"]["best"], abs=1e-6)
    assert record["dev"]["best"] == max(line["dev"] for line in metrics(job.folder))


def test_ct_keeps_the_second_encoder_of_the_last_step(stage: Stage, tmp_path: Path) -> None:
    job, runtime = stage.job("ct", tmp_path / "run", eval_every=1), Watched()
    assert train(job, runtime)["kept"] == {"step": 6, "candidate": "second"}
    found = load(job.folder / "model", device="cpu").encoder.state_dict()
    weights = runtime.weights()
    second = {name.removeprefix("encoder."): value for name, value in weights.items() if name.startswith("encoder.")}
    first = {name.removeprefix("first."): value for name, value in weights.items() if name.startswith("first.")}
    assert difference(found, second) == 0.0 and difference(found, first) > 0.0


# -- what goes wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"max_steps": 1}, {"checkpoint_every": 1}])
def test_weights_that_are_not_finite_are_neither_kept_nor_saved(
    options: dict[str, int], stage: Stage, tmp_path: Path
) -> None:
    """The loss of a step is that of the weights before it; after the last step there is no next loss."""
    beyond_float32 = Optim(name="adamw", lr=1e39, schedule="constant", warmup=0.0, clip=None)
    job = stage.job("nli", tmp_path / "run", dev=False, optim=beyond_float32, **options)
    with pytest.raises(RunFailed):
        train(job, Watched())
    states = [torch.load(path, weights_only=True)["module"] for path in job.folder.rglob("step-*.pt")]
    assert all(bool(value.isfinite().all()) for state in states for value in state.values())
    assert not (job.folder / "model").exists()


def test_a_member_that_diverges_fails_alone(stage: Stage, tmp_path: Path) -> None:
    good = stage.job("nli", tmp_path / "good", dev=False, epochs=1.0)
    bad = without(stage.job("nli", tmp_path / "bad", dev=False, optim=HOT), id="bad")
    after = without(good, folder=tmp_path / "after")
    outcomes = [attempt(chain, Watched()).reason for chain in ([good], [bad, after])]
    assert outcomes[0] is None and outcomes[1] is not None and "bad" in outcomes[1]
    assert not after.folder.exists(), "the stage after the failed one is not begun"


def test_a_gpu_that_is_not_asked_for_is_left_alone(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # whoever uses it fails
    job = stage.job("nli", tmp_path / "run", epochs=0.5, dev=False)
    here, none = LocalExecutor(threads=1), Resources(gpus=0)
    assert here.train([[job]], none) == [None]
    assert [*here.map(lambda device: lambda unit: device, (), [1], none)] == ["cpu"]
    assert [*here.map(lambda device: lambda unit: device, (), [1], Resources())] == [None]


def test_a_run_with_a_bank_resumes_bit_for_bit(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 70 texts 40 are drawn, and the teachers' vectors are mapped."""
    monkeypatch.setattr("raysts.training.loop.BANK_TEXTS", 40)
    job = stage.job("sed", tmp_path / "whole", dev=False, checkpoint_every=2, settings={"loss": "cosine", "bank": 0.1})
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(32, 32)))
    np.save(tmp_path / "map.npy", turn.astype(np.float32))
    job = replace(job, to_target=tmp_path / "map.npy")
    whole, resumed = Watched(), Watched()
    train(job, whole)
    killed = without(job, folder=tmp_path / "killed")
    with pytest.raises(Interrupted):
        train(killed, Watched(read=interrupted_at(7)))
    train(killed, resumed)
    assert difference(whole.weights(), resumed.weights()) == 0.0
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "killed")
    plain = Watched()
    train(
        replace(
            job, folder=tmp_path / "plain", recipe=job.recipe.replace(settings=job.recipe.settings.replace(bank=0.0))
        ),
        plain,
    )
    assert difference(whole.weights(), plain.weights()) > 0.0
    draw = whole.module.bank[0]
    assert len(draw) == 40 and torch.equal(draw, resumed.module.bank[0])
