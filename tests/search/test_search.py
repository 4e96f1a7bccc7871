"""Searches without Ray: spaces, which trial is next, what is remembered and kept."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_commands import listening
from scipy import stats

from raysts.commands.options import RunOptions
from raysts.commands.study import plan_study
from raysts.errors import InputError
from raysts.evaluation.dev import RunMetric
from raysts.log import screen
from raysts.pipeline.plan import Plan
from raysts.pipeline.price import Rates
from raysts.pipeline.verdict import ABOUT_TINY
from raysts.recipes.names import pipeline
from raysts.recipes.overrides import dump, parse_overrides
from raysts.recipes.tree import to_plain
from raysts.report.study import winning_command, write_report
from raysts.search import exports, scores
from raysts.search.exports import exporter
from raysts.search.queue import SearchProgress, TrialQueue, run_session
from raysts.search.record import Record, as_table, read_records
from raysts.search.sampler import Sampler
from raysts.search.scores import PointScores
from raysts.search.search import Asha, Search, configure, find_search, pipeline_overrides, search_overrides
from raysts.search.space import Dimension, contains, corners, grid, key_of, select, sort
from raysts.search.study import Study, best_point, best_trials, earlier_points, study_record
from raysts.search.trial import TrialOutcome
from raysts.storage.atomic import write_json
from raysts.storage.checksums import write_record
from raysts.storage.foreign import read_json
from raysts.storage.store import Store

LR = "sts.optim.lr"
BOUND = "sts.settings.lower_bound"
SPEARMAN = RunMetric("spearman", "sts/stsb_dev")
StudyMaker = Callable[..., Study]


@pytest.fixture
def study(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> StudyMaker:
    """study(search, overrides) with the tiny backbone; an equal call finds what the last one has written."""

    def made(search: str, overrides: dict[str, Any] | None = None, name: str | None = None) -> Study:
        options = RunOptions(data=few_world, storage=tmp_path / "storage", name=name)
        found = plan_study(search, {"backbone": str(tiny_backbone), **(overrides or {})}, options)
        found.open("raysts tune")
        return found

    return made


# -- spaces --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text", "inside", "outside"),
    [
        ("0,0.25,0.5", "0,0.25,0.5", 0.25, 0.3), ([8, 16], "8,16", 16, 12), (0.5, "0.5", 0.5, 0.4),
        ("sum, mean", "sum,mean", "mean", "max"), ("log(1e-5,1e-2)", "log(1e-05,0.01)", 3e-4, 0.02),
        ("uniform(0, 1)", "uniform(0,1)", 1, 1.5), ("logint(20,200)", "logint(20,200)", 20, 19),
        ("1e-5..1e-4", "uniform(1e-05,0.0001)", 5e-5, 2e-4), ("1e-5..1e-4 log", "log(1e-05,0.0001)", 5e-5, 2e-4),
        ("8..64", "int(8,64)", 64, 8.5), ("8..64 log", "logint(8,64)", 8, 65), ("../a/b,../a/c", "../a/b,../a/c", "../a/b", "b"),
    ],
)  # fmt: skip
def test_a_dimension_is_read_from_text_and_written_back(value: Any, text: str, inside: Any, outside: Any) -> None:
    dimension = Dimension.of(value)
    assert dimension.text == text and Dimension.of(text) == dimension
    assert dimension.holds(inside) and not dimension.holds(outside)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "empty"), ([], "empty"), ("0.1,0.1", "twice"), ("log(0,1)", "begin above 0"), ("uniform(1,0)", "to a larger one"),
        ("3..3", "to a larger one"), ("uniform(1,inf)", "to a larger one"), ("int(1.5,3)", "whole numbers"),
        ("normal(0,1)", "must be a list of choices"), ("a..b", "must be numbers"),
    ],
)  # fmt: skip
def test_a_dimension_that_makes_no_sense_is_refused(value: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Dimension.of(value)


def test_numbers_stand_on_a_scale_of_logarithms_from_ten_times_the_first_on() -> None:
    axes = [Dimension.of(choices).axis() for choices in ("2,20", "2,19", "0,0.5")]
    assert [(axis.low, axis.high, axis.log) for axis in axes] == [(2, 20, True), (2, 19, False), (0, 0.5, False)]
    assert Dimension.of("2").axis().choices == (2,) and Dimension.of("a,2").axis().choices == ("a", 2)


def test_a_range_of_whole_numbers_is_a_grid_of_at_most_so_many_points() -> None:
    space = {"a": Dimension.of("1,2"), "b": Dimension.of("1..3")}
    assert len(grid(space, most=6) or []) == 6
    assert grid(space, most=5) is grid(space) is None


# -- options that exist only where another one has a value -----------------------------------------------------------------

LOSS, BANK, WARM = "sed.settings.loss", "sed.settings.bank", "sed.settings.temperature"
SPACE: dict[str, Any] = {
    "space.sed.bank": "0.1,0.5 if sed.loss=mse,cosine",
    "space.sed.temperature": "0.05..0.1 if loss=infonce",
    "space.sed.loss": "mse,cosine,infonce,similarity",
}


def conditional_search(**more: Any) -> Search:
    return find_search("ct-sed", {**SPACE, "num_samples": 30, **more})


def test_an_option_exists_where_its_condition_holds() -> None:
    space = conditional_search().space
    assert [*space] == [LOSS, BANK, WARM], "an option stands behind that of its condition"
    assert space[BANK].text == "0.1,0.5 if sed.settings.loss=mse,cosine"
    assert Dimension.of(space[BANK].text) == space[BANK]
    assert [*select(space, [BANK])] == [LOSS, BANK] and [*select(space, [LOSS])] == [LOSS]
    assert contains(space, {LOSS: "mse", BANK: 0.5}) and contains(space, {LOSS: "similarity"})
    assert not contains(space, {LOSS: "similarity", BANK: 0.5}) and not contains(space, {LOSS: "mse"})
    ends = {(key, value) for point in corners(space) for key, value in point.items()}
    assert ends == {(key, value) for key, dimension in space.items() for value in dimension.ends}
    assert all(contains(space, point) for point in corners(space))


def test_a_grid_of_nested_conditions_is_that_of_a_direct_enumeration() -> None:
    texts = {"c": "7,8 if b=5", "b": "4,5 if a=x,y", "d": "[1, 2],[2, 1]", "a": "w,x,y"}
    space = sort({key: Dimension.of(text) for key, text in texts.items()})
    direct = {}
    for a, b, c, d in itertools.product("wxy", (4, 5), (7, 8), ([1, 2], [2, 1])):
        point = {"a": a, "d": d} | ({"b": b} if a in "xy" else {}) | ({"c": c} if a in "xy" and b == 5 else {})
        direct[key_of(point)] = point
    points = grid(space)
    assert points and {key_of(point) for point in points} == direct.keys() and len(points) == len(direct) == 14


def test_points_without_conditions_keep_their_ids() -> None:
    assert key_of({"sts.settings.lower_bound": 0.55}) == "182e4ebece0f22cc"
    assert key_of({"gausscse.batch": 64, "gausscse.optim.lr": 1e-05}) == "1d0cc01fc965218f"


@pytest.mark.parametrize(
    ("space", "why"),
    [
        ({"space.sed.bank": "0.1,0.5 if sed.loss=mse,msy"}, "'if sed.settings.loss=mse,msy' must name choices"),
        ({"space.sed.bank": "0.1,0.5 if optim.lr=1e-4"}, "space.optim.lr is not in the space"),
        ({"space.sed.bank": "0.1,0.5 if sed.loss"}, "must be a list of choices"),
        ({"space.sed.bank": "0.1,0.5 if sed.loss=1..3"}, "must name choices of sed.loss, not a range"),
        ({"space.sed.loss": "mse,cosine if sed.bank=0.1"}, "that does not depend on this one"),
        ({"space.sed.loss": None}, "space.sed.loss is not in the space"),
        ({"space.sed.temperature": "0.05,0.1"}, "temperature"),  # refused without its condition
    ],
)
def test_a_condition_that_cannot_hold_is_refused_with_one_message(space: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError) as caught:
        conditional_search(**space)
    assert why in str(caught.value) and len({p.partition(":")[0] for p in caught.value.problems}) == 1


# -- searches by name and their overrides ----------------------------------------------------------------------------------


def test_the_named_searches_are_those_of_the_papers() -> None:
    bound = find_search("lower-bound")
    assert bound.points == 20 and bound.seeds == 10  # SED 5.5: 200 runs
    assert [point[BOUND] for point in grid(bound.space) or []] == pytest.approx([0.05 * i for i in range(20)])
    gauss = {(p["gausscse.batch"], p["gausscse.optim.lr"]) for p in grid(find_search("gausscse").space) or []}
    paper = set(itertools.product((16, 32, 64, 128, 256), (1e-5, 3e-5, 5e-5)))  # GaussCSE, Table 3
    assert paper < gauss and (8, 1e-4) in gauss
    mix = find_search("latte-mix")
    assert mix.first[0]["latte.settings.tau"] == 0.3 and mix.num_samples == 50
    assert {point["latte.settings.classes"] for point in mix.first} == {20, 50, 100, 200}  # Latte-Mix, Table 4


def test_overrides_reach_the_search_its_space_and_its_pipeline() -> None:
    found = find_search("lower-bound", {
        "seeds": 3, "num_samples": 5, "concurrency": 2, "asha.grace": 0.5, "train.max_steps": 7, "batch": 4,
        "resources.gpus": 0.25, "space.lower_bound": "0,.5", "space.optim.lr": "log(1e-6,1e-4)", "backbone": "tiny",
    })  # fmt: skip
    assert (found.seeds, found.num_samples, found.concurrency) == (3, 5, 2)
    assert found.asha is not None and (found.asha.grace, found.asha.reduction) == (0.5, 3.0)
    assert found.pipeline.stages["sts"].train.max_steps == 7 and found.pipeline.resources.gpus == 0.25
    assert list(found.space) == [BOUND, LR] and found.space[BOUND].choices == (0.0, 0.5)
    assert isinstance(found.space[BOUND].choices[0], float)  # as the recipe holds it, so that the point has one name
    assert list(configure(found, {f"space.{LR}": None}).space) == [BOUND]
    asha = [configure(found, {"asha": given}).asha for given in (True, {"grace": 0.5}, None)]
    assert asha == [Asha(), Asha(grace=0.5), None] and configure(found, {"asha": None, "median": True}).median
    assert find_search("lower-bound", {"seeds": 5_000}).seeds == 5_000, "100,000 trials, and no more"
    one = configure(find_search("latte-mix"), {"space.settings.dims": "16,32", "space.optim.lr": "log(1e-3,1e-2)"})
    dims = {point["latte.settings.dims"] for point in one.first}
    assert dims == {16, 32}, "first points outside the space are dropped"


def test_a_choice_is_known_in_its_size_before_the_search() -> None:
    points = find_search("lower-bound", {"seeds": 3, "keep": 2})
    assert points.by == "point" and points.replace(keep=1).expected_choice == {}
    assert points.expected_choice["members"] == 2 * 3 and points.replace(by="trial").expected_choice["members"] == 2


def test_overrides_of_an_experiment_are_of_its_search_or_its_pipelines_or_of_both() -> None:
    given = {"seeds": 2, "asha.grace": 0.5, "optim.lr": 1e-4, "members": 3, "evaluation.margin": 2, "nothing": 1}
    assert [*search_overrides(find_search("lower-bound"), given)] == ["seeds", "asha.grace", "optim.lr"]
    assert [*pipeline_overrides(given)] == ["optim.lr", "members", "evaluation.margin", "nothing"]


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        find_search("lower-bound", {"seeds": "x", "space.nothing": 1, "train.max_step": 3, "asha.reduction": 1})
    assert len(caught.value.problems) == 4


SAMPLED = {"num_samples": 3, "space.optim.lr": "1e-6..1e-3 log"}
HUNDRED = ",".join(f"{i / 100}" for i in range(1, 101))


@pytest.mark.parametrize(
    ("name", "overrides", "why"),
    [
        ("lower-bound", {"space.lower_bound": "0,1.5"}, r"lower_bound=1\.5 must be at least 0 and below 1"),
        ("lower-bound", {"space.lower_bound": "uniform(0,1)", "num_samples": 3}, r"lower_bound=1\.0 must be at least 0"),
        ("lower-bound", {"space.lower_bound": ""}, "empty"),
        ("lower-bound", {f"space.{BOUND}": None}, "nothing to search"),
        ("lower-bound", {"space.lower_bund": "0,1"}, "did you mean.*lower_bound"),
        ("lower-bound", {"space.optim.lr": "log(1e-5,1e-4)"}, "num_samples: needed"),
        ("lower-bound", {"settings.lower_bound": 0.5}, "is what this search varies"),
        ("lower-bound", {"members": 4}, "seeds=N"),
        ("lower-bound", {"seeds": 0}, "at least 1"),
        ("lower-bound", {"seeds": 10**9}, "at most 100,000 trials"),
        ("lower-bound", {"num_samples": 1, "space.optim.lr": HUNDRED, "space.optim.warmup": HUNDRED}, "a space of 200000 points"),
        ("lower-bound", {"seeds": 2.5}, "whole number"),
        ("lower-bound", {"asha.grace": 2}, "between 0 and 1"),
        ("lower-bound", {"asha.gras": 0.5}, "did you mean 'grace'"),
        ("lower-bound", {"resources.workers": 2}, "one process"),
        ("lower-bound", {"optim.lrr": 1e-3}, "unknown option 'optim.lrr'"),
        ("lower-bound", {"sampler": "tpe"}, "sampler=tpe: a grid has all its points"),
        ("lower-bound", {"sampler": "grid", **SAMPLED}, "sampler=grid: .* needs num_samples"),
        ("lower-bound", {"cost": "bytes", "sampler": "tpe", **SAMPLED}, "sampler=nsga2"),
        ("lower-bound", {"race": True, "seeds": 2}, "seeds=2; take 3 or more"),
        ("lower-bound", {"median": True, "asha": True}, "median: asha stops trials already"),
        ("lower-bound", {"sampler": "best"}, "sampler='best'"),
        ("lower-bounds", {}, "did you mean 'lower-bound'"),
        ("nlii", {}, "unknown search 'nlii'; searches are lower-bound, .*: unknown recipe 'nlii'.*did you mean 'nli'"),
        ("raw", {}, "'raw' does not end in one training run"),
        ("nli", {}, "space: is empty.*space.optim.lr="),
        ("nli-ct-soup", {}, "search 'nli-ct-soup': pipeline: 'nli-ct-soup' does not end in one training run"),
        ("nli-ct-ensemble", {"space.ct.optim.lr": [1e-5]}, "does not end in one training run"),
        ("nli-ct", {"space.seed": [1, 2]}, "is no option of a trial"),
        ("nli-ct", {"space.ct.train.checkpoint_every": [1, 2]}, "changes no number of a run"),
        ("nli-ct", {"space.ct.optim.lr": [1e-5], "space.optim.lr": [1e-4]}, "an option that space.ct.optim.lr varies too"),
        ("nli-ct", {"space.optim.lr": [1e-4], "ct.optim.lr": 1e-5}, "is what this search varies"),
        ("nli-ct-sed", {"space.ct.optim.lr": [1e-5], "students": 2}, "students: a search has seeds"),
    ],
)  # fmt: skip
def test_a_wrong_search_is_refused_with_the_reason(name: str, overrides: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        find_search(name, overrides)


def test_a_system_of_one_stage_is_a_search_of_the_space_that_is_given(tmp_path: Path) -> None:
    overrides = {"space.batch": "8,16", "space.optim.lr": "log(1e-6,1e-4)", "num_samples": 4, "backbone": "tiny"}
    found = find_search("nli@small", overrides)
    assert list(found.space) == ["nli.batch", "nli.optim.lr"] and (found.name, found.points) == ("nli", 4)
    assert found.pipeline == pipeline("nli@small", {"backbone": "tiny"})
    (tmp_path / "own.yaml").write_text(dump(pipeline("nli@small")))
    assert find_search(str(tmp_path / "own.yaml"), overrides) == found


def test_what_is_tokenised_may_have_choices_but_no_range(study: StudyMaker) -> None:
    with pytest.raises(InputError, match="give choices instead of a range"):
        study("lower-bound", {"space.train.max_length": "int(16,32)", "num_samples": 3})
    made = study("lower-bound", {"space.train.max_length": "16,24", "space.lower_bound": "0,.5"})
    assert len(made.token_stores()) == 2


# -- trials --------------------------------------------------------------------------------------------------------------


finished = partial(TrialOutcome, "finished")


def run_until(study: Study, most: int | None, dice: random.Random, score: Callable[[Any], TrialOutcome]) -> list[str]:
    """Hand out and end trials, three at once, in random order; give up (as if killed) after so many have ended."""
    tasks, handed, ended = TrialQueue(study), list[str](), 0
    while True:
        while len(tasks.running) < 3 and (trial := tasks.next()) is not None:
            handed.append(trial.id)
        if not tasks.running or ended == most:
            return handed
        trial = dice.choice([*tasks.running.values()])
        tasks.done(trial.id, score(trial))
        ended += 1


def test_a_score_that_is_no_number_is_as_bad_as_none(study: StudyMaker) -> None:
    """The dev score of a model whose vectors are all the same."""
    sampler = Sampler(study("lower-bound", {"num_samples": 8}).search, [{BOUND: 0.5}], 0)
    assert sampler.propose(()) == {BOUND: 0.5}
    for bound, value in ((0.5, math.nan), (0.1, math.nan), (0.2, None), (0.3, 0.7)):
        record = Record(id="a", point={BOUND: bound}, seed=0, status="finished", value=value, finished_at="")
        sampler.complete(PointScores(1, [record]))
    ended = [(trial.state.name, trial.value) for trial in sampler.study.trials]
    assert ended == [("PRUNED", None)] * 3 + [("COMPLETE", 0.7)]


@pytest.mark.whole
@pytest.mark.parametrize(
    "overrides",
    [
        {"space.lower_bound": "0,.1,.2,.3,.4,.5,.6", "seeds": 3},
        {"space.optim.lr": "log(1e-6,1e-3)", "num_samples": 7, "seeds": 3},
        {"space.lower_bound": "0,.1,.2,.3,.4,.5,.6", "num_samples": 7, "seeds": 3},  # TPE must find all seven
    ],
    ids=["grid", "range", "all of a small space"],
)
def test_killed_anywhere_no_trial_is_lost_doubled_or_repeated(study: StudyMaker, overrides: dict[str, Any]) -> None:
    dice, begun, learnt = random.Random(3), list[str](), 0
    for kill in range(6):
        made = study("lower-bound", overrides)
        before = dict(made.records)
        known = [trial for trial in TrialQueue(made).sampler.study.trials if trial.state.is_finished()]
        assert len(known) == sum(not scores.missing_seeds for scores in made.scores()), "what the sampler learns from"
        learnt = max(learnt, len(known))
        handed = run_until(made, dice.randint(0, 6) if kill < 5 else None, dice, lambda t: finished(dice.random()))
        assert len(set(handed)) == len(handed) and not before.keys() & set(handed)
        assert set(begun) - before.keys() <= set(handed) | made.records.keys() or kill < 5
        begun += handed
    end = study("lower-bound", overrides)
    assert learnt > 0 and len(end.records) == 7 * 3 == len(list((end.folder / "trials").glob("*.json")))
    assert end.records.keys() == set(begun)  # whatever was begun in any session has ended
    assert {len(each.records) for each in end.scores()} == {3} and len(end.scores()) == 7
    assert end.complete and TrialQueue(end).next() is None


def test_a_sampled_search_goes_on_with_what_it_had_begun(study: StudyMaker) -> None:
    options = {"space.optim.lr": "log(1e-8,1e-2)", "num_samples": 3, "seeds": 2}
    made = study("lower-bound", options)
    began, tasks = made.about["created_at"], TrialQueue(made)
    first, second, third = tasks.next(), tasks.next(), tasks.next()
    assert first and second and third and first.point == second.point != third.point
    for trial in (first, second):
        tasks.done(trial.id, finished(0.5))
    again = study("lower-bound", options)  # after a kill
    assert again.asked == [first.point, third.point] and again.about["created_at"] == began is not None
    handed = run_until(again, None, random.Random(0), lambda trial: finished(0.5))
    assert handed[0] == third.id and len(handed) == 4 and again.complete


def test_the_price_of_a_search_is_that_of_the_steps_that_are_left(study: StudyMaker) -> None:
    made = study("lower-bound", {"space.lower_bound": "0,.1", "seeds": 2})
    rates = Rates(made.store)
    seconds = {step.id: rates.predict(step).seconds for step in made.steps()}
    whole = made.price(1).device_seconds
    assert whole == pytest.approx(sum(seconds.values()))
    ended = made.trials({BOUND: 0.1})[1].id
    made.records = {ended: record(0.1, 1)}
    assert whole - made.price(1).device_seconds == pytest.approx(seconds[ended])


def test_the_record_of_a_trial_says_how_far_it_came(study: StudyMaker, tiny_backbone: Path) -> None:
    made = study("lower-bound", {"space.lower_bound": "0,.1", "seeds": 1, "cost": "seconds"})
    whole, early = made.trials({BOUND: 0.0})[0], made.trials({BOUND: 0.1})[0]
    lines = '{"step": 5, "steps": 20, "dev": 0.3, "seconds": 1.0}\n{"step": 10, "steps": 20, "seconds": 2.0}\n'
    folders = whole.job.folder, early.job.folder
    for folder, status in zip(folders, ("done", "running"), strict=True):
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "metrics.jsonl").write_text(lines)
        write_record(folder / "run.json", {"run_id": folder.name, "status": status, "kept": {"step": 5}})
    ended = made.finish(whole, finished(0.4))
    assert (ended.value, ended.step, ended.steps, ended.cost, ended.curve) == (0.4, 5, 20, 2.0, ((5, 0.3),))
    stopped = made.finish(early, TrialOutcome("stopped"))
    assert (stopped.value, stopped.step, stopped.steps) == (0.3, 10, 20), "the last value, and where it was stopped"
    left = [(read_json(run / "run.json")["status"], (run / "checkpoints").exists()) for run in folders]
    assert left == [("done", True), ("stopped", False)]
    timed = study("lower-bound", {"space.lower_bound": "0,.1", "seeds": 1, "cost": "latency"}, name="timed")
    shutil.copytree(tiny_backbone, whole.job.folder / "model")
    costs = [timed.finish(whole, outcome).cost for outcome in (finished(0.4), TrialOutcome("stopped"))]
    assert costs[0] and costs[0] > 0 and costs[1] is None, "of a trial without a model there is none"


def test_a_resumed_sampler_knows_how_far_stopped_trials_came(study: StudyMaker) -> None:
    made = study("lower-bound", {"space.optim.lr": "log(1e-8,1e-2)", "num_samples": 10, "seeds": 1})
    before, after = (Sampler(made.search, [], 0) for _ in range(2))
    for number, curve in enumerate([((10, 0.3), (20, 0.4)), ((10, 0.2),)]):
        point = before.propose(())
        assert point is not None
        for step, value in curve:
            before.report(point, value, step)
        stopped = replace(record(0.1, number, "stopped", curve[-1][1], step=curve[-1][0], curve=curve), point=point)
        for sampler in (before, after):
            sampler.complete(PointScores(1, [stopped]))
    trials = (sampler.study.trials for sampler in (before, after))
    told, resumed = ([(trial.state.name, trial.params, trial.intermediate_values) for trial in of] for of in trials)
    assert resumed == told and [curve for *_, curve in told] == [{10: 0.3, 20: 0.4}, {10: 0.2}]
    after.complete(PointScores(2, [stopped, replace(stopped, seed=1)]))
    assert after.study.trials[-1].intermediate_values == {}, "a mean has no curve"


def test_bars_are_those_of_the_running_trials(study: StudyMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    made, bars = study("lower-bound", {"space.lower_bound": "0,.1,.2", "seeds": 1, "metric": "pearson"}), list[Any]()
    monkeypatch.setattr(screen, "draw", lambda *bar: bars.append(bar))
    trials = [made.trials({BOUND: bound})[0] for bound in (0.0, 0.1)]
    trials[1].job.folder.mkdir(parents=True)
    line = {"step": 5, "steps": 20, "loss": 0.25, "dev_pearson": 0.5}
    (trials[1].job.folder / "metrics.jsonl").write_text(f"{json.dumps(line)}\n")
    progress = SearchProgress(made)
    progress.running(trials), progress.running(trials)  # in the same second once
    assert bars == [(trials[1].id, "lower_bound=0.1", 5, 20, "seed 0 5/20 loss 0.2500 dev_pearson 0.5000")]
    assert screen.part == 0.25 / 2, "of two trials"


def test_what_is_said_of_trials_that_have_ended(study: StudyMaker) -> None:
    made, said = study("lower-bound", {"space.lower_bound": "0,.1", "seeds": 2}), list[str]()
    progress, alone = SearchProgress(made), SearchProgress(study("lower-bound", {"seeds": 1}, name="alone"))
    ended = [record(0.0, 0, value=0.7, seconds=3.0), record(0.0, 1, "stopped", 0.2, step=5, steps=20)]
    ended += [record(0.1, 0, "stopped", None, reason="raced"), record(0.1, 1, "infeasible", None, reason="no memory")]
    with listening(said.append):
        for each in ended:
            made.records[each.id] = each
            progress.report_end(each)
        alone.report_end(ended[0])
    best = "; best lower_bound=0 70.00"  # and how long it takes until the end
    assert [re.sub(r"(;|,) about .* left", "", text) for text in said] == [
        f"1/4  lower_bound=0 seed 0: dev 70.00 in 3.0 s{best}",
        f"2/4  lower_bound=0 seed 1: stopped early at step 5 of 20{best}", f"3/4  lower_bound=0.1 seed 0: raced{best}",
        f"4/4  lower_bound=0.1 seed 1: infeasible: no memory{best}", "0/20  lower_bound=0: dev 70.00 in 3.0 s",
    ]  # fmt: skip


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_sampler_learns_of_values_on_the_way_where_a_point_is_one_trial(seeds: int, study: StudyMaker) -> None:
    tasks = TrialQueue(study("lower-bound", {"space.optim.lr": "log(1e-8,1e-2)", "num_samples": 3, "seeds": seeds}))
    assert (trial := tasks.next()) is not None
    tasks.report(trial.id, 0.25, 3)
    assert tasks.sampler.study.trials[0].intermediate_values == ({3: 0.25} if seeds == 1 else {})


def test_a_failed_trial_is_not_recorded_and_comes_again(study: StudyMaker) -> None:
    options = {"space.lower_bound": "0,.5", "seeds": 2, "concurrency": 1}
    made = study("lower-bound", options)
    tasks = TrialQueue(made)
    while (trial := tasks.next()) is not None:
        assert tasks.full, "concurrency is a limit"
        tasks.done(trial.id, TrialOutcome("failed", None, "the disk is full") if trial.seed else finished(0.5))
        assert not tasks.full
    assert len(tasks.failures) == 2 and "the disk is full" in tasks.failures[0]
    again = run_until(study("lower-bound", options), None, random.Random(0), lambda t: finished(0.5))
    assert len(again) == 2


def test_a_race_drops_what_is_clearly_worse(study: StudyMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first point has nothing to race against yet."""
    monkeypatch.setattr("raysts.report.study.MOST_LEVEL", 1)
    made = study("lower-bound", {"space.lower_bound": "0,.1,.2", "seeds": 3, "race": True, "cost": "bytes"})
    values = {0.0: (0.80, 0.82, 0.81), 0.1: (0.30, 0.33, 0.9), 0.2: (0.79, 0.825, 0.8)}
    trained = run_until(made, None, random.Random(0), lambda t: finished(values[t.point[BOUND]][t.seed]))
    raced = [each for each in made.records.values() if each.status == "stopped"]
    assert [(each.point[BOUND], each.seed, each.cost) for each in raced] == [(0.1, 2, None)]
    assert len(made.records) == 9 and raced[0].id not in trained and len(trained) == 8
    assert made.complete and TrialQueue(made).next() is None
    made.update(untrained=0.81)
    page = write_report(made, tmp_path / "page").read_text()
    assert "before any training: 81.00." in page and "No point is above it: training gained nothing" in page
    assert f"{sum(each.status == 'finished' for each in made.records.values())} trials, best 82.50." in page
    assert "against bytes: rings are the Pareto front" in page and "1 of 9 trials were not trained" in page
    assert "The best single run: lower_bound=0.2 with seed 1: 82.50." in page
    assert "Level with it: lower_bound=0.2." in page, "0.1 has two seeds as well, and is worse"
    assert [each.remark for each in made.scores() if each.remark] == ["1 of 3 not trained: clearly worse"]


