from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from small_runs import (
    HIDDEN,
    Interrupted,
    Stage,
    Watched,
    difference,
    interrupted_at,
    metrics,
    tiny_encoder,
    without,
    write_backbone,
)  # fmt: skip

from raysts.data.batches import BatchOrder, read_batches
from raysts.data.windows import Windows
from raysts.models import packing
from raysts.models.pretrained import load
from raysts.objectives import OBJECTIVES
from raysts.objectives.objective import LocalBatch
from raysts.pipeline.local import LocalExecutor, train_chains
from raysts.recipes.recipe import Optim, Pipeline, Resources
from raysts.storage.foreign import read_json
from raysts.training import stacked
from raysts.training.job import Job
from raysts.training.loop import train
from raysts.training.stacked import clip_each, stacks, train_stack

SEEDS = (7, 8, 9)
OPTIMS = {
    "nli": Optim(name="adamw", lr=1e-4, schedule="linear", warmup=0.1, weight_decay=0.01, clip=0.5),
    "ct": Optim(name="rmsprop", lr=1e-4, schedule="steps", milestones=(2, 4), factors=(1.0, 0.5, 0.1), clip=0.5),
    "sts": Optim(name="adam", lr=1e-4, schedule="constant", warmup=0.0, clip=0.5),
    "simcse-sup": Optim(lr=1e-4),
    "sed": Optim(name="adamw", lr=1e-4, schedule="linear", warmup=0.1, decay_all=True, weight_decay=0.01, clip=None),
}
"""All optimisers; a clip that bites, and none. Small steps: Adam makes whole steps of gradients that are rounding."""


def members(stage: Stage, folder: Path, objective: str, **options: Any) -> list[Job]:
    """Jobs that differ in their seeds alone."""
    given = {"optim": OPTIMS[objective], "dropout": False} | options
    return [
        without(stage.job(objective, folder / str(seed), seed=seed, **given), id=f"{objective}-{seed}",
                facts={"stage": objective, "member": number, "system": "test"})
        for number, seed in enumerate(SEEDS)
    ]  # fmt: skip


def trained(jobs: list[Job], **options: Any) -> list[Exception | None]:
    return train_stack(jobs, lambda job: Watched(**options))


def model_of(job: Job) -> dict[str, torch.Tensor]:
    return load_file(job.folder / "model" / "model.safetensors")


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def apart(jobs: list[Job], others: list[Job]) -> float:
    """Largest difference of two sets of runs in weights and metrics; what must be equal is asserted."""
    largest = 0.0
    for job, other in zip(jobs, others, strict=True):
        a, b = read_json(job.folder / "run.json"), read_json(other.folder / "run.json")
        assert a.keys() == b.keys() and a["layout"] == b["layout"] and a["timings"].keys() == b["timings"].keys()
        assert [a[name] for name in ("status", "steps", "kept", "selected_by", "seed")] == [
            b[name] for name in ("status", "steps", "kept", "selected_by", "seed")
        ]
        dev, expected_dev = a["dev"] or {}, b["dev"] or {}
        assert dev.pop("scores", {}) == pytest.approx(expected_dev.pop("scores", {}), abs=1e-5)
        assert dev == pytest.approx(expected_dev, abs=1e-5)
        assert read_json(job.folder / "recipe.json") == read_json(other.folder / "recipe.json")
        assert files_of(job.folder) == files_of(other.folder)
        largest = max(largest, difference(model_of(job), model_of(other)))
        for line, expected in zip(metrics(job.folder), metrics(other.folder), strict=True):
            assert line.keys() == expected.keys()
            largest = max(largest, *(abs(line[name] - expected[name]) for name in line))
    return largest


@pytest.mark.parametrize(
    ("objective", "family"),
    [("nli", "bert"), ("ct", "distilbert"), ("sts", "bert"), ("simcse-sup", "bert"), ("sed", "roberta")],
)
def test_members_trained_as_one_are_those_trained_alone(
    objective: str, family: str, stage: Stage, tmp_path: Path
) -> None:
    """Batches of their own order, a ragged last one, dev scores, the best or the last kept, every optimiser."""
    stage = replace(stage, backbone=write_backbone(tmp_path / "backbone", family))
    rows = OBJECTIVES[objective].rows_per_batch(16) * 3 + OBJECTIVES[objective].rows_per_batch(8)
    settings = {"head": "none", "false_negatives": "masked"} if objective == "simcse-sup" else None
    options = {"rows": rows, "epochs": 2.0, "settings": settings, "eval_every": 3, "checkpoint_every": 2}
    together, alone = (members(stage, tmp_path / name, objective, **options) for name in ("together", "alone"))
    assert trained(together) == [None] * 3
    for job in alone:
        train(job, Watched())
    assert apart(together, alone) < 1e-5
    assert "one of 3 trained as one" in read_json(together[0].folder / "run.json")["where"]
    start, own = load(stage.backbone, device="cpu").encoder.state_dict(), [model_of(job) for job in together]
    trained_on = load(together[0].folder / "model", device="cpu").encoder.state_dict()
    assert min(difference(trained_on, start), difference(own[0], own[1]), difference(own[1], own[2])) > 1e-4


