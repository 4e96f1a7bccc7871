"""How a driver takes a plan to its end, with an executor that trains nothing: failures, damage, what it says and keeps."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from run_commands import listening, overrides, plan_of, raysts, result
from safetensors.torch import load_file
from small_runs import difference, write_backbone

from raysts.errors import RunFailed
from raysts.pipeline.executor import LocalExecutor, fail
from raysts.pipeline.plan import Plan
from raysts.pipeline.price import Rates
from raysts.pipeline.run import Driver, run_batch
from raysts.pipeline.step import Context, batches, select_members
from raysts.pipeline.steps.agreement import EmbedTexts
from raysts.report.run import report_data, write_report
from raysts.storage.store import Store

SMALL = {
    "evaluation.tasks": ["stsb"], "evaluation.resamples": 0, "evaluation.layers": [1], "evaluation.compare": 1,
    "student_pooling": 1, "data.sample": 40, "train.max_length": 16,
}  # fmt: skip


class Pretender(LocalExecutor):
    """An executor that trains nothing: a run's model is one of ``models``, by the member's number, or its parent. The larger the
    number, the higher the score."""

    def __init__(self, *failing: str, models: Sequence[Path] = ()) -> None:
        super().__init__(threads=1, device="cpu")
        self.failing, self.models, self.trained, self.embedded = failing, models, list[str](), 0

    def map(self, worker: Any, args: tuple[Any, ...], units: Sequence[Any], resources: Any) -> Iterator[Any]:
        self.embedded += len(units) * (worker is EmbedTexts)
        return super().map(worker, args, units, resources)

    def train(self, chains: Sequence[Sequence[Any]], resources: Any) -> list[str | None]:
        return [next(filter(None, map(self._train, chain)), None) for chain in chains]

    def _train(self, job: Any) -> str | None:
        if job.title in self.failing:
            return fail(job, RunFailed("no memory"))
        with Store.of(job.folder).put_dir(job.folder / "model") as draft:
            made = self.models[job.facts["member"]] if self.models and job.facts["role"] == "member" else job.parent
            shutil.copytree(made, draft, dirs_exist_ok=True)
        record = {"run_id": job.id, "status": "done", "steps": 4, "dev": {"kept": 0.1 * (job.facts["member"] or 0)}}
        record |= {**job.facts, "seed": job.seed, "timings": {"train_seconds": 2.0, "startup_seconds": 1.0}}
        Store.of(job.folder).write_json(job.folder / "run.json", record)
        self.trained.append(job.title)
        return None


class Told:
    """What a driver says, and what it tells the screen."""

    def __init__(self, hear: Callable[[str], object] = str) -> None:
        self.lines, self.follows, self.hear = list[str](), list[tuple[Any, ...]](), hear

    def run(self, plan: Plan, executor: LocalExecutor, name: str = "it", **options: Any) -> dict[str, Any]:
        with listening(lambda line: (self.lines.append(line), self.hear(line))):
            return Driver(plan, executor, name, "", follow=lambda *given: self.follows.append(given), **options).run()

    def __contains__(self, text: str) -> bool:
        return any(text in line for line in self.lines)


@pytest.fixture
def planned(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> Callable[..., Plan]:
    def made(name: str, data: Path = few_world, **more: Any) -> Plan:
        asked = {"backbone": str(tiny_backbone), "members": 2, **SMALL}
        return plan_of(name, asked | {key.replace("__", "."): value for key, value in more.items()}, data, tmp_path)

    return made


def test_members_that_fail_are_left_out_if_enough_finish(planned: Callable[..., Plan]) -> None:
    """Two of three are the best two; mended, the run takes the best two of all three."""

    def run(least: int | None, *failing: str) -> Any:
        told, shown = Told(), list[Any]()
        plan = planned("nli-sed", members=3, select_top=2, min_members=least)
        try:
            return plan, told.run(plan, Pretender(*failing), report=lambda *given: shown.append(given[1])), told
        except RunFailed as error:
            assert shown.pop()["status"] == plan.store.read_json("pipelines/it.json")["status"] == "failed"
            return str(error)

    for least, why in (
        (None, "2 of 3 finished; run the same command again"),
        (3, "2 of 3 finished, and min_members=3;"),
    ):
        reason, ended = run(least, "member 1 nli").splitlines()
        assert reason.startswith("member 1 nli (run ") and "no memory [log: " in reason and ended.startswith(why)
    assert run(2, "member 1 nli", "sed").splitlines()[-1].startswith("0 of 1 finished; run"), "the only student"
    plan, found, told = run(2, "member 1 nli")
    assert "going on with 2 of 3 members (min_members=2); the others failed" in told
    assert [member["member"] for member in found["left_out"]] == [1] and found["left_out"][0]["reason"] == "no memory"
    assert {row["member"] for row in found["results"] if row["role"] == "member"} == {0, 2}
    (manifest,) = plan.storage.glob("embeddings/*/manifest.json")
    ids = [chain[-1].id for chain in plan.chains]
    assert json.loads(manifest.read_text())["members"] == [ids[0], ids[2]]
    assert manifest.parent.name != plan.teacher.vectors.id
    assert "the 2 of 3 members that finished" in (Path(found["model"]) / "README.md").read_text()
    mended = planned("nli-sed", members=3, select_top=2, min_members=2)
    Pretender().train([[step.training for step in mended.chains[1]]], None)
    assert [member.id for member in select_members(mended.members, 2)] == ids[1:] and mended.left_out == []


def test_what_is_damaged_on_the_way_is_made_again_once(planned: Callable[..., Plan]) -> None:
    plan, executor = planned("nli", members=1), Pretender()
    told = Told(lambda line: line.startswith("evaluate members: done") and model.write_bytes(b"torn"))
    model = plan.members[0].output / "model.safetensors"
    assert told.run(plan, executor)["model"] == str(plan.members[0].output), "the last look is at what is delivered"
    assert len(executor.trained) == 2 and model.stat().st_size > 100
    raw = planned("raw", seed=1)
    rows = raw.evaluations[0].step.output
    told = Told(lambda line: line.startswith("evaluate backbone: done") and rows.write_bytes(b"torn"))
    with pytest.raises(RunFailed, match=f"{raw.store.uri}: what was just written is damaged; look at the disk"):
        told.run(raw, executor)
    assert [line for line in told.lines if line.startswith("evaluate backbone: done")][1:], "it is made again once"


def test_the_screen_follows_what_begins_and_what_is_left(planned: Callable[..., Plan]) -> None:
    plan, told = planned("nli"), Told()
    rates = Rates(plan.store)
    found = told.run(plan, Pretender())
    titles, rest, running, measured, texts = zip(*told.follows, strict=True)
    steps = {step.title: step for step in plan.steps}
    assert titles == ("tokenise nli/train", "2 runs train", "evaluate backbone", "evaluate members")
    assert texts == tuple(steps[title].sentences if title in steps else 0 for title in titles)
    assert rest == tuple(pytest.approx(sum(running[number:])) for number in range(4)) and {*measured} == {0}
    assert running[1] > 1.9 * rates.predict(plan.chains[0][0]).seconds, "both runs, one after the other"
    told.run(planned("nli", members=1, seed=1), Pretender())
    assert told.follows[4][0] == "member 0: nli"
    by = {(row["run_id"], row["selected_by"]) for row in found["results"] if row["role"] == "member"}
    assert by == {(plan.members[0].id, None), (plan.members[1].id, "stsb-dev")}, "of those that are left out none chose"


def test_a_run_that_goes_on_keeps_its_price_and_another_of_its_name_replaces_it(
    planned: Callable[..., Plan], few_world: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    def run(*done: str, **asked: Any) -> tuple[dict[str, Any], str]:
        """The record of ``nli``, or what is asked for, and what is said besides that some steps are done."""
        told, plan = Told(), planned(asked.pop("name", "nli"), **{"members": 1, **asked})
        told.run(plan, Pretender(), "nli", prices={"cpu-hour": 1.0}, report=write)
        assert all(line in told.lines for line in done), told.lines
        return json.loads((tmp_path / "pipelines" / "nli.json").read_text(encoding="utf-8")), " ".join(told.lines)

    def write(store: Store, record: dict[str, Any]) -> Path:
        return write_report(report_data(store, record), tmp_path / "page")

    plan = planned("nli", members=1)
    evaluated = [evaluation.step for evaluation in plan.evaluations]
    first, said = run("nli: 4 steps, 0 done")
    assert "expected: " in said and "replaces" not in said and {*plan.states().values()} == {"done"}
    page = next(tmp_path.glob("page/**/index.html")).read_text(encoding="utf-8")
    assert all("costs" in first["price"][key] and first["price"][key] in page for key in ("expected", "taken"))
    assert first["seconds"].keys() == first["expected"].keys() == {step.id for step in plan.steps}
    left = plan.members[0].output.parent / "checkpoints" / "step-1.pt", tmp_path / "evaluations" / evaluated[1].id / "x"
    for path in left:
        path.parent.mkdir(parents=True)
        path.touch()
    evaluated[0].output.unlink()
    again, _ = run("nli: 4 steps, 3 done before")
    assert not any(path.exists() for path in left), "a kill came before they were removed"
    assert (again["expected"], again["price"]["expected"]) == (first["expected"], first["price"]["expected"])
    same, said = run("nli: 4 steps, 4 done before")
    assert "expected: " not in said and same["price"] == again["price"]
    words = ["--data", few_world, "--storage", tmp_path, *overrides({**SMALL, "members": 1, "backbone": tiny_backbone})]
    shown = result("plan", "nli", *words)
    assert [node["seconds"] for node in shown["nodes"]] == [same["seconds"][node["id"]] for node in shown["nodes"]]
    assert shown["price"]["seconds"] == shown["price"]["bytes"] == 0
    nodes, text = result("plan", "nli-sed", *words)["nodes"], raysts("plan", "nli-sed", *words).out
    assert all(node["id"] in text and node["title"] in text for node in nodes) and "8 steps, 6 left" in text
    other = planned("nli-sed", members=1, seed=7)
    left = [evaluation.step.left(other.store) for evaluation in other.evaluations]
    assert left == [0, 1, 1], "the backbone is scored"
    measured = [Rates(other.store).predict(step).measured for step in other.making if step.kind != "vectors"]
    assert measured == [True, True, True, False]
    states = {step.title: other.states()[step.id] for step in other.steps}
    assert states.pop("tokenise nli/train") == "done" and {*states.values()} == {"waiting"}
    raw, said = run(name="raw")
    for told in ("replaces an earlier run of this name", "no longer know 4 of its artifacts; another --name"):
        assert told in said
    assert raw["price"]["expected"] != first["price"]["expected"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    return [write_backbone(folder / str(seed), "bert", seed=seed) for seed in range(3)]


def weights_of(*folders: Path) -> dict[str, torch.Tensor]:
    """The mean of the weights of models."""
    states = [load_file(folder / "model.safetensors") for folder in folders]
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def make(plan: Plan, models: list[Path]) -> None:
    """Do all steps but those that measure."""
    for batch in batches(plan.making, ()):
        assert not run_batch(batch, Context(Pretender(models=models), plan.store))


@pytest.mark.parametrize(("name", "routes"), [("nli-soup", []), ("nli-sts-soup", [["nli"], ["sts"]])])
def test_an_average_of_best_members(name: str, routes: Any, planned: Callable[..., Plan], models: list[Path]) -> None:
    """They may be of several objectives."""
    plan = planned(name, members=3, select_top=2, routes=routes)
    make(plan, models)
    (soup,) = plan.soups.values()
    assert soup.record["parents"] == [member.id for member in plan.members[1:]]
    assert soup.record["selected_by"] == "stsb-dev" and plan.outcome.selected == soup.id
    assert difference(weights_of(soup.output), weights_of(*models[1:])) < 1e-7


def test_a_greedy_average_scores_each_model_once(planned: Callable[..., Plan], models: list[Path]) -> None:
    plan = planned("nli-greedy-soup", members=3)
    make(plan, models)
    record, ids = plan.soups["greedy-soup"].record, [member.id for member in plan.members]
    own = {id_: record["averages"][id_]["spearman"] for id_ in ids}
    assert max(ids, key=own.__getitem__) in record["parents"] and len(record["averages"]) == 3 + 2
    kept = record["averages"]["+".join(record["parents"])]
    assert (record["dev"], record["selected_by"]) == ({"kept": kept["spearman"], "scores": kept}, "stsb-dev")
    averaged = [models[ids.index(id_)] for id_ in record["parents"]]
    assert difference(weights_of(plan.soups["greedy-soup"].output), weights_of(*averaged)) < 1e-7


@pytest.mark.parametrize(("start", "count"), [("member", 1), ("average", 2)])
def test_where_a_student_starts(start: str, count: int, planned: Callable[..., Plan], models: list[Path]) -> None:
    plan = planned("nli-sed", student_start=start)
    make(plan, models)
    assert difference(weights_of(plan.outcomes[0].output), weights_of(*models[:count])) < 1e-7


def test_pipelines_share_what_is_measured(planned: Callable[..., Plan], few_world: Path, tmp_path: Path) -> None:
    """The backbone is measured for the first of them, members for the first that has them; rows are each pipeline's own: where
    other rows are clean, they are a mask on what was measured."""
    data, columns = Path(shutil.copytree(few_world, tmp_path / "data")), ["sentence1", "sentence2", "score"]
    train, test = (pq.read_table(data / f"sts/stsb_{part}.parquet").select(columns) for part in ("train", "test"))
    both = pa.concat_tables([train, test.slice(0, 30)], promote_options="permissive")
    pq.write_table(both, data / "sts/stsb_train.parquet")
    for system, embedded in (("nli-ensemble", 1 + 1), ("nli", 0), ("sts-ensemble", 1)):
        executor = Pretender()
        rows = Told().run(planned(system, data, members=1), executor)["results"]
        assert executor.embedded == embedded and {row["system"] for row in rows} == {system}
        count = Counter((row["role"], row["rows"]) for row in rows)
        for part in ("all", "clean") if system.startswith("sts") else ("all",):
            assert count["backbone", part] == count["member", part] > 0
            assert count["ensemble", part] == (0 if system == "nli" else count["backbone", part])


def test_the_card_names_the_licence_of_the_backbone(
    planned: Callable[..., Plan], copy_of: Callable[[Path, str], Path], tiny_backbone: Path
) -> None:
    """From its own card, if that names one. A folder is no name on the hub."""
    backbone, found = copy_of(tiny_backbone, "backbone"), []
    for card in ("license: mit", "license: [a, b]"):
        (backbone / "README.md").write_text(f"---\n{card}\n---\n")
        model = Told().run(planned("nli", members=1, backbone=str(backbone)), Pretender())["model"]
        found.append(yaml.safe_load((Path(model) / "README.md").read_text().split("---")[1]))
    assert [front.get("license") for front in found] == ["mit", None]
    assert not any("base_model" in front for front in found)