def test_the_page_of_a_study_shows_every_trial_and_no_more_than_they_say(study: StudyMaker, tmp_path: Path) -> None:
    made = study("lower-bound", {"space.lower_bound": "0,.1,.2,.3", "seeds": 1})
    page = write_report(made, tmp_path / "page").read_text()
    assert page.count("No trial has finished.") == 2 and "trained alone" not in page and "95 % interval" not in page
    reason = "infeasible: too long"
    outcomes = [TrialOutcome("stopped", 0.1), finished(0.7), finished(0.8), TrialOutcome("infeasible", None, reason)]
    run_until(made, None, random.Random(0), lambda trial: outcomes[round(10 * trial.point[BOUND])])
    made.update(untrained=0.5, price={"time": "two hours"})
    made.search = made.search.replace(pipeline=made.search.pipeline.replace(backbone="tiny"))
    page = write_report(made, tmp_path / "page").read_text()
    shown = ["Chosen: lower_bound=0.2.", ": 80.00 (× 100).", "before any training: 50.00.", "two hours", ABOUT_TINY,
             "<li>2 finished</li>", "<li>1 stopped early</li>", "<li>1 infeasible</li>", "95 % interval"]  # fmt: skip
    untold = ["gained nothing", "best single run", "with all of its layers"]
    assert [text for text in [*shown, *untold] if text in page] == shown
    cells = re.findall("<td>(.*?)</td>", page[page.index("<h2>Trials") : page.index("<h2>How")])
    assert [cells[:4], cells[7:11]] == [["0.2", "0", "80.00", "finished"], ["0.1", "0", "70.00", "finished"]]
    assert reason in cells and "stopped" in cells


