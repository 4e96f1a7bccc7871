"""Layers with adapters, which are in the weights of the model that is written, and compiled layers."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from run_commands import plan_of as plan
from small_runs import Interrupted, Stage, Watched, difference, interrupted_at
from torch import nn

from raysts.errors import InputError
from raysts.models.encoder import Encoder
from raysts.models.pretrained import load
from raysts.models.weights import SCALE, merge_adapters
from raysts.training import loop
from raysts.training.loop import train


@pytest.mark.parametrize(
    "name",
    ["ct", *(pytest.param(name, marks=pytest.mark.slow) for name in ("nli", "mlm"))],  # ct has two encoders
)
def test_adapters_make_a_plain_model(name: str, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted and gone on with: bit for bit the same."""
    weights: list[dict[str, torch.Tensor]] = []

    def looked_at(encoder: Encoder) -> None:
        weights.append({key: value.clone() for key, value in encoder.backbone.state_dict().items()})
        merge_adapters(encoder)

    monkeypatch.setattr(loop, "merge_adapters", looked_at)
    options: dict[str, Any] = {"checkpoint_every": 2, "dropout": False, "max_steps": 4, "dev": False}
    for folder in ("whole", "interrupted"):
        job = stage.job(name, tmp_path / folder, rows=60, lora=3, **options)
        if folder == "interrupted":
            with pytest.raises(Interrupted):
                train(job, Watched(read=interrupted_at(3)))
            (path,) = (job.folder / "checkpoints").glob("step-*.pt")
            saved = torch.load(path, weights_only=True)["module"]
            assert all("lora" in key for key in saved if "encoder.layer" in key), "adapters alone are saved"
        train(job, Watched())
    assert difference(*weights) == 0.0

    start, kept = load(stage.backbone, device="cpu").encoder.backbone, load(job.folder / "model", device="cpu")
    written, begun = kept.encoder.backbone.state_dict(), start.state_dict()
    assert written.keys() == begun.keys()
    linear = [f"{name}.weight" for name, module in start.named_modules() if isinstance(module, nn.Linear)]
    changed = {key for key in written if not torch.equal(written[key], begun[key])}
    assert changed == {key for key in linear if "encoder.layer" in key} and changed
    for key in changed:
        a, b = (weights[0][f"{key.removesuffix('.weight')}.lora_{which}.default.weight"] for which in "AB")
        assert a.shape[0] == 3 and torch.allclose(written[key], begun[key] + SCALE * b @ a, atol=1e-6)


@pytest.mark.slow  # the compiler takes a minute or two
def test_compiled_layers_train_as_plain_ones(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted and gone on with, in two layouts of rows; the model that is written is a plain one."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    weights, frames = {}, importlib.import_module("torch._dynamo.utils").counters["frames"]
    for compiled in (False, True):
        torch._dynamo.reset()
        known = frames["ok"]
        options = {"checkpoint_every": 2, "dropout": False, "max_steps": 4, "dev": False}
        job = stage.job("nli", tmp_path / str(compiled), compile=compiled, **options)
        if compiled:
            with pytest.raises(Interrupted):
                train(job, Watched(read=interrupted_at(3)))
        runtime = Watched()
        train(job, runtime)
        weights[compiled] = runtime.weights()
        assert (frames["ok"] > known) == compiled and (job.folder / "model" / "model.safetensors").is_file()
    assert difference(weights[False], weights[True]) < 1e-5


def test_what_lacks_its_package_or_compiler_or_does_not_go_together_is_not_begun(
    small_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, sharded = {"nli.train.compile": True}, {"resources.shard": True, "resources.workers": 2}
    real: Any = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "peft" else real(name, *rest))
    monkeypatch.setenv("CXX", "no-such-compiler")
    for asked, why in (
        (compiled | sharded, "resources.shard: not together with nli.train.comp"),
        (compiled, r"nli.train.compile=true: needs a C\+\+ compiler .* 'no-such-compiler' is not there"),
        ({"nli.train.lora": 4}, r"nli.train.lora=4: needs peft: pip install 'raysts\[lora\]'"),
    ):
        with pytest.raises(InputError, match=why):
            plan("nli", asked, data=small_world, storage=tmp_path)
    assert not any(tmp_path.iterdir())
