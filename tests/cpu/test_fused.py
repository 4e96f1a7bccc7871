import copy
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLayer

from raysts.cpu import fused, native
from raysts.models.packing import pack

WIDTH = 64
LENGTHS = (1, 5, 16, 17, 40, 2)

pytestmark = pytest.mark.skipif(native.library() is None, reason="there is no C++ compiler")


def layer_of(attention: float = 0.0, hidden: float = 0.0) -> BertLayer:
    torch.manual_seed(0)
    dropout = {"attention_probs_dropout_prob": attention, "hidden_dropout_prob": hidden}
    shape = {"hidden_size": WIDTH, "num_attention_heads": 2, "intermediate_size": 2 * WIDTH}
    layer = BertLayer(BertConfig(**shape, **dropout, attn_implementation="eager")).double().train()
    for parameter in layer.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return layer


def here(layer: BertLayer, x: Tensor) -> Tensor:
    ids = torch.ones(len(LENGTHS), max(LENGTHS), dtype=torch.int64)
    return layer(x, None, packed=pack(ids, torch.tensor(LENGTHS), None))


def by_text(layer: BertLayer, x: Tensor) -> Tensor:
    return torch.cat([layer(part) for part in x.split(LENGTHS, dim=1)], 1)


def results(run: Callable[[BertLayer, Tensor], Tensor], layer: BertLayer, x: Tensor) -> dict[str, Tensor]:
    """What comes out, and the gradients, of one fixed loss."""
    given = x.clone().requires_grad_()
    layer.zero_grad()
    out = run(layer, given)
    (out.double() * torch.linspace(-1, 1, out.numel()).view_as(out).sin()).sum().backward()
    grads = {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}
    grads.pop("attention.self.key.bias", None)  # it is zero
    return {name: value.detach().double() for name, value in {"": out, "x": given.grad, **grads}.items()}


