"""Weight averages of members, as models of their own (Wortsman et al. 2022, model soups): of all, or greedily chosen.

``runs/<id>/`` holds ``run.json`` and ``model/`` as that of a training run does. Every average that was scored on the
development set stands in the record as soon as it is scored, so that what is killed goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from raysts.evaluation.dev import Dev
from raysts.evaluation.statistics import UndefinedCorrelationError
from raysts.ids import content_id
from raysts.models import pretrained
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.local import Executor, Say
from raysts.pipeline.nodes.model import Model, RunNode, embedding_resources, run_id, selected
from raysts.pipeline.outcome import best, joined, members_dev
from raysts.recipes.recipe import Soup
from raysts.storage.runs import RunFolder
from raysts.storage.store import Store
from raysts.training.job import ORPHAN_WAIT

Score = float | None
"""Larger is better; None of a model that has none: it finds all sentences equally similar."""


class ScoreAverage:
    """Scores of weight averages on a development set; units are the folders of the models that are averaged."""

    def __init__(self, device: str | None, dev: Dev) -> None:
        self.device, self.dev = device, dev

    def __call__(self, folders: Sequence[Path]) -> dict[str, Score]:
        import torch

        model = pretrained.average(folders)
        model.encoder.to(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        try:
            return dict(self.dev.scores(model))
        except UndefinedCorrelationError:
            return dict.fromkeys(self.dev.metrics)


def greedy(scores: Sequence[Score], score_of: Callable[[tuple[int, ...]], Score]) -> tuple[int, ...]:
    """Which models are averaged, ascending (Wortsman et al. 2022, recipe 1).

    The best model comes first; then, best first, each is added where the average does not score less with it.
    """
    left = list(range(len(scores)))
    chosen: tuple[int, ...] = ()
    reached: Score = None
    while left:
        added = left.pop(best([scores[index] for index in left]))
        more = tuple(sorted((*chosen, added)))
        score = score_of(more) if chosen else scores[added]
        if not chosen or best([score, reached]) == 0:
            chosen, reached = more, score
    return chosen


@dataclass(frozen=True, kw_only=True)
class SoupNode(RunNode):
    """The weight average of members. ``members``: those that there are; ``select_top`` of them may be in it."""

    kind: ClassVar[str] = "soup"
    inputs: Inputs
    role: Soup
    members: tuple[Model, ...]

    @classmethod
    def of(cls, inputs: Inputs, role: Soup, members: Sequence[Model]) -> SoupNode:
        top, table = inputs.pipeline.select_top, members_dev(inputs.pipeline)
        chosen_by = inputs.corpus.fingerprint(table) if role == "greedy-soup" or top is not None else None
        count = top or len(members)
        averages = 2 * count - 1 if role == "greedy-soup" else 1
        return cls(
            id=content_id([role, [member.id for member in members], top, chosen_by]),
            title=f"{'greedy ' if role == 'greedy-soup' else ''}weight average of {count} members",
            needs=tuple(member.id for member in members),
            resources=embedding_resources(inputs.pipeline.resources),
            sentences=2 * inputs.corpus.rows(table) * averages if inputs.corpus.files(table) else 0,
            inputs=inputs,
            role=role,
            members=tuple(members),
        )

    @property
    def folder(self) -> Path:
        return self.inputs.storage / "runs" / self.id

    def is_done(self, store: Store) -> bool:
        return self.record.get("status") == "done" and self.is_sound(store)

    def run(self, executor: Executor, store: Store, say: Say) -> None:
        run = RunFolder(self.folder)
        with run.lock(f"{self.title}, run {self.id}", ORPHAN_WAIT):
            if not self.is_done(store):
                self._run(run, executor, store, say)

    def _run(self, run: RunFolder, executor: Executor, store: Store, say: Say) -> None:
        pipeline = self.inputs.pipeline
        members, dev = selected(self.members, pipeline.select_top), self.inputs.dev(members_dev(pipeline))
        known: dict[str, dict[str, Score]] = run.written().get("averages", {})

        def name(average: tuple[int, ...]) -> str:
            return "+".join(members[index].id for index in average)

        def write(status: str, average: tuple[int, ...], **more: Any) -> None:
            in_it = [members[index] for index in average]
            stage = next(reversed(pipeline.stages), self.role)
            record = {
                "run_id": self.id,
                "status": status,
                **self.inputs.facts(stage, self.role, None, [run_id(member) for member in in_it]),
                "transductive": any(member.record.get("transductive") for member in in_it),
                "averages": known,
            }
            store.write_json(self.folder / "run.json", record | more)

        def score(averages: Sequence[tuple[int, ...]]) -> list[Score]:
            if dev is None:
                return [None for _ in averages]
            left = [average for average in averages if name(average) not in known]
            units = [[members[index].model for index in average] for average in left]
            found = executor.map(ScoreAverage, (dev,), units, pipeline.resources, say)
            for average, scores in zip(left, found, strict=True):
                known[name(average)] = scores
                write("running", average)
            return [known[name(average)][dev.metrics[0]] for average in averages]

        every = tuple(range(len(members)))
        chosen = every
        if self.role == "greedy-soup":
            chosen = greedy(score([(index,) for index in every]), lambda average: score([average])[0])
        (reached,) = score([chosen])
        with store.put_dir(self.model) as draft:
            pretrained.average([members[index].model for index in chosen]).save(draft)
        labels = {members[index].record.get("selected_by") for index in chosen}
        labels |= {dev.name} if dev and (self.role == "greedy-soup" or pipeline.select_top is not None) else set()
        scores = None if dev is None else {"kept": reached, "scores": known[name(chosen)]}
        write("done", chosen, dev=scores, selected_by=joined(labels))
        say(f"{self.title}: members {', '.join(map(str, chosen))} are in it; {len(known)} averages were scored")