def test_a_member_that_diverges_stops_alone(stage: Stage, tmp_path: Path) -> None:
    """One member's teacher has a broken row; the others end as if it had not been there."""
    together, alone = (members(stage, tmp_path / name, "sed", rows=70, batch=8) for name in ("together", "alone"))
    shard = next(path for path in Path(str(together[1].teacher)).glob("[!.]*"))
    table = pq.read_table(shard)
    rows = [None if i == 40 else row for i, row in enumerate(table.column("embedding").to_pylist())]
    broken = pa.array([[float("nan")] * HIDDEN if row is None else row for row in rows], table.schema.types[1])
    (tmp_path / "broken").mkdir()
    pq.write_table(table.set_column(1, "embedding", broken), tmp_path / "broken" / shard.name)
    together[1] = without(together[1], teacher=tmp_path / "broken")
    after = [without(job, folder=tmp_path / "after" / str(job.seed), parent=job.folder / "model") for job in together]

    reasons = train_chains([list(chain) for chain in zip(together, after, strict=True)], lambda job: Watched())
    assert reasons[0] is reasons[2] is None
    assert reasons[1] is not None and "run sed-8 (sed, member 1): the loss is nan between steps" in reasons[1]
    record = read_json(together[1].folder / "run.json")
    assert record["status"] == "failed" and record["reason"] in reasons[1]
    assert (together[1].folder / "error.log").read_text().startswith("Traceback")
    steps = [line["step"] for line in metrics(together[1].folder)]
    assert 1 < len(steps) < 27 and not (together[1].folder / "model").exists(), "it had begun well"
    assert not after[1].folder.exists(), "the stage after the failed one is not begun"
    assert all(read_json(after[i].folder / "run.json")["status"] == "done" for i in (0, 2))
    for i in (0, 2):
        train(alone[i], Watched())
    assert apart([together[0], together[2]], [alone[0], alone[2]]) < 1e-5


def test_patience_is_each_members_own(stage: Stage, tmp_path: Path) -> None:
    options = {"keep": "best", "patience": 2, "eval_every": 2, "epochs": 8.0, "optim": Optim(lr=3e-4, warmup=0.0)}
    together, alone = (members(stage, tmp_path / name, "sts", **options) for name in ("together", "alone"))
    assert trained(together) == [None] * 3
    for job in alone:
        train(job, Watched())
    assert apart(together, alone) < 2e-5
    ends = [read_json(job.folder / "run.json")["steps"] for job in together]
    assert len(set(ends)) > 1 and min(ends) < 40, f"they stop at different steps: {ends}"


# -- resuming ------------------------------------------------------------------------------------------------------------


def test_a_killed_stack_goes_on_bit_for_bit(stage: Stage, tmp_path: Path) -> None:
    """Dropout on: its draws are a function of the stack's seeds and the step."""
    options = {"dropout": True, "checkpoint_every": 3, "eval_every": 4}
    whole, killed = (members(stage, tmp_path / name, "ct", **options) for name in ("whole", "killed"))
    assert trained(whole) == [None] * 3
    assert all(isinstance(error, Interrupted) for error in trained(killed, read=interrupted_at(5)))
    sizes = []
    for job in killed:
        (path,) = (job.folder / "checkpoints").glob("step-*.pt")
        assert path.name == "step-0000003.pt"
        sizes.append(path.stat().st_size)
    alone = without(killed[0], folder=tmp_path / "alone")
    with pytest.raises(Interrupted):
        train(alone, Watched(read=interrupted_at(5)))
    size = (alone.folder / "checkpoints" / "step-0000003.pt").stat().st_size
    assert max(sizes) < 1.01 * size, "a checkpoint holds one member"
    assert trained(killed) == [None] * 3
    assert apart(whole, killed) == 0.0