def wrong(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    assert found.keys() == expected.keys()
    return {n: float((found[n] - value).abs().max() / value.abs().max()) for n, value in expected.items()}


@pytest.mark.parametrize("numbers", ["fp32", "autocast", "bf16"])
def test_a_layer_is_transformers_own(numbers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against float64: float32 to rounding, and bf16 no worse than torch itself, with the transpositions that are made for
    tiles; the second row has a number of tokens for which factors are transposed, and padding behind its texts."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    exact = layer_of()
    x = torch.randn(1, sum(LENGTHS), WIDTH, dtype=torch.float64)
    expected = results(by_text, exact, x)
    plain = copy.deepcopy(exact).to(torch.bfloat16 if numbers == "bf16" else torch.float32)
    layer = copy.deepcopy(plain)
    fused.install([layer])
    x = x.to(next(plain.parameters()).dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=numbers == "autocast"):
        ours, torchs = results(here, layer, x), results(by_text, plain, x)
        longer = torch.nn.functional.pad
        padded = results(lambda layer, x: here(layer, longer(x, (0, 0, 0, 7)))[:, : x.shape[1]], layer, x)
    for found in (ours, padded):
        for name, error in wrong(found, expected).items():
            assert error < (1e-5 if numbers == "fp32" else 1.5 * max(0.005, wrong(torchs, expected)[name])), name


def test_a_fused_layer_is_copied_and_pickled() -> None:
    layer, x = layer_of().float(), torch.randn(1, sum(LENGTHS), WIDTH)
    fused.install([layer])
    fused.install([layer])
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(other) is type(layer) and isinstance(other, BertLayer)
        assert torch.equal(here(other, x), here(layer, x))


def test_threads_change_no_bit_and_what_is_frozen_gets_nothing() -> None:
    layer = layer_of(0.1, 0.1).float()
    fused.install([layer])
    x, found = torch.randn(1, sum(LENGTHS), WIDTH), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        torch.manual_seed(1)
        found.append(results(here, layer, x))
    torch.set_num_threads(1)
    small = [name for name in found[0] if name == "" or "LayerNorm" in name]  # oneDNN's products may differ
    assert all(torch.equal(found[0][name], other[name]) for other in found[1:] for name in small)
    layer.attention.self.requires_grad_(False)
    layer.output.dense.weight.requires_grad_(False)
    torch.manual_seed(1)
    left = results(here, layer, x)
    assert left.keys() == {name for name in found[0] if "self" not in name and name != "output.dense.weight"}
    assert all(error < 1e-6 for error in wrong(left, {name: found[0][name] for name in left}).values())


def test_backward_drops_what_forward_dropped() -> None:
    """The slope along a random direction, by differences."""
    layer = layer_of(0.3, 0.3).float()
    fused.install([layer])
    x, direction = torch.randn(2, 1, sum(LENGTHS), WIDTH).double()

    def loss(x: Tensor) -> Tensor:
        torch.manual_seed(7)
        out = here(layer, x.float()).double()
        return (out * torch.linspace(-1, 1, out.numel()).view_as(out).sin()).sum()

    given = x.clone().requires_grad_()
    loss(given).backward()
    assert given.grad is not None
    slope, step = float((given.grad * direction).sum()), 1e-2
    by_differences = float((loss(x + step * direction) - loss(x - step * direction)).detach()) / (2 * step)
    assert by_differences == pytest.approx(slope, abs=1e-3 * float(given.grad.norm()))


def test_what_attention_drops() -> None:
    """Equal weights over values that are unit vectors: what comes out is which weights stay."""
    heads, width, p = 3, 32, 0.25
    text = torch.zeros(width, 3, heads, width)
    text[:, 2] = torch.eye(width)[:, None]
    qkv, starts = text.flatten(1).repeat(20, 1), torch.arange(21).int() * width

    def kept(seed: int) -> Tensor:
        mixed, _ = fused._attention(qkv, starts, heads, 1.0, p, seed)
        assert mixed.unique().tolist() == pytest.approx([0.0, 1 / (1 - p) / width])
        return mixed.view(-1, heads, width) > 0

    first, again, other = kept(5), kept(5), kept(2**40 + 5)
    assert [fused._draws_to_keep(p) for p in (0.0, 1e-12, 0.5, 1.0)] == [0, 2**32 - 1, 2**31, 1], "a number of 32 bits"
    assert torch.equal(first, again) and float(first.float().mean()) == pytest.approx(1 - p, abs=0.01)
    neighbours = (first[:, 0], first[:, 1]), (first[1:], first[:-1]), (first[..., 1:], first[..., :-1])
    for a, b in ((first, other), *neighbours):
        agree = float((a == b).float().mean())
        assert agree == pytest.approx(p**2 + (1 - p) ** 2, abs=0.015), "as of draws that know nothing of each other"


@pytest.mark.parametrize("limits", [(torch.float32, 0.0, 1e-6, 1e-6), (torch.bfloat16, 2.0**-8, 5e-5, 2e-4)])
def test_gelu_is_as_near_as_its_type_tells(limits: tuple[torch.dtype, float, float, float]) -> None:
    dtype, rounding, gelu, slope = limits
    x = torch.linspace(-8, 8, 64 * 256).view(64, 256).to(dtype)
    value, gradient, sums = torch.empty_like(x), torch.empty_like(x), torch.empty(256)
    native.call("gelu", dtype, value, x, *x.shape)
    native.call("gelu_backward", dtype, gradient, sums, torch.ones_like(x), x, *x.shape)
    exact = x.double().requires_grad_()
    expected = torch.nn.functional.gelu(exact)
    (slopes,) = torch.autograd.grad(expected.sum(), exact)
    for got, right, least in ((value, expected.detach(), gelu), (gradient, slopes, slope)):
        assert ((got - right).abs() <= rounding * right.abs() + least).all()
    assert torch.allclose(sums.double(), slopes.sum(0), atol=64 * slope)


def test_where_it_cannot_transformers_own_layer_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = layer_of().float()
    assert fused.parts_of(layer, torch.float32) and fused.parts_of(layer, torch.bfloat16)
    assert not fused.parts_of(layer, torch.float16) and not fused.parts_of(layer.double(), torch.float64)
    layer.float().intermediate.dense = torch.nn.Sequential(layer.intermediate.dense)  # type: ignore[assignment]
    assert not fused.parts_of(layer, torch.float32), "an adapter may be in it"
    for part, rest in (("self", "other"), ("other", "intermediate"), ("q_lin", "other"), ("other", "ffn")):
        strange = SimpleNamespace(attention=SimpleNamespace(**{part: None}), **{rest: None})
        assert fused.parts_of(strange, torch.float32) is None, "half of a form that is not one of those here"
    with pytest.raises(AssertionError):  # not contiguous
        native.call("transpose", None, torch.zeros(8, 16).t(), torch.zeros(8, 16), 8, 16)
    layer, made = layer_of().float(), native.library()._name  # type: ignore[union-attr]
    nowhere = {"XDG_CACHE_HOME": "/proc"}
    for environment in ({"CXX": "no-such-compiler"}, {"CXX": "false", **nowhere}, nowhere):
        native.library.cache_clear()
        with monkeypatch.context() as patched:
            for name, value in environment.items():
                patched.setenv(name, value)
            assert native.library() is None and not fused.parts_of(layer, torch.float32), environment
    # What another OpenMP is in does not load: that is seen once, not by every process that begins.
    compiler, asked = tmp_path / "compiler", tmp_path / "asked"
    compiler.write_text(f'#!/bin/sh\necho >> {asked}\nfor last; do :; done\necho "int main(" > "$last"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):
        native.library.cache_clear()
        assert native.library() is None
    assert len(asked.read_text().split("\n")) == 3, "to compile, and to link"
    monkeypatch.delenv("CXX")
    shutil.copy(made, tmp_path / "raysts")  # of another compiler it is another file
    native.library.cache_clear()
    assert native.library() is not None and len(list((tmp_path / "raysts").iterdir())) == 2
