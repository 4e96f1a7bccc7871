"""Selection of the encoder that a run keeps, by its score on the development set."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from raysts.errors import Infeasible
from raysts.evaluation.statistics import UndefinedCorrelationError
from raysts.models.encoder import Encoder
from raysts.models.sentence_model import SentenceModel
from raysts.models.tokens import Tokens
from raysts.ops import collective
from raysts.training.checkpoint import TrainState, save_best
from raysts.training.job import Job, name_of
from raysts.training.runtime import Runtime


def evaluate(
    job: Job, runtime: Runtime, candidates: dict[str, Encoder], model: CachedTokensModel, state: TrainState
) -> dict[str, float]:
    """Score the candidates on dev, record the best in ``state`` and return its scores.

    Rank 0 scores, and all processes get the result.
    """
    assert job.dev is not None
    scores = torch.zeros(len(candidates), len(job.dev.metrics), dtype=torch.float64)
    if not job.recipe.by_dev:
        candidates = dict(list(candidates.items())[:1])
    if runtime.rank == 0 or runtime.shards:  # what is spread they run together
        for i, encoder in enumerate(candidates.values()):
            try:
                model.encoder = encoder
                dev_scores = job.dev.scores(model)
                scores[i] = torch.tensor([dev_scores[metric] for metric in job.dev.metrics], dtype=torch.float64)
            except UndefinedCorrelationError:
                scores[i] = math.nan  # every process learns it, and ends
    scores = collective.total(scores.to(runtime.device) * (runtime.rank == 0)).cpu()
    if not torch.isfinite(scores).all():
        raise Infeasible(
            f"{name_of(job)}: after {state.step} steps the model gives the same or no finite similarity for every dev "
            f"pair; lower {job.recipe.objective}.optim.lr ({job.recipe.optim.lr:g})"
        )
    selecting = dict(zip(candidates, scores[:, 0].tolist(), strict=False))
    name = max(selecting, key=lambda candidate: selecting[candidate])  # the first of equals: the default candidate
    state.latest = dict(zip(job.dev.metrics, scores[list(selecting).index(name)].tolist(), strict=True))
    if state.best is None or selecting[name] > state.best:
        state.best, state.best_step, state.best_candidate = selecting[name], state.step, name
        state.best_scores = state.latest
        state.since_best = 0
        if job.recipe.by_dev and (runtime.rank == 0 or runtime.shards):
            save_best(job.folder / "checkpoints", state, candidates[name], runtime.rank)
    else:
        state.since_best += 1
    return state.latest


class CachedTokensModel(SentenceModel):
    """A model with a replaceable encoder, which tokenises its development sentences once."""

    def __init__(self, model: SentenceModel) -> None:
        super().__init__(model.encoder, model.tokenizer, model.max_length, prompts=model.prompts)
        self._tokenized: tuple[Sequence[str], Tokens] | None = None

    def tokenize(self, texts: Sequence[str], prompt: str | None = None) -> Tokens:
        """Return the token ids of ``texts``, computed at the first evaluation."""
        if self._tokenized is None or self._tokenized[0] is not texts:
            self._tokenized = texts, super().tokenize(texts, prompt)
        return self._tokenized[1]
