"""What the trials of one process share, and what they do not."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from small_runs import Stage, without

from raysts.evaluation.dev import RunMetric
from raysts.ids import folder_id
from raysts.models.sentence_model import SentenceModel
from raysts.search.trial import TrialRuntime, run_trial
from raysts.training import checkpoint
from raysts.training.loop import train
from raysts.training.runtime import Runtime

SPEARMAN = RunMetric("spearman", "sts/stsb_dev")


def files(folder: Path) -> dict[str, bytes]:
    """What a model is made of."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_trial_knows_nothing_of_those_before_it_in_its_process(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its model is, bit for bit, that of a process of its own. The sentences of its dev set are tokenised once."""
    made: list[int] = []
    real = SentenceModel.tokenize
    monkeypatch.setattr(
        SentenceModel, "tokenize", lambda model, texts, *prompt: made.append(len(texts)) or real(model, texts, *prompt)
    )
    backbone, dev = folder_id(stage.backbone), stage.dev()

    def trial(name: str, **options: Any) -> Any:
        job = stage.job("sts", tmp_path / name, max_steps=4, eval_every=1, keep="best", **options)
        return without(job, dev=dev)

    one, other = trial("one", seed=1), trial("other", settings={"lower_bound": 0.5}, seed=2)
    for job in (one, other):
        outcome = run_trial(job, TrialRuntime("cpu", threads=1, metric=SPEARMAN))
        assert outcome.status == "finished"
    assert made == [len(dev.texts)] * 2  # eight evaluations of two trials
    assert folder_id(stage.backbone) == backbone

    alone = without(other, folder=tmp_path / "alone")
    train(alone, Runtime("cpu", threads=1))
    assert files(alone.folder / "model") == files(other.folder / "model") != files(one.folder / "model")


def test_a_finished_trial_leaves_nothing_in_memory_and_writes_no_checkpoint_for_its_end(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of itself, without the search for cycles that takes 0.2 s in a process with everything imported."""
    saved: list[int] = []
    real = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda *a: saved.append(a[3].step) or real(*a))
    held: list[weakref.ref[Any]] = []

    class Watching(TrialRuntime):
        def wrap(self, module: Any, precision: str) -> Any:
            held.extend(weakref.ref(each) for each in (module, *module.parameters()))
            return module

    for objective in ("ct", "latte", "gausscse"):
        job = stage.job(objective, tmp_path / objective, max_steps=3, eval_every=2, checkpoint_every=2)
        gc.collect()
        gc.disable()
        try:
            outcome = run_trial(job, Watching("cpu", threads=1, metric=SPEARMAN))
            assert outcome.status == "finished" and held and not any(each() is not None for each in held), objective
        finally:
            gc.enable()
        assert saved == [2] and not (job.folder / "checkpoints").exists()
        saved.clear()
        held.clear()
