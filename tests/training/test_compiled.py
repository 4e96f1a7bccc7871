"""Compiled layers train as plain ones do."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
from run_commands import plan_of as plan
from small_runs import Interrupted, Stage, Watched, difference, interrupted_at

from raysts.errors import InputError
from raysts.training.loop import train


@pytest.mark.slow  # the compiler takes a minute or two
def test_a_run_of_compiled_layers_is_that_of_plain_ones_but_for_rounding(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted and gone on with, in two layouts of rows; the model that is written is a plain one."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    weights, frames = {}, importlib.import_module("torch._dynamo.utils").counters["frames"]
    for compiled in (False, True):
        torch._dynamo.reset()
        known = frames["ok"]
        job = stage.job(
            "nli", tmp_path / str(compiled), compile=compiled, checkpoint_every=2, dropout=False, max_steps=4, dev=False
        )
        if compiled:
            with pytest.raises(Interrupted):
                train(job, Watched(read=interrupted_at(3)))
        runtime = Watched()
        train(job, runtime)
        weights[compiled] = runtime.weights()
        assert (frames["ok"] > known) == compiled
        assert (job.folder / "model" / "model.safetensors").is_file()
    assert difference(weights[False], weights[True]) < 1e-5


def test_without_a_compiler_or_with_what_does_not_go_with_it_nothing_starts(
    small_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"nli.train.compile": True}
    sharded = {"resources.shard": True, "resources.workers": 2}
    with pytest.raises(InputError, match=r"resources.shard: not together with nli.train.compile"):
        plan("nli", asked | sharded, data=small_world, storage=tmp_path)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        InputError, match=r"nli.train.compile=true: needs a C\+\+ compiler .* 'no-such-compiler' is not there"
    ):
        plan("nli", asked, data=small_world, storage=tmp_path)
    assert not any(tmp_path.iterdir())
