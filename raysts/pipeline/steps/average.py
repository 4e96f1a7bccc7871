"""Weight averages of all members, or of greedily chosen ones (Wortsman et al. 2022).

``runs/<id>/`` holds ``run.json`` and ``model/``. Scores of averages stand in the record at once, so a killed step continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from raysts.evaluation.dev import Dev
from raysts.evaluation.statistics import UndefinedCorrelationError
from raysts.log import say
from raysts.models.weights import average
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.outcome import best, join_names, members_dev
from raysts.pipeline.step import Context, Load, Step, new_step, run_id, select_members, step_id
from raysts.recipes.recipe import Soup
from raysts.storage.runs import RunFolder, State
from raysts.training.job import ORPHAN_WAIT

Score = float | None
"""Larger is better; None of a model that finds all sentences equally similar."""
Role = Soup | Literal["first"]
"""``first``: the first selected member as it is."""
TITLES: dict[Role, str] = {"soup": "weight average", "greedy-soup": "greedy weight average", "first": "the first"}


def average_step(inputs: Inputs, role: Role, members: Sequence[Step]) -> Step:
    """Return the step that averages the weights of members, at most ``select_top`` of them."""
    top, table = inputs.pipeline.select_top, members_dev(inputs.pipeline)
    dev = inputs.corpus.fingerprint(table) if role == "greedy-soup" or top is not None else None
    step = step_id("average", role=role, members=[member.id for member in members], top=top, dev=dev)
    count = top or len(members)
    averages = 2 * count - 1 if role == "greedy-soup" else 1
    title = f"{TITLES[role]} of {count} members"
    return new_step(
        inputs,
        "average",
        step,
        members,
        title=title,
        work=partial(_average, inputs, role, step, title, tuple(members)),
        sentences=2 * inputs.corpus.rows(table) * averages if inputs.corpus.files(table) else 0,
        load=Load(inputs.size, inputs.test_tokens),
        bytes=inputs.model_bytes,
    )


class ScoreAverage:
    """Scores weight averages on a development set. Units are the folders of the models."""

    def __init__(self, device: str | None, dev: Dev, options: dict[str, Any] | None = None) -> None:
        self.device, self.dev, self.options = device, dev, options or {}

    def __call__(self, folders: Sequence[Path]) -> dict[str, Score]:
        import torch

        model = average(folders, **self.options)
        model.encoder.to(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        try:
            return dict(self.dev.scores(model))
        except UndefinedCorrelationError:
            return dict.fromkeys(self.dev.metrics)


def greedy(scores: Sequence[Score], score_of: Callable[[tuple[int, ...]], Score]) -> tuple[int, ...]:
    """Return the numbers of the models to average, ascending (Wortsman et al. 2022, recipe 1).

    The best model comes first; then, best first, each is added where the average does not score less with it.
    """
    remaining = list(range(len(scores)))
    chosen: tuple[int, ...] = ()
    reached: Score = None
    while remaining:
        candidate = remaining.pop(best([scores[index] for index in remaining]))
        wider = tuple(sorted((*chosen, candidate)))
        score = score_of(wider) if chosen else scores[candidate]
        if not chosen or best([score, reached]) == 0:
            chosen, reached = wider, score
    return chosen


def _average(inputs: Inputs, role: Role, step: str, title: str, members: Sequence[Step], context: Context) -> None:
    run = RunFolder(inputs.storage / "runs" / step)
    with run.lock(f"{title}, run {step}", ORPHAN_WAIT):
        if run.done_record() is not None:
            return
        pipeline = inputs.pipeline
        members, dev = select_members(members, pipeline.select_top), inputs.dev(members_dev(pipeline))
        scored: dict[str, dict[str, Score]] = run.written().get("averages", {})

        def name(average: tuple[int, ...]) -> str:
            return "+".join(members[index].id for index in average)

        def write(status: State, average: tuple[int, ...], **fields: Any) -> None:
            averaged = [members[index] for index in average]
            stage = next(reversed(pipeline.stages), role)
            record = {
                "run_id": run.path.name,
                "status": status,
                **inputs.facts(stage, role, None, [run_id(member) for member in averaged]),
                "transductive": any(member.record.get("transductive") for member in averaged),
                "averages": scored,
            }
            context.store.write_json(run.path / "run.json", record | fields)

        def score(averages: Sequence[tuple[int, ...]]) -> list[Score]:
            if dev is None:
                return [None for _ in averages]
            unscored = [average for average in averages if name(average) not in scored]
            units = [[members[index].output for index in average] for average in unscored]
            for average, scores in zip(unscored, context.map(ScoreAverage, (dev,), units), strict=True):
                scored[name(average)] = scores
                write(State.RUNNING, average)
            return [scored[name(average)][dev.metrics[0]] for average in averages]

        chosen = (0,) if role == "first" else tuple(range(len(members)))
        if role == "greedy-soup":
            chosen = greedy(score([(index,) for index in chosen]), lambda average: score([average])[0])
        (reached,) = score([chosen])
        with context.store.put_dir(run.path / "model") as draft:
            average([members[index].output for index in chosen]).save(draft)
        labels = {members[index].record.get("selected_by") for index in chosen}
        labels |= {dev.name} if dev and (role == "greedy-soup" or pipeline.select_top is not None) else set()
        scores = None if dev is None else {"kept": reached, "scores": scored[name(chosen)]}
        write(State.DONE, chosen, dev=scores, selected_by=join_names(labels))
        say(f"{title}: members {', '.join(map(str, chosen))} are in it; averages scored: {len(scored)}")