def test_another_search_under_the_name_is_refused_with_the_difference(study: StudyMaker) -> None:
    assert BOUND not in study("lower-bound", {"seeds": 2}).identity(), "the space has its values"
    study("lower-bound", {"seeds": 3, "concurrency": 1, "keep": 2})  # more of the same
    for overrides, why in (
        ({"space.lower_bound": "0,.5"}, f"space.{BOUND} was 0.0,0.05,.*, is 0.0,0.5"),
        ({"optim.lr": 3e-5}, "sts.optim.lr was 2e-05, is 3e-05"),
        ({"seed": 1}, "seed was 0, is 1"),
        ({"asha.grace": 0.5}, "asha.grace was not there, is 0.5"),
    ):
        with pytest.raises(InputError, match=why):
            study("lower-bound", overrides)
    study("lower-bound", {"optim.lr": 3e-5}, name="other")


def test_a_study_from_before_an_option_existed_had_its_default(study: StudyMaker) -> None:
    made = study("lower-bound")
    stored = made.about["identity"]
    for option in ("data.spans", "train.min_steps", "settings.grad_cache"):
        del stored[f"sts.{option}"]
    made.update(identity=stored)
    with pytest.raises(InputError, match="sts.train.min_steps was None, is 7"):
        study("lower-bound", {"train.min_steps": 7})
    study("lower-bound")