def test_members_at_different_steps_go_on_apart(stage: Stage, tmp_path: Path) -> None:
    """A finished one, one further on than the other: checkpoints of runs alone and of stacks are the same thing."""
    options = {"checkpoint_every": 2, "epochs": 2.0}
    together, alone = (members(stage, tmp_path / name, "nli", **options) for name in ("together", "alone"))
    train(together[0], Watched())
    for job, stop in ((together[1], 7), (together[2], 3)):
        with pytest.raises(Interrupted):
            train(job, Watched(read=interrupted_at(stop)))
    began: list[int] = []

    def read(
        windows: Windows, order: BatchOrder, start: int, stop: int, rank: int = 0, world: int = 1
    ) -> Iterator[LocalBatch]:
        began.append(start)
        return read_batches(windows, order, start, stop, rank, world)

    assert trained(together, read=read) == [None] * 3
    assert began == [6, 2]
    assert [read_json(job.folder / "run.json")["where"] for job in together] == ["in-process"] * 3
    for job in alone:
        train(job, Watched())
    assert apart(together, alone) == 0.0


def test_a_stack_that_does_not_fit_is_halved(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    real = stacked.Stack.update

    def with_room_for_two(self: stacked.Stack, runs: Any, batches: Any) -> Any:
        tried.append(len(runs))
        if len(runs) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, runs, batches)

    monkeypatch.setattr(stacked.Stack, "update", with_room_for_two)
    jobs, alone = (members(stage, tmp_path / name, "nli", epochs=1.0, dev=False) for name in ("together", "alone"))
    assert trained(jobs) == [None] * 3
    assert tried == [3, 2, 2, 2, 2, 2]
    for job in alone:
        train(job, Watched())
    assert apart(jobs, alone) < 1e-5


# -- parts ---------------------------------------------------------------------------------------------------------------


def test_dropout_is_drawn_anew_for_every_member(stage: Stage, tmp_path: Path) -> None:
    for dropout in (False, True):
        twins = [
            stage.job("nli", tmp_path / f"{dropout}-{i}", dropout=dropout, dev=False, epochs=1.0) for i in range(2)
        ]
        assert trained(twins) == [None] * 2
        assert (difference(model_of(twins[0]), model_of(twins[1])) > 1e-4) == dropout


