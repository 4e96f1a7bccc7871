"""What training and embedding ask of the host on a device that is not the CPU, counted on ``meta``, which holds no data.

raysts takes there the branches that it takes on a GPU. A read of a value makes the host wait for all that it has launched;
so does a tensor that is made on the device of the host's values.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import ALIKE, Stage, tiny_encoder
from torch.utils._python_dispatch import TorchDispatchMode

import raysts
from raysts.models.encoder import Encoder
from raysts.models.sentence_model import represent_tokens
from raysts.models.tokens import Tokens
from raysts.recipes.catalog import CATALOG
from raysts.recipes.recipe import DEFAULTS
from raysts.training.loop import Run, update
from raysts.training.runtime import Runtime

META = torch.device("meta")
SHAPED_BY_VALUES = ("nonzero", "masked_select", "_unique2", "unique_dim", "repeat_interleave")
PACKAGE = str(Path(raysts.__file__).parent)


class Traffic(TorchDispatchMode):
    """Counts, under the lines of raysts that asked: ``reads`` of values, ``creations`` on the device of the host's values,
    ``copies`` to the device; and the ``places`` that a linear layer of each encoder works on."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.creations: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self.places = 0
        self.hooks: list[Any] = []
        for encoder in [part for part in module.modules() if isinstance(part, Encoder)]:
            linear = next(part for part in encoder.modules() if isinstance(part, torch.nn.Linear))
            self.hooks.append(linear.register_forward_pre_hook(self._count))

    def __enter__(self) -> Traffic:
        self.make = torch.tensor  # it goes past dispatch modes
        torch.tensor = self._tensor  # type: ignore[assignment]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.tensor = self.make  # type: ignore[assignment]
        for hook in self.hooks:
            hook.remove()
        super().__exit__(*error)

    def _tensor(self, *args: Any, **options: Any) -> torch.Tensor:
        made = self.make(*args, **options)
        if made.device == META:
            self.creations[where()] += 1
        return made

    def _count(self, module: Any, inputs: Any) -> None:
        self.places += inputs[0].shape[:-1].numel()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = function._schema.name.removeprefix("aten::"), kwargs or {}
        there = any(isinstance(x, torch.Tensor) and x.device == META for x in (*args, *kwargs.values()))
        if name == "_local_scalar_dense" and there:
            self.reads[where()] += 1
            return 1
        if name in SHAPED_BY_VALUES and there and kwargs.get("output_size") is None:
            self.reads[where()] += 1
            return torch.zeros(args[0].numel(), args[0].ndim, dtype=torch.int64, device=META)
        if name in ("_to_copy", "copy_", "to") and isinstance(args[0], torch.Tensor):
            target, source = (args[0], args[1]) if name == "copy_" else (None, args[0])
            device = target.device if target is not None else torch.device(kwargs.get("device") or source.device)
            if source.device == META != device:
                self.reads[where()] += 1
                return torch.ones(source.shape, dtype=kwargs.get("dtype") or source.dtype)
            if source.device != META == device:
                self.copies[where()] += 1
        return function(*args, **kwargs)


def where() -> str:
    """The innermost line of raysts that runs."""
    for frame, number in traceback.walk_stack(sys._getframe()):
        if frame.f_code.co_filename.startswith(PACKAGE):
            return f"{Path(frame.f_code.co_filename).name}:{number}"
    return "torch"


@pytest.fixture(autouse=True)
def _as_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch knows no autocast, no generator and no fused optimiser of ``meta``."""
    autocast = torch.autocast
    of_meta = contextlib.nullcontext()
    monkeypatch.setattr(torch, "autocast", lambda kind, **o: of_meta if kind == "meta" else autocast(kind, **o))
    optimizers = importlib.import_module("torch.optim.optimizer")
    monkeypatch.setattr(optimizers, "_get_fused_kernels_supported_devices", lambda: ["cpu", "meta"])

    def draw(kind: Any, seeds: np.ndarray, lengths: np.ndarray, width: int, like: torch.Tensor) -> torch.Tensor:
        assert isinstance(seeds, np.ndarray) and isinstance(lengths, np.ndarray)
        return like.new_empty(int(lengths.sum()), width)

    monkeypatch.setattr("raysts.objectives.latte_mix.draw", draw)


def tokens_in(batch: dict[str, Any]) -> int:
    return int(sum(value.sum() for name, value in batch.items() if name.endswith("_known")))


def long_run(name: str, stage: Stage, folder: Path, **options: Any) -> Run:
    """A run whose lines come more than three steps apart, with the optimiser of its recipe."""
    job = stage.job(name, folder, dev=False, epochs=2000.0, optim=DEFAULTS[name].optim, **options)
    return Run(job, Runtime("meta"))


def step(run: Run) -> tuple[Traffic, dict[str, Any]]:
    """One step of the loop."""
    traffic = Traffic(run.objective)
    with traffic:
        batch = run.next_batch()
        run.after_step(*update(run, batch))
    return traffic, batch


def test_the_count_sees_what_makes_a_host_wait() -> None:
    there = torch.ones(3, device=META)
    with Traffic(torch.nn.Module()) as traffic:
        float(there.sum()), there.cpu(), there.tolist(), there.nonzero(), there.masked_select(there > 0)
        torch.tensor([1.0], device=META), torch.ones(2).to(META), torch.zeros(2, device=META).copy_(torch.ones(2))
        torch.zeros(9, device=META), torch.arange(3, device=META), torch.full((), 2.0, device=META)
    assert (traffic.reads.total(), traffic.creations.total(), traffic.copies.total()) == (5, 1, 2)


@pytest.mark.parametrize("name", [pytest.param(of, marks=pytest.mark.slow if of in ALIKE else ()) for of in CATALOG])
def test_a_step_reads_nothing_and_copies_once(name: str, stage: Stage, tmp_path: Path) -> None:
    run = long_run(name, stage, tmp_path / "run")
    if name == "flow":
        step(run)  # the first asks whether it is fitted
    traffic, batch = step(run)
    assert not +traffic.reads and not +traffic.creations and traffic.copies.total() == 1
    assert traffic.places == tokens_in(batch) > 0, "no padding"


def test_chunks_of_a_batch_are_planned_from_what_the_host_knows(stage: Stage, tmp_path: Path) -> None:
    run = long_run("simcse-sup", stage, tmp_path / "run", settings={"grad_cache": 5})
    traffic, batch = step(run)
    assert not +traffic.reads and traffic.copies.total() == 1
    assert traffic.places == 2 * tokens_in(batch), "backward embeds again"


def test_embedding_copies_a_batch_at_once_and_reads_its_results_alone() -> None:
    encoder = tiny_encoder().to(META)
    lengths = np.random.default_rng(0).integers(2, 40, 50)
    tokens = Tokens(np.ones(lengths.sum(), np.int32), np.concatenate([[0], np.cumsum(lengths)]))
    with Traffic(encoder) as traffic:
        represent_tokens(encoder, tokens, (1, 2), batch_size=20)
    assert set(+traffic.reads) == {next(line for line in traffic.reads if line.startswith("sentence_model"))}
    assert traffic.reads.total() == 3 * 2, "an array for each choice of layers"
    assert traffic.copies.total() == 3 and not +traffic.creations and traffic.places == lengths.sum()