# -- choices and what is kept --------------------------------------------------------------------------------------------


def record(bound: float, seed: int, status: str = "finished", value: float | None = 0.5, **more: Any) -> Record:
    return Record(
        id=f"{bound}-{seed}", point={BOUND: bound}, seed=seed, status=status, value=value,  # type: ignore[arg-type]
        finished_at=f"2026-01-01T00:00:0{seed}+00:00", **more,
    )  # fmt: skip


def test_a_study_remembers_its_trials_in_the_order_in_which_they_ended(study: StudyMaker) -> None:
    """A sampler that goes on learns of them in this order; files have that of their names."""
    made = study("lower-bound", {"seeds": 2})
    for each in (record(0.1, 1), record(0.2, 0), record(0.2, 2)):
        made.store.write_json(made.folder / "trials" / f"{each.id}.json", asdict(each))
    assert [each.id for each in read_records(made.folder)] == ["0.2-0", "0.1-1", "0.2-2"]
    made.read()
    assert [*made.records] == ["0.2-0", "0.1-1"], "a search of two seeds leaves a third one out"
    several = [replace(record(0.1, 0), point={"layers": layers}) for layers in (1, "first_last", None)]
    assert as_table(several).column("layers").to_pylist() == ["1", "first_last", None]


def test_the_mean_over_seeds_chooses_and_a_stopped_seed_is_said_and_not_averaged() -> None:
    every = scores.group_by_point([
        record(0.0, 0, value=0.70), record(0.0, 1, value=0.60), record(0.1, 0, value=0.66), record(0.1, 1, value=0.68),
        record(0.1, 2, value=0.1),  # of a search of more seeds
        record(0.2, 0, value=0.9), record(0.2, 1, "stopped", 0.2, step=10, steps=40),
        record(0.3, 0, value=0.9), record(0.3, 1, "infeasible", None, reason="out of memory: 1 GB"),
    ], 2)  # fmt: skip
    chosen, best = scores.best_by_mean(every, "max"), scores.best_trial(every, "max")
    assert chosen is not None and chosen.point == {BOUND: 0.1} and chosen.mean == pytest.approx(0.67)
    assert chosen.std == pytest.approx(math.sqrt(2) * 0.01) and best is not None and best.value == 0.9
    lines = scores.table(every, SPEARMAN, {}, most=len(every)).splitlines()
    assert lines[2].split() == ["lower_bound=0.1", "67.00", "1.41", "68.00", "2", "<-", "chosen"]
    assert "1 of 2 stopped early and not in the mean" in lines[3] and "90.00" in lines[3]
    assert "1 of 2 infeasible (out of memory)" in lines[4]
    assert "by mean over seeds: lower_bound=0.1 (67.00)" in lines and "lower_bound=0.2 (90.00, seed 0)" in lines[-2]
    assert lines[-1].startswith("No difference from 3 of the 3 other points is shown")

    alone = scores.group_by_point([record(0.1, 0, value=0.67), record(0.2, 0, value=0.66)], 1)
    text = scores.table(alone, SPEARMAN, {})
    assert "chosen: lower_bound=0.1 (67.00)" in text.splitlines() and "mean over" not in text
    ended = record(0.0, 0, value=0.7), record(0.1, 0, value=0.6), record(0.1, 1, value=0.6)
    said = scores.verdict(scores.group_by_point([*ended, record(0.0, 1, "stopped")], 3), "max", {})
    assert said == "One seed alone of the chosen point has finished: no difference between points is tested."


