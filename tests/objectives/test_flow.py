from __future__ import annotations

import numpy as np
import pytest
import torch
from small_runs import share_of, tiny_encoder

from raysts.models.tokens import Tokens
from raysts.objectives.flow import Flow
from raysts.objectives.objective import Batch
from raysts.recipes.catalog import FlowSettings
from raysts.training import checkpoint

LENGTHS = np.array([3, 5, 7, 6, 4, 2, 8, 3])
TEXTS = Tokens(np.random.default_rng(0).integers(1, 50, LENGTHS.sum()).astype(np.int32), np.r_[0, np.cumsum(LENGTHS)])


def made(**settings: int) -> Flow:
    torch.manual_seed(0)
    return Flow(FlowSettings(**settings), tiny_encoder())


def batch(objective: Flow, weight: list[float]) -> Batch:
    examples = [(i,) for i in range(len(weight))]
    return objective.collate(share_of({"sentence": TEXTS}, examples, np.array(weight, np.float32)))


def test_the_loss_is_the_mean_of_bits_per_dimension() -> None:
    """After the first call: embeddings, then -log2 of the density of N(0, I) after the change of variables."""
    objective = made()
    objective(batch(objective, [1.0] * 8))
    found = batch(objective, [1, 0, 1, 1])
    loss, scalars = objective(found)
    flow = objective.head.shipped
    with torch.no_grad():
        x = objective.encoder(found["sentence"], found["sentence_length"]).double()
        jacobian = torch.autograd.functional.jacobian(lambda row: flow.encode(row[None])[0], x[0])
        prior = torch.distributions.MultivariateNormal(torch.zeros(16).double(), torch.eye(16).double())
        bits = -(prior.log_prob(flow.encode(x)) + torch.linalg.slogdet(jacobian).logabsdet) / (16 * np.log(2))
    assert float(loss.detach()) == pytest.approx(float(bits[[0, 2, 3]].mean()), abs=1e-5) and scalars == {}


def test_the_first_batch_alone_initialises_and_only_with_rows_that_count() -> None:
    with_fillers, without = made(), made()
    with_fillers(batch(with_fillers, [1, 1, 1, 1, 1, 0, 0, 0]))
    without({name: value[:5] for name, value in batch(without, [1.0] * 8).items()})
    first = {name: value.clone() for name, value in without.state_dict().items()}
    for name, value in with_fillers.state_dict().items():
        torch.testing.assert_close(value, first[name], rtol=0, atol=1e-5, msg=name)
    without(batch(without, [1.0] * 8))
    resumed = made()
    resumed.load_state_dict(first)
    resumed(batch(resumed, [1.0] * 8))
    for objective in (without, resumed):
        assert all(torch.equal(value, first[name]) for name, value in objective.state_dict().items())


def test_the_model_is_frozen_and_the_flow_is_its_head() -> None:
    objective = made(levels=3, depth=2, width=5)
    loss, _ = objective(batch(objective, [1.0] * 8))
    loss.backward()
    assert all(parameter.grad is None for parameter in objective.encoder.parameters())
    assert {name.split(".")[0] for name in checkpoint.trained_state(objective) if "position" not in name} == {"head"}
    (model,) = objective.candidates().values()
    assert model.dim == 16 and {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    with torch.no_grad():
        x = objective.encoder(*TEXTS.pad(0))
        torch.testing.assert_close(model(*TEXTS.pad(0)), objective.head(x.double()).float(), rtol=0, atol=1e-5)
    assert objective.head.config() == {"dim": 16, "levels": 3, "depth": 2, "width": 5}
