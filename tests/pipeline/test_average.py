"""Weight averages of members: what they hold, which members the greedy one takes, and how they go on after a kill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_commands import plan_of as plan_recipe
from safetensors.torch import load_file, save_file
from small_runs import Interrupted, write_backbone

from raysts.errors import InputError
from raysts.evaluation.contamination import trained_on
from raysts.models.weights import average
from raysts.pipeline.executor import LocalExecutor
from raysts.pipeline.run import Driver
from raysts.pipeline.steps.average import ScoreAverage, greedy
from raysts.storage.foreign import read_json

CHANGES = {
    "backbone": "tiny", "members": 3, "train.max_steps": 2, "train.eval_every": 2, "evaluation.tasks": ["stsb"],
    "evaluation.resamples": 0, "evaluation.layers": [1], "evaluation.compare": 1, "optim.lr": 1e-3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        # b, then c: falls; then a: equal, which is not falling
        ({"a": 0.1, "b": 0.9, "c": 0.5, "bc": 0.8, "ab": 0.9}, (0, 1)),
        # the second best does the average good, the third does not, the fourth does
        ({"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1, "ab": 0.5, "abc": 0.4, "abd": 0.6}, (0, 1, 3)),
        ({"a": None, "b": -0.3, "ab": -0.4}, (1,)),
        ({"a": 0.2, "b": 0.1, "ab": None}, (0,)),
    ],
)
def test_the_greedy_average_takes_what_does_it_good(scores: dict[str, float | None], expected: tuple[int, ...]) -> None:
    """Scores are those of averages by the letters of their members."""
    own = [scores[letter] for letter in "abcd" if letter in scores]
    assert greedy(own, lambda members: scores["".join("abcd"[index] for index in members)]) == expected


def test_the_greedy_average_is_no_worse_than_the_best_member() -> None:
    """Whatever the scores are; and it asks for no average twice."""
    draws = np.random.default_rng(0)
    for _ in range(50):
        own: list[float | None] = list(draws.normal(size=5))
        asked: dict[tuple[int, ...], float] = {}

        def score(members: tuple[int, ...], asked: dict[tuple[int, ...], float] = asked) -> float:
            assert members not in asked and len(members) > 1
            return asked.setdefault(members, float(draws.normal()))

        chosen = greedy(own, score)
        assert asked.get(chosen, max(own)) >= max(own)  # type: ignore[type-var]
        assert len(asked) == 4


def test_the_average_is_the_mean_of_the_weights(tmp_path: Path) -> None:
    """Of every floating-point weight, rounded once; that it is stored in half precision changes nothing of the type."""
    folders = [write_backbone(tmp_path / str(seed), "bert", seed=seed) for seed in range(3)]
    states = [load_file(folder / "model.safetensors") for folder in folders]
    halves = {name: value.half() for name, value in states[2].items()}
    save_file(halves, folders[2] / "model.safetensors", metadata={"format": "pt"})
    states[2] = {name: value.float() for name, value in halves.items()}
    average(folders).save(tmp_path / "mean")
    mean = load_file(tmp_path / "mean" / "model.safetensors")
    assert mean.keys() <= states[0].keys() and len(mean) > 20
    for name, value in mean.items():
        expected = torch.stack([state[name].double() for state in states]).mean(0).float()
        assert value.dtype == torch.float32 and torch.equal(value, expected), name


class Mortal(LocalExecutor):
    """An executor that dies when it has scored so many averages, and counts those it began to score."""

    def __init__(self, most: int) -> None:
        super().__init__(threads=1)
        self.most, self.scored = most, 0

    def map(self, worker: Any, args: tuple[Any, ...], units: Sequence[Any], resources: Any) -> Iterator[Any]:
        for made in super().map(worker, args, units, resources):
            if worker is ScoreAverage:
                if self.scored == self.most:
                    raise Interrupted
                self.scored += 1
            yield made


@pytest.mark.whole
def test_a_greedy_average_goes_on_after_a_kill(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    """It scores no average twice, ends as an undisturbed one, and its record says what is in it and who chose."""
    changes = CHANGES | {"backbone": str(tiny_backbone)}
    calm, short = (plan_recipe("nli-greedy-soup", changes, few_world, tmp_path / name) for name in ("calm", "short"))
    Driver(calm, Mortal(99), "calm", "").run()
    scored = []
    for _ in range(9):
        executor = Mortal(2)
        try:
            found = Driver(short, executor, "short", "").run()
            break
        except Interrupted:
            begun = short.soups["greedy-soup"]
            assert begun.record["status"] == "running" and not begun.output.exists()
        finally:
            scored.append(executor.scored)
    (soup,), record = short.soups.values(), short.soups["greedy-soup"].record
    assert sum(scored) == len(record["averages"]) == 5 and len(scored) == 3  # three members, two averages
    assert record["averages"] == calm.soups["greedy-soup"].record["averages"]
    kept = "+".join(record["parents"])
    assert record["dev"]["kept"] == record["averages"][kept]["spearman"]
    assert record["dev"]["kept"] >= max(record["averages"][member.id]["spearman"] for member in short.members)
    assert record["selected_by"] == "stsb-dev" and record["role"] == "greedy-soup"
    weights = [load_file(folder / "model.safetensors") for folder in (soup.output, calm.soups["greedy-soup"].output)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])
    assert found["model"] == str(soup.output)
    rows = [row for row in found["results"] if row["role"] == "greedy-soup"]
    assert {row["run_id"] for row in rows} == {soup.id} and rows[0]["parent_run_ids"] == record["parents"]
    assert trained_on(soup.output) == trained_on(short.members[0].output)
    outcome = read_json(tmp_path / "short" / "pipelines" / "short.json")["outcome"]
    assert outcome["selected"] == outcome["soups"]["greedy-soup"] == soup.id
    assert "greedy-soup" in (soup.output / "README.md").read_text(encoding="utf-8")
    assert set(short.states().values()) == {"done"}


def test_what_is_averaged_decides_the_id(few_world: Path, tmp_path: Path) -> None:
    def soup(recipe: str, **changes: Any) -> str:
        return plan_recipe(recipe, CHANGES | changes, few_world, tmp_path).soups.popitem()[1].id

    first = soup("nli-soup")
    assert first == soup("nli-soup", name="another", **{"resources.cpus": 2, "evaluation.resamples": 3})
    others = [soup("nli-soup", **changed) for changed in ({"members": 2}, {"seed": 1}, {"select_top": 2})]
    assert len({first, soup("nli-greedy-soup"), *others}) == 5


def test_members_and_students_are_those_of_systems_without_an_average(few_world: Path, tmp_path: Path) -> None:
    plain, best = (plan_recipe("nli-sed", CHANGES | more, few_world, tmp_path) for more in ({}, {"deliver": "best"}))
    assert [*best.soups] == ["soup", "greedy-soup"] and not plain.soups
    made, of_best = ({step.id for step in plan.steps if step.kind != "scores"} for plan in (plain, best))
    assert made < of_best, "what may be handed over is scored on dev, so evaluated anew"
    assert not plan_recipe("nli-sed", CHANGES | {"deliver": "best", "members": 1}, few_world, tmp_path).soups


def test_members_with_heads_of_their_own_are_refused(few_world: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="head of its own.*-ensemble"):
        plan_recipe("gausscse-ent-soup", CHANGES, few_world, tmp_path)
    changes = CHANGES | {"deliver": "best"}
    assert not plan_recipe("gausscse-ent-sed", changes, few_world, tmp_path).soups