@pytest.mark.parametrize("overhead", [0, 30, 10_000])
@pytest.mark.parametrize("fused", [False, True])
def test_members_texts_are_packed_into_common_shapes(
    overhead: int, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths of their own, the same groups for all: each member has the vectors and the gradients it has alone."""
    monkeypatch.setitem(packing.GROUP_OVERHEAD, "cpu", overhead)
    K, B, T = 3, 9, 17
    encoders = [tiny_encoder(seed) for seed in range(K)]
    generator = torch.Generator().manual_seed(0)
    lengths_KB = torch.randint(2, T + 1, (K, B), generator=generator)
    ids_KBT = torch.randint(1, 50, (K, B, T), generator=generator) * (torch.arange(T) < lengths_KB[..., None])
    expected = [encoder(ids, lengths) for encoder, ids, lengths in zip(encoders, ids_KBT, lengths_KB, strict=True)]
    for out in expected:
        out.square().sum().backward()

    packed: list[packing.Packed] = []
    pack = packing.pack

    def watched(*arguments: Any, **options: Any) -> packing.Packed:
        packed.append(pack(*arguments, **options))
        return packed[-1]

    monkeypatch.setattr("raysts.models.encoder.pack", watched)
    if fused:  # what GPUs do
        monkeypatch.setattr(packing, "_attend_group", _as_on_gpus)
    parameters, buffers = torch.func.stack_module_state(encoders)  # type: ignore[arg-type]
    found = torch.vmap(lambda *state_and_batch: _call(encoders[0], *state_and_batch))(
        parameters, buffers, ids_KBT, lengths_KB
    )
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-6)
    found.square().sum().backward()
    for number, encoder in enumerate(encoders):
        for name, parameter in encoder.named_parameters():
            torch.testing.assert_close(parameters[name].grad[number], parameter.grad, rtol=1e-4, atol=1e-4, msg=name)

    (one,) = packed
    room = lengths_KB.sort().values.amax(0)
    if overhead == 10_000:
        assert one.sizes == [B * int(lengths_KB.max())]
    elif overhead == 0:
        assert sum(one.sizes) == int(room.sum()) < B * T, "no more than the longest of the i-th shortest texts"
    else:
        assert int(room.sum()) < sum(one.sizes) < B * T and len(one.sizes) > 1


def _call(encoder: Any, parameters: Any, buffers: Any, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.func.functional_call(encoder, (parameters, buffers), (ids, lengths))


def _as_on_gpus(group: Any, q: Any, k: Any, v: Any, scaling: float, dropout: float) -> torch.Tensor:
    parts = [x.unflatten(1, (group.rows, group.longest)) for x in (q, k, v)]
    return packing._fused(group, *parts, scaling, dropout)


def test_gradients_are_clipped_per_member() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes, scale_K = [(3, 4, 5), (3, 7), (3, 2, 2)], torch.tensor([0.01, 1.0, 100.0])
    gradients = [
        torch.randn(shape, generator=generator) * scale_K.view(-1, *[1] * (len(shape) - 1)) for shape in shapes
    ]
    own = [[torch.nn.Parameter(torch.zeros(shape[1:])) for shape in shapes] for _ in range(3)]
    for k, parameters in enumerate(own):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient[k].clone()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    clip_each(gradients, 1.0)
    for k, parameters in enumerate(own):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            torch.testing.assert_close(gradient[k], parameter.grad, rtol=1e-6, atol=0)


def test_what_is_stacked(stage: Stage, tmp_path: Path) -> None:
    nli, ct = members(stage, tmp_path, "nli"), members(stage, tmp_path, "ct")
    mlm = [stage.job("mlm", tmp_path / "mlm", seed=seed) for seed in SEEDS[:2]]
    assert stacks([[job] for job in nli], 2) == [[0, 1], [2]]
    assert stacks([[job] for job in nli], 1) == [[0], [1], [2]]
    chains = [[nli[0], ct[0]], [ct[1]], [nli[1], ct[1]], [mlm[0]], [mlm[1]], [ct[2]]]
    assert stacks(chains, 9) == [[0, 2], [1, 5], [3], [4]], "the same stages; mlm cannot be stacked"
    assert Resources(stack=4).most_stacked(10, 0) == 4 and Resources().most_stacked(10, 0) == 1
    assert Resources().most_stacked(10, 4) == 3 and Resources(stack=1).most_stacked(10, 4) == 1
    assert Resources(workers=2).most_stacked(10, 4) == 1
    with pytest.raises(ValueError, match="stack=3: members trained as one have one worker, not workers=2"):
        Resources(workers=2, stack=3)
    with pytest.raises(ValueError, match="stack=0 must be at least 1"):
        Resources(stack=0)


@pytest.mark.parametrize("option", [{"gradient_checkpointing": True}, {"settings": {"grad_cache": 4}}])
def test_what_computes_again_in_backward_is_not_stacked(option: dict[str, Any], stage: Stage, tmp_path: Path) -> None:
    jobs = members(stage, tmp_path, "simcse-sup", **option)
    assert stacks([[job] for job in jobs], 2) == [[0], [1], [2]]
    recipe = jobs[0].recipe
    assert Pipeline(name="one-by-one", stages={"simcse-sup": recipe}, resources=Resources(stack=1)).stages
    with pytest.raises(ValueError, match="resources.stack=2: simcse-sup cannot be trained as one with grad_cache, "):
        Pipeline(name="stacked", stages={"simcse-sup": recipe}, resources=Resources(stack=2))


def test_a_gpu_that_is_not_asked_for_is_left_alone(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # whoever uses it fails
    jobs = members(stage, tmp_path, "nli", epochs=0.5, dev=False)[:1]
    here, none = LocalExecutor(threads=1), Resources(gpus=0)
    assert here.train([jobs], none, lambda text: None) == [None]
    assert [*here.map(lambda device: lambda unit: device, (), [1], none, lambda text: None)] == ["cpu"]
    assert [*here.map(lambda device: lambda unit: device, (), [1], Resources(), lambda text: None)] == [None]


def test_members_of_two_stages_here(stage: Stage, tmp_path: Path) -> None:
    first, second = (members(stage, tmp_path / name, name, epochs=1.0, dev=False) for name in ("nli", "ct"))
    chains = [[a, without(b, parent=a.folder / "model")] for a, b in zip(first, second, strict=True)]
    said: list[str] = []
    assert LocalExecutor(threads=1, device="cpu").train(chains, Resources(stack=2), said.append) == [None] * 3
    where = [[read_json(job.folder / "run.json")["where"] for job in chain] for chain in chains]
    assert where == [["in-process, one of 2 trained as one"] * 2] * 2 + [["in-process"] * 2]
    assert [text.split(":")[0] for text in said] == [
        "member 0 nli", "member 1 nli", "member 0 ct", "member 1 ct", "member 2 nli", "member 2 ct",
    ]  # fmt: skip