@pytest.mark.parametrize(
    ("others", "loses"),
    [
        # Differences of 0.02 and 0.04: their mean must be above 6.31 standard errors of 0.01, with one degree of freedom;
        # with a point of equal differences above 2.92 of 0.0071, with two. A scattered one of three seeds (0.03) adds to
        # the variance: above 2.35 of 0.018.
        ([(0.48, 0.46)], False), ([(0.44, 0.43)], True), ([(0.48, 0.46), (0.4, 0.4), (0.1,)], True),
        ([(0.48, 0.46), (0.43, 0.4, 0.37)], False), ([], False),
    ],
)  # fmt: skip
def test_a_race_is_lost_by_a_t_test_with_the_variance_of_all(others: list[tuple[float, ...]], loses: bool) -> None:
    best = (0.5, 0.5, 0.5)
    points = enumerate([best, *others])
    every = scores.group_by_point([record(b, s, value=v) for b, values in points for s, v in enumerate(values)], 3)
    assert scores.clearly_worse(every[-1 if not others else 1], every, "max") == loses
    nothing = scores.group_by_point([record(0.1, seed, "infeasible", None) for seed in (0, 1)], 3)
    assert not scores.clearly_worse(nothing[0], nothing, "max")


def test_points_are_compared_by_the_seeds_that_both_have() -> None:
    values = {0.0: (0.5, 0.5), 0.1: (0.4, 0.41, 0.9), 0.2: (0.5, 0.5), 0.3: (0.3,)}
    records = [record(bound, seed, value=v) for bound, of in values.items() for seed, v in enumerate(of)]
    ahead, *rivals = scores.group_by_point(records, 3)
    assert [scores.is_better(ahead, rival, "max") for rival in rivals] == [True, False, False]
    assert scores.verdict([ahead], "max", {}) == "", "there is no other point"


