"""What every objective in ``CATALOG`` must do; a new one is tested unasked."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from gloo_ranks import IN_BF16, RESUMED, SPREAD, TWICE, WORLDS, Found, Worlds, batch_of, names_in
from small_runs import ALIKE, FEW, MAX_LENGTH, Interrupted, Stage, Watched, difference, interrupted_at, metrics, without

from raysts.data.batches import BatchOrder, examples_in, read_batches, rows_per_batch
from raysts.data.windows import Windows
from raysts.evaluation.dev import DEVS
from raysts.models.encoder import Encoder
from raysts.models.precision import autocast
from raysts.models.pretrained import load
from raysts.models.sentence_model import SentenceModel
from raysts.objectives import MODULES
from raysts.objectives.objective import Batch, Objective, VectorObjective
from raysts.recipes import names
from raysts.recipes.catalog import CATALOG, Settings
from raysts.recipes.overrides import apply_overrides, has_option
from raysts.recipes.recipe import DEFAULTS
from raysts.schema import TABLES, TEST_TABLES
from raysts.training.loop import train

pytestmark = pytest.mark.whole


EXAMPLES = 16
TEXTS = ["a dog runs", "the small dog and the cat are sleeping near the house", "a cat"]

CLOSED_FORM = ("whiten", "centre")
"""What is fitted in one pass, without a parameter that an optimiser moves."""


def each(names: Iterable[str], alike: pytest.Mark | tuple[()] = ()) -> pytest.MarkDecorator:
    """The objectives as cases, with a mark on those that are ``ALIKE``."""
    return pytest.mark.parametrize("name", [pytest.param(name, marks=alike if name in ALIKE else ()) for name in names])


every = each(CATALOG)
trained = each(name for name in CATALOG if name not in CLOSED_FORM)
each_module = each(CATALOG, pytest.mark.slow)


def build(name: str, stage: Stage, seed: int = 0, **settings: Any) -> Objective:
    """The objective on the tiny backbone, dropout off until told otherwise."""
    spec = CATALOG[name]
    encoder = load(stage.backbone, max_length=MAX_LENGTH, device="cpu").encoder
    torch.manual_seed(seed)
    return MODULES[name](spec.settings(**FEW.get(name, {}) | settings), encoder).eval()


def batch_for(name: str, stage: Stage, objective: Objective, examples: int = EXAMPLES) -> Batch:
    """One batch of real rows."""
    group = DEFAULTS[name].group
    store = stage.store(name, rows_per_batch(group, examples))
    windows = Windows(store, stage.teacher(store) if "teacher" in CATALOG[name].values else None)
    share = next(read_batches(windows, BatchOrder(windows.sizes, group, examples, 0), 0, 1))
    return objective.collate(share)


@every
def test_it_says_what_it_is(name: str) -> None:
    spec = CATALOG[name]
    assert MODULES.keys() == CATALOG.keys() and issubclass(spec.settings, Settings)
    assert spec.table in TABLES and spec.table not in TEST_TABLES
    columns = {column.name for column in TABLES[spec.table]}
    assert spec.texts and {*spec.texts, *spec.values} - {"teacher"} <= columns
    assert spec.keeps and spec.sentences >= 1 and spec.version >= 1 and spec.dev in DEVS
    group = DEFAULTS[name].group
    assert len(examples_in(group, rows_per_batch(group, EXAMPLES))) == EXAMPLES
    assert spec.batch_problem(EXAMPLES) is None and issubclass(MODULES[name], VectorObjective) == spec.vectors


@every
def test_users_can_name_it(name: str) -> None:
    """Its words are systems, its default recipe is its own, and the scales that it knows change options that it has."""
    spec = CATALOG[name]
    assert DEFAULTS[name].objective == name and set(spec.scales) <= set(names.SCALES)
    for suffix in spec.suffixes if "teacher" not in spec.values else ():
        system = names.pipeline(f"{name}{suffix}")
        assert list(system.stages) == [name] and system.members == spec.members
        assert (f"{name}{suffix}" in names.POST) == bool(spec.head)
        for scale, own in spec.scales.items():
            changes = {**spec.scales.get("paper", {}), **own} if scale == "paper-text" else own
            assert all(has_option(system, f"{name}.{key}") for key in changes)
            changed = apply_overrides(system, {f"{name}.{key}": value for key, value in changes.items()})
            assert names.pipeline(f"{name}{suffix}@{scale}").stages == changed.stages


@trained
def test_every_trainable_parameter_gets_a_gradient(name: str, stage: Stage) -> None:
    objective = build(name, stage)
    with torch.no_grad():
        for parameter in objective.parameters():  # a layer that begins as zero hides those before it
            parameter += 0.01 * torch.randn_like(parameter)
    loss, scalars = objective(batch_for(name, stage, objective))
    assert loss.shape == () and loss.dtype == torch.float32
    assert not any(value.requires_grad for value in scalars.values())
    loss.backward()
    for parameter_name, parameter in objective.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.isfinite().all(), parameter_name
            # Attention does not change when every key moves by the same vector: the gradient of their bias is zero.
            assert parameter.grad.abs().max() > 0 or parameter_name.endswith("key.bias"), parameter_name


@each_module
def test_its_loss_depends_on_the_seed_by_dropout_alone(name: str, stage: Stage) -> None:
    objective = build(name, stage)
    batch = batch_for(name, stage, objective)

    def loss_of(seed: int, dropout: bool) -> float:
        fresh = copy.deepcopy(objective).train(dropout)
        torch.manual_seed(seed)
        return float(fresh(batch)[0].detach())

    dropped, still = loss_of(1, True), loss_of(1, False)
    assert dropped != loss_of(2, True) and dropped != still == loss_of(2, False)


@every
def test_rows_of_weight_zero_do_not_count(name: str, stage: Stage) -> None:
    """A filler changes neither loss nor gradients."""
    objective = build(name, stage)
    batch = batch_for(name, stage, objective)
    examples = len(batch["weight"])
    keep = torch.arange(examples) < examples // 2
    few = {key: value[keep] for key, value in batch.items()}
    losses, gradients = [], []
    for part in (few, batch | {"weight": batch["weight"] * keep}):
        objective.zero_grad()
        loss, _ = objective(part)
        if name not in CLOSED_FORM:
            loss.backward()
        losses.append(float(loss.detach()))
        gradients.append({n: p.grad.clone() for n, p in objective.named_parameters() if p.grad is not None})
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert name in CLOSED_FORM or difference(gradients[0], gradients[1]) < 1e-4


@every
def test_candidates_are_saved_and_loaded_as_they_represent(name: str, stage: Stage, tmp_path: Path) -> None:
    objective = build(name, stage)
    tokenizer = load(stage.backbone, device="cpu").tokenizer
    assert objective.candidates()
    with torch.no_grad():
        for parameter in objective.parameters():
            parameter += 0.01 * torch.randn_like(parameter)
    found = []
    for candidate, encoder in objective.candidates().items():
        model = SentenceModel(encoder, tokenizer, MAX_LENGTH)
        assert model.encode(TEXTS).shape == (len(TEXTS), encoder.dim)
        model.save(tmp_path / candidate)
        again = load(tmp_path / candidate, device="cpu")
        assert again.max_length == MAX_LENGTH
        np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))
        found.append(again.encode(TEXTS))
    assert len({array.tobytes() for array in found}) == len(found), "candidates are different encoders"


@each_module
def test_a_run_that_is_killed_resumes_bit_for_bit(name: str, stage: Stage, tmp_path: Path) -> None:
    """Dropout on, dev evaluated, a checkpoint every other step, killed at a step that the name decides."""
    rows = rows_per_batch(DEFAULTS[name].group, 16) * 4 + 7
    job = stage.job(name, tmp_path / "whole", rows=rows, epochs=1.0, eval_every=3, checkpoint_every=2)
    whole = Watched()
    record = train(job, whole)
    killed = without(job, folder=tmp_path / "killed")
    step = 2 + crc32(name.encode()) % (record["steps"] - 2)
    with pytest.raises(Interrupted):
        train(killed, Watched(read=interrupted_at(step)))
    resumed = Watched()
    again = train(killed, resumed)
    assert difference(whole.weights(), resumed.weights()) == 0.0, step
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "killed"), step
    assert all(again[key] == record[key] for key in ("steps", "kept", "dev", "layout"))
    files = [(tmp_path / run / "model" / "model.safetensors").read_bytes() for run in ("whole", "killed")]
    assert files[0] == files[1]


# -- several processes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world", "name"),
    [
        pytest.param(world, name, marks=pytest.mark.slow if name in ALIKE else ())
        for world in WORLDS
        for name in names_in(world, CATALOG)
    ],
)
def test_several_processes_are_one(name: str, world: int, processes: Worlds) -> None:
    """Same global batch, dropout off, fp32; batches that 3 (and mostly 2) does not divide, a last one of one group.

    Ranks without a row in it take part all the same, and those that do not score the dev set wait for the one that does.
    """
    ranks, alone = processes[0][world], processes[1]
    spec = CATALOG[name]
    batch, rows = batch_of(spec)
    group = DEFAULTS[name].group
    order = BatchOrder(np.array([rows]), group, batch, 0)
    assert batch % 3 and order.steps_per_epoch == 3 and len(examples_in(group, order.rows_in(2))) < batch
    assert any(batch_of(of)[0] % 2 for of in CATALOG.values())
    for other in ranks[1:]:
        assert difference(ranks[0]["weights"][name], other["weights"][name]) == 0.0, "all end with the same weights"
    assert difference(ranks[0]["weights"][name], alone["weights"][name]) < 1e-5
    lines, expected = ranks[0]["metrics"][name], alone["metrics"][name]
    assert [line["step"] for line in lines] == [*range(1, 4 + 3 * (name in TWICE))]
    for line, one in zip(lines, expected, strict=True):
        assert line.keys() == one.keys() and line == pytest.approx(one, abs=2e-5)


@pytest.mark.parametrize("run", ["interrupted", "told", "grown", "shrunk"])
def test_two_processes_go_on_with_a_run(run: str, two_processes: Found) -> None:
    """Interrupted between two checkpoints; one of them told to end; begun in one process, and in three."""
    ranks, alone = two_processes
    for rank in ranks:
        if run in ("interrupted", "told"):
            assert difference(rank["weights"][run], rank["weights"][RESUMED]) == 0.0
            assert ranks[0]["metrics"][run] == ranks[0]["metrics"][RESUMED]
        assert difference(rank["weights"][run], ranks[0]["weights"][run]) == 0.0
        assert difference(rank["weights"][run], alone["weights"][RESUMED]) < 1e-5
        assert rank["told_at"] == ["step-0000004.pt"], "both saved at the step after the one of the notice"
    assert [line["step"] for line in ranks[0]["metrics"][run]] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("name", SPREAD)
def test_a_run_that_is_spread_over_two_processes_is_that_of_one(name: str, two_processes: Found) -> None:
    """One is interrupted and gone on with; weights, lines and the model are whole."""
    (first, second), alone = two_processes
    assert difference(first["spread"][name], alone["weights"][name]) < 1e-5
    assert all(value.numel() == 0 for value in second["spread"][name].values()), "the first process alone has them"
    for line, one in zip(first["spread_metrics"][name], alone["metrics"][name], strict=True):
        assert line == pytest.approx(one, abs=2e-5)
    spread, whole = (load(Path(found["folder"][name]) / "model", device="cpu") for found in (first, alone))
    np.testing.assert_allclose(spread.encode(TEXTS), whole.encode(TEXTS), atol=1e-5)
    assert spread.encoder.config.architectures == whole.encoder.config.architectures


def test_what_is_spread_is_put_together_in_bf16_and_kept_in_float32(two_processes: Found) -> None:
    (first, _), alone = two_processes
    assert first["numbers"] == {**dict.fromkeys(SPREAD, ["torch.float32"]), IN_BF16: ["torch.bfloat16"]}
    assert {value.dtype for value in first["spread"][IN_BF16].values()} == {torch.float32}
    assert 0.0 < difference(first["spread"][IN_BF16], alone["weights"][RESUMED]) < 0.01


# -- what is computed again in backward ----------------------------------------------------------------------------------


def gradients_and_numbers_held(
    objective: Objective, batch: Batch, precision: str = "fp32"
) -> tuple[float, dict[str, torch.Tensor], int]:
    """Loss, gradients, and how many bytes are held for backward; tensors of a parameter's own memory aside."""
    own = {parameter.untyped_storage().data_ptr() for parameter in objective.parameters()}
    held: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    torch.manual_seed(3)
    objective.zero_grad()
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, autocast(torch.device("cpu"), precision):
        loss, _ = objective(batch)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in objective.named_parameters() if p.grad is not None}
    return float(loss.detach()), gradients, sum(held.values())


