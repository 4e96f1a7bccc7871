import gloo_ranks
import pytest
import torch

from raysts.ops import collective


def test_one_process_is_the_identity() -> None:
    rows = torch.randn(4, 3, requires_grad=True)
    assert collective.world_size() == 1 and collective.gather(rows) is rows
    weights = torch.tensor([1.0, 0.0, 2.0, 1.0])
    (loss := collective.mean(rows.square().sum(-1), weights)).backward()
    assert torch.allclose(loss, (rows.square().sum(-1) * weights).sum() / 4)
    assert torch.allclose(rows.grad, 2 * rows.detach() * weights[:, None] / 4)
    assert not collective.total(rows).requires_grad


def test_of_two_processes_with_equal_rows_the_mean_is_that_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective, "world_size", lambda: 2)
    monkeypatch.setattr(collective, "total", lambda x: 2 * x.detach())
    rows, weights = torch.tensor([1.0, 5.0, 9.0], requires_grad=True), torch.tensor([1.0, 0.0, 3.0])
    loss = collective.mean(rows, weights)
    loss.backward()
    assert loss.item() == 7.0 and rows.grad.tolist() == [0.25, 0.0, 0.75]


@pytest.mark.parametrize(("count", "world", "sizes"), [(10, 4, [2, 3, 2, 3]), (3, 4, [1, 1, 1, 1]), (5, 1, [5])])
def test_processes_have_equal_parts_and_one_without_any_a_filler(count: int, world: int, sizes: list[int]) -> None:
    parts = [collective.part(count, rank, world) for rank in range(world)]
    assert [row for first, last in parts for row in range(first, last)] == [*range(count)]
    assert collective.sizes(count, world) == sizes


@pytest.mark.parametrize("world", gloo_ranks.WORLDS)
def test_a_mean_and_a_gather_of_uneven_rows_are_those_of_one_process(world: int, processes: gloo_ranks.Worlds) -> None:
    rows, weights = gloo_ranks.rows_of_all()
    w = torch.linspace(-1, 1, 4, dtype=torch.float64, requires_grad=True)
    mean = ((rows @ w).square() * weights).sum() / weights.sum()
    v = torch.linspace(-1, 1, 16, dtype=torch.float64).reshape(4, 4).requires_grad_()
    cross = gloo_ranks.cross_loss(rows @ v)
    (mean + cross).backward()
    expected = {"mean": mean, "mean_gradient": w.grad, "gathered": rows @ v, "cross": cross, "cross_gradient": v.grad}
    for found in processes[0][world]:
        assert found["world"] == world
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value.detach(), rtol=0, atol=1e-12)


def test_processes_that_train_together_fail_together(two_processes: gloo_ranks.Found) -> None:
    """Each of them knows the reason; none is left waiting for the others."""
    assert all("the loss is nan" in found["reason"] for found in two_processes[0])


def test_gather_sums_gradients_and_takes_a_rank_without_rows(two_processes: gloo_ranks.Found) -> None:
    ranks, _ = two_processes
    rows, _ = gloo_ranks.rows_of_all()
    for rank, found in enumerate(ranks):
        assert found["beside_gradient"].unique().tolist() == [rank + 1.0]
        assert found["x_gradient"].unique().tolist() == [3.0], "the sum of both ranks' gradients, 1 + 2"
        torch.testing.assert_close(found["lone"], rows[:3])
        assert found["lone_gradient"].shape == (0 if rank else 3, 4)
    assert ranks[0]["lone_gradient"].unique().tolist() == [2.0]


def test_a_total_has_no_gradient_and_a_vote_is_answered_once(two_processes: gloo_ranks.Found) -> None:
    for found in two_processes[0]:
        assert found["total"].tolist() == [3.0, 3.0] and not found["total_has_gradient"]
        assert found["votes"] == [0, 0, 1, 0, 2]
        assert found["vote_groups"] == 1, "of all runs: each group holds threads and open files"
    alone = collective.AsyncMax()
    assert [alone(number) for number in (0, 2, 0, 1)] == [0, 2, 0, 1]