def test_a_choice_claims_no_more_than_its_paired_intervals_over_seeds() -> None:
    claimed = 0
    for number in range(60):
        dice = np.random.default_rng(number)
        seeds, means, noise = int(dice.integers(1, 6)), 0.6 + dice.normal(0, 0.02, 3), dice.choice([0.001, 0.02])
        values = {bound: means[i] + dice.normal(0, noise, seeds) for i, bound in enumerate((0.0, 0.1, 0.2))}
        records = [record(bound, seed, value=float(v)) for bound, of in values.items() for seed, v in enumerate(of)]
        every = scores.group_by_point(records, seeds)
        best = scores.best_by_mean(every, "max")
        assert best is not None
        top = values[best.point[BOUND]]
        others = {bound: of for bound, of in values.items() if bound != best.point[BOUND]}
        beaten = [bound for bound, of in others.items() if seeds > 1 and stats.ttest_rel(top, of).pvalue < 0.05]
        said = scores.verdict(every, "max", {BOUND: 0.2})
        claims = "it is better than each of the 2 other points" in said
        claimed += claims
        assert claims == (len(beaten) == 2), said
        if not claims:
            equal = [best.point[BOUND], *(bound for bound in others if bound not in beaten)]
            simplest = 0.2 if 0.2 in equal else min(equal)
            itself = "the chosen point is the simplest" in said
            if seeds == 1:
                assert said == "Every point has one seed: no difference between points is tested."
                continue
            assert f"No difference from {2 - len(beaten)} of the 2" in said
            assert itself == (simplest == best.point[BOUND]) and (itself or f"lower_bound={simplest:g}." in said)
    assert 6 < claimed < 54