@pytest.mark.parametrize("name", ["ct", "mlm", "latte"])  # of each shape: two encoders, tokens, frozen
def test_layers_that_are_computed_again_change_no_number(name: str, stage: Stage) -> None:
    """Dropout on: what is computed again drops the same."""
    objective = build(name, stage).train()
    batch = batch_for(name, stage, objective)
    loss, gradients, held = gradients_and_numbers_held(objective, batch)
    for module in objective.modules():
        if isinstance(module, Encoder):
            module.recompute_layers()
    loss_again, gradients_again, held_again = gradients_and_numbers_held(objective, batch)
    assert loss == loss_again and difference(gradients, gradients_again) == 0.0
    assert held_again < 0.7 * held or CATALOG[name].head, "what is fitted on a frozen encoder holds nothing of it"


@pytest.mark.parametrize(
    ("name", "precision"),
    [*((name, "fp32") for name, spec in CATALOG.items() if spec.vectors), ("simcse-sup", "bf16")],
)
def test_cached_gradients_are_those_of_the_whole_batch(
    name: str, precision: str, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout on; 16 examples in chunks of 5. The whole batch's graph is held from the same chunks."""
    objective = build(name, stage, grad_cache=5).train()
    batch = batch_for(name, stage, objective)
    cached_loss, cached_gradients, cached_held = gradients_and_numbers_held(objective, batch, precision)
    monkeypatch.setattr("raysts.objectives.objective.checkpoint", lambda embed, *rows, use_reentrant: embed(*rows))
    loss, gradients, held = gradients_and_numbers_held(objective, batch, precision)
    assert cached_loss == loss and difference(gradients, cached_gradients) < 1e-6
    assert max(float(value.abs().max()) for value in gradients.values()) > 1e-2 and cached_held < held / 2
    objective.eval()
    assert float(objective(batch)[0].detach()) == pytest.approx(float(build(name, stage)(batch)[0].detach()), abs=1e-6)
