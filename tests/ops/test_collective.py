from __future__ import annotations

from typing import Any

import gloo_ranks
import pytest
import torch

from raysts.ops import collective

Found = tuple[list[dict[str, Any]], dict[str, Any]]
Worlds = tuple[dict[int, list[dict[str, Any]]], dict[str, Any]]


def test_one_process_is_the_identity() -> None:
    rows = torch.randn(4, 3, requires_grad=True)
    assert collective.world_size() == 1
    assert collective.gather(rows) is rows
    loss = collective.mean(rows.square().sum(-1), torch.tensor([1.0, 0.0, 2.0, 1.0]))
    expected = (rows.square().sum(-1) * torch.tensor([1.0, 0.0, 2.0, 1.0])).sum() / 4
    assert torch.allclose(loss, expected)
    loss.backward()
    assert torch.allclose(rows.grad, 2 * rows.detach() * torch.tensor([1.0, 0.0, 2.0, 1.0])[:, None] / 4)
    assert not collective.total(rows).requires_grad


@pytest.mark.parametrize("world", gloo_ranks.WORLDS)
def test_mean_of_uneven_rows_is_the_global_mean_on_every_rank(world: int, processes: Worlds) -> None:
    ranks = processes[0][world]
    rows, weights = gloo_ranks.rows_of_all()
    w = torch.linspace(-1, 1, 4, dtype=torch.float64, requires_grad=True)
    expected = ((rows @ w).square() * weights).sum() / weights.sum()
    expected.backward()
    for found in ranks:
        assert found["world"] == world
        assert float(found["mean"]) == pytest.approx(float(expected.detach()), abs=1e-12)
        torch.testing.assert_close(found["mean_gradient"], w.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("world", gloo_ranks.WORLDS)
def test_gather_puts_rows_in_rank_order_with_gradients(world: int, processes: Worlds) -> None:
    ranks = processes[0][world]
    rows, _ = gloo_ranks.rows_of_all()
    v = torch.linspace(-1, 1, 16, dtype=torch.float64).reshape(4, 4).requires_grad_()
    expected = gloo_ranks.cross_loss(rows @ v)
    expected.backward()
    for found in ranks:
        torch.testing.assert_close(found["gathered"], (rows @ v).detach(), rtol=0, atol=1e-12)
        assert float(found["cross"]) == pytest.approx(float(expected.detach()), abs=1e-12)
        torch.testing.assert_close(found["cross_gradient"], v.grad, rtol=0, atol=1e-12)


def test_gather_does_not_touch_the_gradient_of_others(two_processes: Found) -> None:
    ranks, _ = two_processes
    for rank, found in enumerate(ranks):
        assert found["beside_gradient"].unique().tolist() == [rank + 1.0]
        assert found["x_gradient"].unique().tolist() == [3.0], "the sum of both ranks' gradients, 1 + 2"


def test_gather_where_a_rank_has_no_rows(two_processes: Found) -> None:
    ranks, _ = two_processes
    rows, _ = gloo_ranks.rows_of_all()
    for found in ranks:
        torch.testing.assert_close(found["lone"], rows[:3])
    assert ranks[0]["lone_gradient"].shape == (3, 4) and ranks[0]["lone_gradient"].unique().tolist() == [2.0]
    assert ranks[1]["lone_gradient"].shape == (0, 4)


def test_total_has_no_gradient(two_processes: Found) -> None:
    for found in two_processes[0]:
        assert found["total"].tolist() == [3.0, 3.0] and not found["total_has_gradient"]


def test_a_vote_is_answered_at_the_next_call_and_once(two_processes: Found) -> None:
    for found in two_processes[0]:
        assert found["votes"] == [0, 0, 1, 0, 2]
        assert found["vote_groups"] == 1, "of all runs: each group holds threads and open files"


def test_a_vote_of_one_is_answered_at_once() -> None:
    vote = collective.AsyncMax()
    assert [vote(number) for number in (0, 2, 0, 1)] == [0, 2, 0, 1]
