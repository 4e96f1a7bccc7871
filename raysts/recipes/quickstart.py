"""The main job at the size of a coffee break: the embedded world, a tiny BERT, four members, one student."""

from __future__ import annotations

from dataclasses import replace

from raysts.recipes import stages
from raysts.recipes.recipe import Data, Evaluation, Pipeline


def quickstart() -> Pipeline:
    """``nli-ct-sed`` for a randomly initialised BERT: larger learning rates than a pretrained encoder bears."""
    nli, ct, sed = stages.nli(), stages.ct(), stages.sed()
    return Pipeline(
        name="quickstart",
        backbone="tiny",
        members=4,
        stages={
            "nli": replace(
                nli,
                batch=32,
                optim=replace(nli.optim, lr=2e-3),
                train=replace(nli.train, epochs=2.0, max_steps=1000, max_length=48),
            ),
            "ct": replace(
                ct,
                optim=replace(ct.optim, lr=1e-4, milestones=(60, 120, 180, 240)),
                train=replace(ct.train, max_steps=300, max_length=48, eval_every=100),
            ),
        },
        combine="sed",
        sed=replace(
            sed,
            data=Data(sample=30_000),
            optim=replace(sed.optim, lr=1e-3),
            train=replace(sed.train, max_length=48),
        ),
        evaluation=Evaluation(layers=(1, 2), compare=1),
        student_pooling=1,
    )