def test_the_command_of_the_chosen_point_trains_what_its_trials_trained(study: StudyMaker) -> None:
    options = {"train.max_steps": 12, "sts.batch": 8, "seeds": 3, f"space.{BOUND}": "0.25,0.5", "seed": 4}
    made = study("lower-bound", options)
    best = scores.PointScores(3, [record(0.5, seed) for seed in range(3)])
    words = shlex.split(winning_command(made, best))
    assert words[:3] == ["raysts", "run", "sts"]
    asked = parse_overrides([word for before, word in itertools.pairwise(words) if before == "--set"])
    where = {before: word for before, word in itertools.pairwise(words) if before in ("--data", "--storage")}
    assert where == {"--data": made.plan.corpus.where, "--storage": str(made.plan.storage)}
    prompted = made.search.replace(pipeline=made.search.pipeline.replace(prompt="none"))
    words = shlex.split(winning_command(Study(prompted, made.plan, made.name), best))
    assert parse_overrides([words[words.index('prompt="none"')]]) == {"prompt": "none"}
    again = Plan(pipeline=pipeline("sts", asked), corpus=made.plan.corpus, storage=made.plan.storage)
    assert [node.id for node in again.members] == [made.trials({BOUND: 0.5})[seed].id for seed in range(3)]
    assert made.trials({BOUND: 0.25})[0].id != made.trials({BOUND: 0.5})[0].id


def trained(study: Study, trial: Any, owner: str | None = None) -> None:
    """What training leaves behind."""
    (trial.job.folder / "model").mkdir(parents=True)
    facts = {"run_id": trial.id, "status": "done", "study": owner or study.name, "dev": {"kept": 0.1}}
    write_record(trial.job.folder / "run.json", facts)


def models(study: Study) -> set[str]:
    return {path.parent.name for path in (study.plan.storage / "runs").glob("*/model")}


def test_the_best_trials_of_the_study_keep_their_models(study: StudyMaker) -> None:
    options = {"space.optim.lr": "log(1e-6,1e-2)", f"space.{BOUND}": None, "num_samples": 12, "seeds": 1, "keep": 4}
    made = study("lower-bound", options)
    made.search = made.search.replace(by="trial")
    dice = random.Random(1)

    def score(trial: Any) -> TrialOutcome:
        trained(made, trial)
        assert len(models(made)) <= 5, "the kept ones, and the one that has just been trained"
        return finished(dice.random())

    run_until(made, None, dice, score)
    ranked = sorted(made.records.values(), key=lambda r: -(r.value or 0))
    assert models(made) == {r.id for r in ranked[:4]} == {r.id for r in made.best()}
    assert made.choice["trials"] == [{"point": r.point, "seed": r.seed} for r in ranked[:4]]
    equal = [replace(r, value=0.5) for r in made.records.values()]
    best = best_trials({"name": "x", "mode": "max"}, equal, made.store, None)
    assert [trial.id for trial in best] == sorted(models(made)), "whichever ended first"
    for beaten in ranked[4:]:  # it does not count as done, and its record stays
        run = read_json(made.plan.storage / "runs" / beaten.id / "run.json")
        assert (run["status"], run["dev"]) == ("pruned", {"kept": 0.1})
    runs = [made.plan.storage / "runs" / kept.id for kept in ranked[:2]]
    for run_folder in runs:
        shutil.rmtree(run_folder / "model")
    write_record(runs[1] / "run.json", {"run_id": runs[1].name, "status": "pruned"})  # as another search does
    assert made.take_back() == [ranked[0]] and ranked[0].id not in made.records


