"""Every kind of file in a storage, damaged in every way: the same command heals it, bit for bit, and names it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from damage import BYTES
from processes import small_windows
from run_commands import Outcome, overrides, raysts, result
from run_commands import plan_of as plan_recipe
from small_runs import Interrupted

from raysts import ids
from raysts.pipeline.executor import LocalExecutor
from raysts.pipeline.run import Driver
from raysts.recipes.overrides import parse_overrides
from raysts.storage.atomic import ASIDE

pytestmark = pytest.mark.whole

SMALL = {
    "backbone": "tiny", "members": 2, "train.max_steps": 4, "train.eval_every": 4, "train.checkpoint_every": 2,
    "sed.data.sample": 350, "evaluation.resamples": 4, "evaluation.tasks": "[stsb]", "evaluation.layers": "[1]",
    "evaluation.compare": 1,
}  # fmt: skip
CLOCKS = {
    "seconds", "examples_per_second", "created_at", "started_at", "finished_at", "timings", "card", "models", "expected", "price",
}  # fmt: skip
FILES = {
    "model of a member": "runs/MEMBER/model/model.safetensors",
    "configuration of a model": "runs/STUDENT/model/config.json",
    "run record": "runs/MEMBER/run.json",
    "recipe of a run": "runs/MEMBER/recipe.json",
    "metrics": "runs/MEMBER/metrics.jsonl",
    "backbone": "backbones/*/model.safetensors",
    "token store": "tokens/TOKENS/part-00000.arrow",
    "manifest of a token store": "tokens/*/manifest.json",
    "teacher means": "embeddings/*/shard-00000.parquet",
    "manifest of the means": "embeddings/*/manifest.json",
    "results": "results/*.parquet",
    "what was measured": "row_scores/*.parquet",
    "search for training text": "contamination/*.json",
    "record of the pipeline": "pipelines/*.json",
}
NOT_MADE_AGAIN = {"recipe of a run", "metrics"}
"""What nothing is made of: when it is gone a report goes without."""
READERS = {
    "model of a member": ["results", "embeddings"], "token store": ["runs/STUDENT"], "teacher means": ["runs/STUDENT"],
    "what was measured": ["results"],
}  # fmt: skip
"""What is removed so that a file is read: its content is looked at where it is used, before that its size."""

STUDY_FILES = {
    "record of a trial": "studies/*/trials/*.json",
    "record of the search": "studies/*/study.json",
    "points that were drawn": "studies/*/asked.json",
    "table of trials": "studies/*/trials.parquet",
    "database": "studies/*/optuna.db",
    "model that was kept": "runs/*/model/model.safetensors",
}
SEARCH = {
    "backbone": "tiny", "train.max_steps": 2, "sts.data.sample": 64, "space.optim.lr": "log(1e-5,1e-3)",
    "space.lower_bound": None, "num_samples": 2, "seeds": 1, "keep": 2,
}  # fmt: skip


class Reference:
    """A finished run, and the command that made it."""

    def __init__(self, folder: Path, world: Path) -> None:
        self.folder, self.storage = folder, folder / "storage"
        shutil.copytree(world, folder / "data")
        self.found = result(*self.command(self.storage))
        self.content = content(self.storage)
        runs = {row["role"].upper(): row["run_id"] for row in self.found["results"][::-1]}
        self.ids = {role: runs[role] for role in ("MEMBER", "STUDENT")}
        steps = json.loads((self.storage / "pipelines" / "nli-sed.json").read_bytes())["steps"]
        self.ids["TOKENS"] = next(step["id"] for step in steps if step["title"] == "tokenise wikipedia/sentences")

    def command(self, storage: Path) -> list[object]:
        where = ["--data", self.folder / "data", "--storage", storage, "--address", "none"]
        return ["run", "nli-sed", *where, *overrides(SMALL)]

    def copy(self, to: Path) -> Path:
        return Path(shutil.copytree(self.storage, to))

    def files(self, storage: Path, pattern: str) -> list[Path]:
        for role, run_id in self.ids.items():
            pattern = pattern.replace(role, run_id)
        return sorted(storage.glob(pattern))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, few_world: Path) -> Iterator[Reference]:
    with small_windows(70):  # tables have several
        yield Reference(tmp_path_factory.mktemp("damage"), few_world)


def content(storage: Path) -> dict[str, Any]:
    """What a storage holds, without what clocks say and without logs."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in storage.rglob("*") if path.is_file() and not path.name.startswith(".")):
        name = path.relative_to(storage).as_posix()
        endings = (".lock", ".manifest.json", "README.md")
        if ".damaged" in name or name.startswith(("reports/", "logs/", "rates/")) or name.endswith(endings):
            continue
        if name.startswith("results/"):
            found[name] = pq.read_table(path).drop_columns(["created_at", "git_commit"]).to_pylist()
        elif name.startswith("row_scores/"):
            found[name] = pq.read_table(path).to_pylist()
        elif path.name == "metrics.jsonl":
            found[name] = [timeless(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
        elif name.startswith("runs/") and path.name == "run.json":
            found[name] = timeless(json.loads(path.read_bytes()))
        elif name.startswith("pipelines/"):
            found[name] = timeless(json.loads(path.read_bytes()) | {"command": None})
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def timeless(value: dict[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in value.items() if name not in CLOCKS}


def damaged(path: Path, how: str) -> None:
    ids._digest.cache_clear()  # as in another process
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(BYTES[how](path.read_bytes()))


def check(outcome: Outcome, storage: Path, reference: Reference, without: set[str] = frozenset()) -> None:
    assert outcome.code == 0, outcome.err
    now = content(storage)
    differing = {name for name in reference.content.keys() | now.keys() if reference.content.get(name) != now.get(name)}
    assert differing - without == set()


class Mortal(LocalExecutor):
    """An executor that dies with the second unit of a map, and says which units it has ended."""

    def __init__(self) -> None:
        super().__init__(threads=1)
        self.ended: list[tuple[str, str]] = []

    def map(self, worker: Any, args: tuple[Any, ...], units: Sequence[Any], resources: Any) -> Iterator[Any]:
        for number, made in enumerate(super().map(worker, args, units, resources)):
            if number:
                raise Interrupted
            self.ended.append((worker.__name__, repr(units[number])))
            yield made


def test_killed_in_every_step_it_does_no_unit_twice_and_ends_the_same(reference: Reference, tmp_path: Path) -> None:
    storage, ended = tmp_path / "storage", list[tuple[str, str]]()
    settings = parse_overrides(overrides(SMALL)[1::2])
    for kills in range(40):
        executor = Mortal()
        plan = plan_recipe("nli-sed", settings, reference.folder / "data", storage)
        try:
            Driver(plan, executor, "nli-sed", "").run()
            break
        except Interrupted:
            assert kills < 30 and {*plan.states().values()} > {"done"}
        finally:
            ended += executor.ended
    assert len({*ended}) == len(ended) and kills > 2
    assert {name for name, _ in ended} == {"TokenizeGroup", "EmbedTeachers", "EmbedTexts"}
    check(Outcome(0, "", ""), storage, reference)


def test_a_second_run_removes_what_an_interrupted_one_left(reference: Reference, tmp_path: Path) -> None:
    storage = reference.copy(tmp_path / "storage")
    (evaluated, *_) = reference.files(storage, "results/*.parquet")
    run = f"runs/{reference.ids['MEMBER']}"
    folders = (".", "results", "tables", "evaluations", "row_scores", f"{run}/model")
    left = [
        storage / run / "checkpoints" / "step-0000004.pt",
        storage / "evaluations" / evaluated.stem / "model-000.parquet",
        *(storage / folder / f"{ASIDE}x.another-host.1.2" for folder in folders),
    ]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        os.utime(path, (1, 1))
    check(raysts(*reference.command(storage)), storage, reference)
    assert not [path for path in left if path.exists()]


def test_a_report_says_what_it_is_without(reference: Reference, tmp_path: Path) -> None:
    storage = reference.copy(tmp_path / "storage")
    command = ["report", "--name", "nli-sed", "--storage", storage]
    assert raysts(*command).err == ""
    damaged(reference.files(storage, FILES["results"])[0], "torn")
    damaged(reference.files(storage, FILES["run record"])[0], "missing")
    outcome = raysts(*command)
    assert outcome.code == 0 and "nli-sed: is without what is gone or damaged: " in outcome.err
    assert "member 0: nli" in outcome.err and "to make it again: raysts run nli-sed" in outcome.err


def test_whatever_is_done_is_read_through_when_asked(reference: Reference, tmp_path: Path) -> None:
    """Also what a run would not read again: a token store of finished runs."""
    storage = reference.copy(tmp_path / "storage")
    damaged(reference.files(storage, FILES["token store"])[0], "flipped")
    command = ["plan", *(part for part in reference.command(storage)[1:] if part not in ("--address", "none"))]

    def waiting(*more: str) -> list[str]:
        return [node["kind"] for node in result(*command, *more)["nodes"] if node["status"] != "done"]

    assert waiting() == [] and waiting("--verify") == ["tokens"]
    check(raysts(*reference.command(storage)), storage, reference)


TOGETHER = (
    ("model of a member", "backbone", "metrics"),
    ("configuration of a model", "recipe of a run", "manifest of a token store", "results"),
    ("run record", "token store", "manifest of the means", "search for training text"),
    ("teacher means", "what was measured", "record of the pipeline"),
)
"""Kinds that are all looked at, whichever of them are damaged."""


def cases() -> list[Any]:
    """Every kind of file with a flipped bit, the worst; each alone, in every way, when slow tests run too."""
    assert sorted(kind for kinds in TOGETHER for kind in kinds) == sorted(FILES)
    alone = [((kind,), how) for kind in FILES for how in (*BYTES, "missing")]
    return [(kinds, "flipped") for kinds in TOGETHER] + [pytest.param(*case, marks=pytest.mark.slow) for case in alone]


@pytest.mark.parametrize(("kinds", "how"), cases())
def test_damaged_files(
    kinds: tuple[str, ...], how: str, reference: Reference, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = reference.copy(tmp_path / "storage")
    paths = {kind: reference.files(storage, FILES[kind])[0] for kind in kinds}
    for path in paths.values():
        damaged(path, how)
    for reader in {reader for kind in kinds for reader in READERS.get(kind, ())}:
        shutil.rmtree(reference.files(storage, reader)[0])
    outcome = raysts(*reference.command(storage))
    for_ever = {path.relative_to(storage).as_posix() for kind, path in paths.items() if kind in NOT_MADE_AGAIN}
    check(outcome, storage, reference, for_ever)
    for kind, path in paths.items():
        named = f"{path.name} is damaged" in caplog.text or f"{path.parent} is damaged" in caplog.text
        assert named or how == "missing" or kind in NOT_MADE_AGAIN, kind  # a report may not be asked for


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory, few_world: Path) -> tuple[Path, dict[str, Any]]:
    """A folder with data and the storage of a finished search, and its result."""
    folder = tmp_path_factory.mktemp("search")
    shutil.copytree(few_world, folder / "data")
    return folder, searched(folder, folder / "storage")


def searched(folder: Path, storage: Path) -> dict[str, Any]:
    where = ["--data", folder / "data", "--storage", storage, "--address", "none"]
    found = result("tune", "lower-bound", *where, *overrides(SEARCH))
    files = storage.glob("runs/*/model/model.safetensors")
    weights = {path.parts[-3]: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    points = sorted(found["points"], key=lambda point: point["run"])  # told in the order in which they ended
    return {"points": points, "best": found["best"], "trials": found["trials"], "weights": weights}


@pytest.mark.slow
@pytest.mark.parametrize("how", [*BYTES, "missing"])
@pytest.mark.parametrize("kind", STUDY_FILES)
def test_one_damaged_file_of_a_search(kind: str, how: str, search: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, before = search
    storage = Path(shutil.copytree(folder / "storage", tmp_path / "storage"))
    damaged(min(storage.glob(STUDY_FILES[kind])), how)
    assert searched(folder, storage) == before


@pytest.mark.parametrize(
    "how", ["missing", *(pytest.param(how, marks=pytest.mark.slow) for how in ("empty", "zeros", "torn"))]
)
def test_all_files_at_once(how: str, reference: Reference, tmp_path: Path) -> None:
    storage = reference.copy(tmp_path / "storage")
    kinds = FILES.keys() - NOT_MADE_AGAIN - {"what was measured"}  # read for rows that are not there
    paths = {reference.files(storage, FILES[kind])[0] for kind in kinds}
    for path in paths:
        damaged(path, how)
    check(raysts(*reference.command(storage)), storage, reference)
