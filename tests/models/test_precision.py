from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import small_runs
import torch

from raysts.errors import InputError
from raysts.models import int8, native, precision
from raysts.models.pretrained import load
from raysts.recipes.names import pipeline
from raysts.recipes.overrides import apply_overrides

CPU = torch.device("cpu")
BYTES = pytest.mark.skipif(not torch.cpu._is_vnni_supported(), reason="this CPU multiplies no bytes")
TEXTS = ["a dog runs", "the small dog and the cat are sleeping near the house"]


@pytest.mark.parametrize("native", [False, True])
def test_what_a_setting_stands_for(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "native_bf16", lambda device: native)
    found = {name: precision.resolve(name, CPU) for name in precision.PRECISIONS if name != "int8"}
    assert found == {
        "auto": "bf16" if native else "fp32", "bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "tf32": "fp32",
    }  # fmt: skip


def test_a_model_embeds_in_what_it_is_told_to(tiny_backbone: Path) -> None:
    exact = load(tiny_backbone, device="cpu").encode(TEXTS)
    for name, same in (("fp32", True), ("tf32", True), ("bf16", False), ("fp16", False)):
        found = load(tiny_backbone, device="cpu", precision=name).encode(TEXTS)  # type: ignore[arg-type]
        assert found.dtype == np.float32 and np.array_equal(found, exact) == same
        np.testing.assert_allclose(found, exact, atol=0.05)


@pytest.mark.parametrize("name", ["bf16", pytest.param("int8", marks=BYTES)])
def test_a_model_in_less_has_its_weights_in_it_and_is_not_saved(
    name: precision.Precision, tiny_backbone: Path, tmp_path: Path
) -> None:
    model = load(tiny_backbone, device="cpu", precision=name)
    if name == "bf16" or precision.native_bf16(CPU):
        assert {p.dtype for p in model.encoder.backbone.parameters()} == {torch.bfloat16}
    with pytest.raises(ValueError, match=f"was loaded in {name}.* load it with precision='fp32' to save it"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


@BYTES
@pytest.mark.parametrize("family", ["bert", "distilbert", "mpnet", "qwen3"])
@pytest.mark.parametrize("compiled", [True, False])
def test_int8_rounds_and_no_more(family: str, compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of layers that are fused, of other packed ones, and of padded ones, with biases and without."""
    if not compiled:
        monkeypatch.setattr(native, "library", lambda: None)
    monkeypatch.setattr(precision, "native_bf16", lambda device: not compiled)
    folder = small_runs.write_backbone(tmp_path / family, family)
    exact, model = (load(folder, device="cpu", precision=name) for name in ("fp32", "int8"))
    assert model.encoder.in_int8
    for layer in model.encoder.layer_list():
        assert not [module for module in layer.modules() if isinstance(module, torch.nn.Linear)]
    a, b = (each.encode(TEXTS, normalize=True) for each in (exact, model))
    assert not np.array_equal(a, b)
    assert ((a * b).sum(1) > 0.9998).all()
    np.testing.assert_array_equal(copy.deepcopy(model).encode(TEXTS, normalize=True), b)


@BYTES
@pytest.mark.skipif(native.library() is None, reason="there is no C++ compiler")
def test_a_vector_in_int8_hangs_on_its_text_alone(tiny_backbone: Path) -> None:
    model, before = load(tiny_backbone, device="cpu", precision="int8"), torch.get_num_threads()
    found = model.encode([*TEXTS, "cat " * 60])
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            for row, text in enumerate(TEXTS):
                np.testing.assert_array_equal(model.encode(text), found[row])
    finally:
        torch.set_num_threads(before)


@BYTES
def test_a_linear_layer_of_bytes_is_to_the_nearest_step() -> None:
    """Exactly what its bytes are the product of, by both ways; a row of zeros is one of biases."""
    torch.manual_seed(0)
    given, x = torch.nn.Linear(48, 40), torch.randn(5, 48)
    x[2] = 0
    layer = int8.Linear.of(given)
    rows, scales = int8.in_bytes(x)
    meant = (rows.double() - 128) * scales[:, None]
    assert ((meant - x).abs().amax(1) <= 0.5001 * x.abs().amax(1) / int8.STEPS).all()
    weight = layer.weight.double() * layer.scales[:, None]
    np.testing.assert_allclose(layer(x).detach(), (meant @ weight.t() + layer.bias), atol=1e-5)
    np.testing.assert_array_equal(layer(x)[2], given.bias.detach())


def test_what_is_not_there_is_refused(tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="precision='bfloat16': must be one of auto, bf16"):
        load(tiny_backbone, device="cpu", precision="bfloat16")  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match="precision=int8: it computes on CPUs alone, and the device is 'cuda'; take bf16"
    ):
        load(tiny_backbone, device="cuda", precision="int8")
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    with pytest.raises(InputError, match="precision=int8: it needs a CPU with AVX512-VNNI"):
        load(tiny_backbone, device="cpu", precision="int8")


@pytest.mark.parametrize(
    "name, why", [("fp16", "gradients are too small"), ("int8", "no gradient goes through whole numbers")]
)
def test_training_in_what_is_for_embedding_is_refused_with_the_reason(name: str, why: str) -> None:
    system = pipeline("nli-sed")
    for changes in ({"nli.train.precision": name}, {"precision": name}):
        with pytest.raises(ValueError, match=f"precision={name} is for embedding alone: {why}"):
            apply_overrides(system, changes)
    teachers = {"precision": name, "train.precision": "fp32"}
    assert apply_overrides(system, teachers | {"resources.gpus": 0}).precision == name
    if name == "int8":
        with pytest.raises(
            ValueError, match="precision=int8 is for CPUs, and resources.gpus=None may be GPUs; set it to 0"
        ):
            apply_overrides(system, teachers)
    with pytest.raises(ValueError, match="precision='int4'"):
        apply_overrides(system, {"precision": "int4"})