def test_the_best_point_keeps_its_seeds_and_what_others_use_stays(study: StudyMaker) -> None:
    made = study("lower-bound", {"space.lower_bound": "0,.1,.2", "seeds": 2})
    values = {0.0: (0.5, 0.5), 0.1: (0.2, 0.9), 0.2: (0.1, 0.2)}
    tasks = TrialQueue(made)
    used = made.trials({BOUND: 0.2})[1]
    write_json(made.plan.storage / "pipelines" / "p.json", {"steps": [{"id": used.id}]})
    foreign = made.trials({BOUND: 0.2})[0]
    while (trial := tasks.next()) is not None:
        trained(made, trial, "another" if trial.id == foreign.id else None)
        tasks.done(trial.id, finished(values[trial.point[BOUND]][trial.seed]))
        if trial.point == {BOUND: 0.1} and trial.seed == 0:
            assert trial.id in models(made)  # beaten so far, but its mean may still be the best
    best = {made.trials({BOUND: 0.1})[seed].id for seed in range(2)}
    assert models(made) == best | {used.id, foreign.id}
    assert made.choice == {BOUND: 0.1} and made.choice_text == "lower_bound=0.1"
    assert [each.point[BOUND] for each in made.records.values()] == [0.0, 0.0, 0.1, 0.1, 0.2, 0.2]

    shutil.rmtree(made.folder / "trials")  # the records are lost, the runs are not
    again = study("lower-bound", {"space.lower_bound": "0,.1,.2", "seeds": 2})
    assert TrialQueue(again).next() is None
    assert len(again.records) == 6 and {r.value for r in again.records.values()} == {0.1}
    assert run_session(again, (), pytest.fail, SearchProgress(again)) == [] and again.about["status"] == "done"


def test_what_a_study_teaches_is_asked_of_its_best_point_or_its_best_trials(study: StudyMaker) -> None:
    made = study("lower-bound", {"seeds": 2})
    about = {"name": "x", "command": "raysts tune x", "mode": "max", "seeds": 2}
    about["pipeline"] = to_plain(made.search.pipeline)
    trials = [record(0.1, 0), record(0.1, 1), record(0.2, 0, value=0.9)]
    teachers, student = best_point(about, trials, None, "ensemble"), best_point(about, trials, 1, "sed")
    assert (teachers.members, student.members, [*student.recipes]) == (2, 1, ["sts", "sed"])
    assert best_point(about, trials, 4, "ensemble").members == 4, "two more seeds are trained"
    assert teachers.stages["sts"].settings.lower_bound == 0.1, "0.2 lacks a seed"  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="--top 0: must be at least 1"):
        best_point(about, trials, 0, "ensemble")
    for few in ([], trials[1:]):
        with pytest.raises(InputError, match="no point of it has all its 2 seeds"):
            best_point(about, few, None, "ensemble")
    with pytest.raises(InputError, match="it keeps no model"):
        best_trials(about, trials, made.store, None)
    for trial in trials[1:]:
        (made.plan.storage / "runs" / trial.id / "model").mkdir(parents=True)
    asked = [best_trials(about, trials, made.store, top) for top in (None, 2, 1)]
    assert [[trial.id for trial in of] for of in asked] == [["0.2-0", "0.1-1"], ["0.2-0", "0.1-1"], ["0.2-0"]]
    for top in (0, 3):
        with pytest.raises(InputError, match=f"--top {top}: must be from 1 to .* keeps, 2"):
            best_trials(about, trials, made.store, top)


def test_a_warm_start_takes_the_scores_of_another_study_that_lie_in_the_space(study: StudyMaker) -> None:
    sampled = {"space.lower_bound": "0..0.5", "num_samples": 3, "seeds": 1}
    made, other = study("lower-bound", sampled), study("lower-bound", sampled, name="other")
    for each in (record(0.1, 0), record(0.9, 0), record(0.2, 0, "infeasible", None)):
        other.store.write_json(other.folder / "trials" / f"{each.id}.json", asdict(each))
    assert [scored.point for scored in earlier_points(made, "other")] == [{BOUND: 0.1}]
    with pytest.raises(InputError, match="it holds: none"):
        study_record(Store.of(made.folder), "othr")
    for of, name, why in (
        (made, "othr", r"no study 'othr' .*did you mean 'other'.*it holds: (\w|-)+, \w+"),
        (made, made.name, "is this study itself"),
        (study("lower-bound", {"seeds": 1}, name="grid"), "other", "a grid learns nothing"),
        (
            study("lower-bound", {**sampled, "metric": "loss"}, name="by-loss"),
            "other",
            "by spearman, this search by loss",
        ),
    ):
        with pytest.raises(InputError, match=why):
            earlier_points(of, name)


def test_the_database_is_a_view_of_the_records(study: StudyMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    import optuna

    said: list[str] = []
    made = study("lower-bound", {"seeds": 2})
    path = made.folder / "optuna.db"
    ended = record(0.0, 0, curve=((5, 0.3), (10, 0.5))), record(0.0, 1, "stopped", 0.2, curve=((5, 0.2),))
    made.records = {each.id: each for each in ended}
    path.mkdir(parents=True)
    monkeypatch.setattr(exports, "say", said.append)
    exporter(made)
    assert len(said) == 1 and said[0].startswith("optuna.db: ") and "the search goes on" in said.pop()
    path.rmdir()
    path.write_bytes(b"torn by a kill")
    for _ in range(2):
        exporter(made)(record(0.05, 0, "infeasible", None, reason="out of memory"))
    assert said == []
    found = optuna.load_study(study_name="lower-bound", storage=f"sqlite:///{path}").trials
    assert [trial.state.name for trial in found] == ["COMPLETE", "PRUNED", "FAIL"]
    assert found[0].params == {BOUND: 0.0, "seed": 0} and found[0].value == 0.5
    assert found[0].intermediate_values == {5: 0.3, 10: 0.5} and found[2].user_attrs["reason"] == "out of memory"
