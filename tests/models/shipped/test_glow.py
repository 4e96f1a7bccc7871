from __future__ import annotations

import ast
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from raysts.models.shipped import glow
from raysts.models.shipped.glow import Glow


def moved(flow: Glow) -> Glow:
    """The flow with every weight moved at random, so that nothing in it is zero or the identity."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return flow


def embeddings(rows: int, dim: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Correlated, off centre, of unequal scale, as embeddings are."""
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    return (torch.randn(rows, dim, generator=generator, dtype=torch.float64) @ mix + 3.0).to(dtype)


def mean(x_BD: Tensor) -> Tensor:
    return x_BD.mean(0)


def by_hand(flow: Glow, x: np.ndarray) -> np.ndarray:
    """z by the formulas, from the weights alone."""
    w = {name: value.numpy() for name, value in flow.state_dict().items()}

    def actnorm(x: np.ndarray, name: str) -> np.ndarray:
        return (x + w[f"{name}.bias"]) * np.exp(3 * w[f"{name}.logs"])

    left = []
    for level in range(len(flow.levels)):
        for number in range(flow.depth):
            step = f"levels.{level}.{number}"
            x = actnorm(x, f"{step}.actnorm")[:, ::-1]
            half = x.shape[1] // 2
            h, net = x[:, :half], f"{step}.shift"
            for layer in range(2):
                h = np.maximum(actnorm(h @ w[f"{net}.linear.{layer}.weight"].T, f"{net}.actnorm.{layer}"), 0)
            shift = (h @ w[f"{net}.out.weight"].T + w[f"{net}.out.bias"]) * np.exp(3 * w[f"{net}.logs"])
            x = np.concatenate([x[:, :half], x[:, half:] + shift], 1)
        left.append(x[:, x.shape[1] // 2 :])
        x = x[:, : x.shape[1] // 2]
    return np.concatenate([*left, x], 1)


@pytest.mark.parametrize("levels", [1, 3])
def test_z_is_what_the_formulas_say_and_the_log_determinant_that_of_the_jacobian(levels: int) -> None:
    torch.manual_seed(0)
    flow, x = Glow(16, levels, depth=3, width=5).double(), embeddings(40, 16)
    with torch.no_grad():
        flow.initialize(x, mean)
        first = flow.encode(x)
        z = moved(flow).encode(x)
    np.testing.assert_allclose(first.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(first.std(0, correction=0), 1, atol=1e-4)
    np.testing.assert_allclose(z.numpy(), by_hand(flow, x.numpy()), rtol=1e-10, atol=1e-10)
    assert float((z - x).abs().max()) > 0.1
    jacobian = torch.autograd.functional.jacobian(lambda row: flow.encode(row[None])[0], x[0])
    assert float(flow.log_det().detach()) == pytest.approx(float(torch.linalg.slogdet(jacobian).logabsdet), abs=1e-9)


@torch.no_grad()
def test_autocast_does_not_reach_the_flow() -> None:
    torch.manual_seed(0)
    flow, x = moved(Glow(16)), embeddings(4, 16, torch.float32)
    expected = flow.encode(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(flow.encode(x), expected, rtol=0, atol=0)


def test_impossible_sizes_are_refused() -> None:
    for wrong, said in (
        ({"dim": 18}, "4 must divide.* 18"),
        ({"dim": 300, "levels": 3}, "8 must divide.* 300"),
        ({"dim": 16, "levels": 0}, "levels=0"),
        ({"dim": 16, "width": -1}, "width=-1"),
    ):
        with pytest.raises(ValueError, match=said):
            Glow(**wrong)


@pytest.mark.parametrize("file", Path(glow.__file__).parent.glob("[!_]*.py"), ids=lambda file: file.name)
def test_an_exported_file_needs_nothing_of_raysts(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= {"torch", "transformers", "safetensors", *sys.stdlib_module_names}
