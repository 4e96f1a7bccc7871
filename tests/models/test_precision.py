from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from raysts.errors import InputError
from raysts.models import precision
from raysts.models.pretrained import load

CPU = torch.device("cpu")
TEXTS = ["a dog runs", "the small dog and the cat are sleeping near the house"]


@pytest.mark.parametrize("native", [False, True])
def test_what_a_setting_stands_for(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "native_bf16", lambda device: native)
    found = {name: precision.resolve(name, CPU) for name in precision.PRECISIONS}
    assert found == {
        "auto": "bf16" if native else "fp32", "bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "tf32": "fp32",
    }  # fmt: skip
    for name in ("tf32", "fp32"):
        precision.autocast(torch.device("cuda"), name)
        assert torch.backends.cuda.matmul.allow_tf32 == (name == "tf32")


def test_a_model_embeds_in_what_it_is_told_to(tiny_backbone: Path) -> None:
    exact = load(tiny_backbone, device="cpu").encode(TEXTS)
    for name, same in (("fp32", True), ("tf32", True), ("bf16", False), ("fp16", False)):
        found = load(tiny_backbone, device="cpu", precision=name).encode(TEXTS)  # type: ignore[arg-type]
        assert found.dtype == np.float32 and np.array_equal(found, exact) == same
        np.testing.assert_allclose(found, exact, atol=0.05)


def test_a_model_in_less_has_its_weights_in_it_and_is_not_saved(tiny_backbone: Path, tmp_path: Path) -> None:
    model = load(tiny_backbone, device="cpu", precision="bf16")
    assert {p.dtype for p in model.encoder.backbone.parameters()} == {torch.bfloat16}
    with pytest.raises(ValueError, match=r"was loaded in bf16.* load it with precision='fp32' to save it"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    with pytest.raises(InputError, match="precision='bfloat16': must be one of auto, bf16"):
        load(tiny_backbone, device="cpu", precision="bfloat16")  # type: ignore[arg-type]
