"""Whole runs and searches with their storage in a bucket; the machine they go on on has nothing but the bucket."""

import json
import shutil
from pathlib import Path
from typing import Any

import killed
import pytest
import s3_server
from run_commands import raysts

from raysts.commands.context import load as load_model
from raysts.commands.context import store_of
from raysts.commands.run import run as run_recipe
from raysts.commands.tune import tune as run_search
from raysts.errors import InputError
from raysts.storage import lease
from raysts.storage.bucket import Bucket
from raysts.storage.store import Store
from raysts.training import checkpoint

SHORT = {
    "members": 2, "train.max_steps": 6, "train.eval_every": 6, "train.checkpoint_every": 3, "train.max_length": 24,
    "sed.data.sample": 100, "evaluation.tasks": ["stsb"], "evaluation.resamples": 4,
}  # fmt: skip
WEIGHTS = "model/model.safetensors"


def run(where: Any, backbone: Path, world: Path, **options: Any) -> dict[str, Any]:
    given = {"backbone": str(backbone), **SHORT}
    return run_recipe("nli-sed", given, world, where, address="none", **options)


@pytest.fixture(scope="module")
def calm(small_world: Path, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same run undisturbed, in a folder."""
    return run(tmp_path_factory.mktemp("calm"), tiny_backbone, small_world)


@pytest.fixture(scope="module")
def done(s3_endpoint: str, small_world: Path, tiny_backbone: Path, tmp_path_factory: Any) -> tuple[str, dict[str, Any]]:
    """(URI, result) of a run whose mirror is gone: what tests may read."""
    mirrors = tmp_path_factory.mktemp("mirrors")
    with pytest.MonkeyPatch.context() as patch:
        s3_server.environment(s3_endpoint, mirrors, patch.setenv)
        uri = f"s3://{s3_server.new_bucket()}/some/prefix"
        found = run(uri, tiny_backbone, small_world)
    shutil.rmtree(mirrors)
    return uri, found


def restored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps from which runs go on, as they begin."""
    steps: list[int] = []
    real = checkpoint.restore

    def restore(*arguments: Any) -> Any:
        found = real(*arguments)
        steps.append(found.step)
        return found

    monkeypatch.setattr(checkpoint, "restore", restore)
    return steps


def bucket_of(root: Path) -> Bucket:
    store = Store.of(root)
    assert store.remote
    return store.bucket


def content(root: Path, name: str) -> bytes:
    there = bucket_of(root).read(name)
    assert there
    return there[0]


def names(root: Path, folder: Path | str) -> list[str]:
    return [path.name for path in Store.of(root).list(folder)]


def values(found: dict[str, Any]) -> list[Any]:
    timeless = ("created_at",)
    return [{key: value for key, value in row.items() if key not in timeless} for row in found["results"]]


def same_weights(root: Path, calm: dict[str, Any]) -> None:
    """Every run of the store is bit for bit that of the calm storage."""
    runs = Path(calm["storage"]) / "runs"
    assert names(root, "runs") == sorted(path.name for path in runs.iterdir())
    for path in runs.iterdir():
        assert content(root, f"runs/{path.name}/{WEIGHTS}") == (path / WEIGHTS).read_bytes()
        assert json.loads(content(root, f"runs/{path.name}/run.json"))["status"] == "done"


def test_a_run_in_a_bucket_is_that_in_a_folder_and_is_not_run_again_without_its_mirror(
    done: tuple[str, dict[str, Any]], calm: dict[str, Any], s3: str, small_world: Path, tiny_backbone: Path,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    uri, first = done
    assert values(first) == values(calm) and first["storage"].startswith(uri)
    root = store_of(uri).root
    same_weights(root, calm)
    held = bucket_of(root).list_objects("runs", recursive=True)
    assert not [name for name in held if "checkpoints" in name]
    locks = [name for name in bucket_of(root).list_objects("", recursive=True) if name.endswith(".lock")]
    assert len(locks) == 4 and not any(json.loads(content(root, name))["held"] for name in locks)

    monkeypatch.setattr(checkpoint, "restore", lambda *arguments: pytest.fail("trains again"))
    again, mirror = run(uri, tiny_backbone, small_world), str(tmp_path / "mirrors")
    at = {key: value.split("/s3+")[1] for key, value in again.items() if key in ("model", "report")}
    assert at == {key: first[key].split("/s3+")[1] for key in at} and again["model"].startswith(mirror)
    assert {**again, **at} == {**first, **at}
    assert (Path(again["model"]) / "model.safetensors").is_file() and Path(again["report"]).is_file()
    assert not (root / "tokens").exists() or not list(root.glob("tokens/*/part-*")), "brought what nobody reads"
    assert content(root, "logs/nli-sed.log").decode().count(" steps, ") == 2, "lines of another machine's driver stay"


def test_a_run_id_is_a_model_wherever_the_bucket_is(done: Any, s3: str, small_world: Path, tmp_path: Path) -> None:
    uri, found = done
    run_id = Path(found["model"]).parent.name
    measured = raysts("evaluate", run_id, "--tasks", "stsb", "--data", small_world, "--storage", uri, "--json")
    assert measured.code == 0, measured.err
    printed = json.loads(measured.out)
    assert printed["storage"] == found["storage"]
    wanted = ("dataset", "aggregation", "subset", "layers", "metric", "similarity", "rows")
    before = {tuple(r[w] for w in wanted): r["value"] for r in found["results"] if r["role"] == "student"}
    after = {tuple(r[w] for w in wanted): r["value"] for r in printed["results"]}
    assert after and after.items() <= before.items()
    shutil.rmtree(tmp_path / "mirrors")
    assert load_model(run_id[:8], uri).encode(["a sentence"]).shape == (1, 32)
    with pytest.raises(InputError, match="is not there|beginning of"):
        load_model("0" * 16, uri)
    assert raysts("export", run_id, "--to", tmp_path / "exported", "--storage", uri).code == 0
    card = content(store_of(uri).root, f"runs/{run_id}/model/README.md")
    assert (tmp_path / "exported/README.md").read_text() == card.decode()
    stsb = ("--tasks", "stsb", "--resamples", 4, "--data", small_world)
    texts = ("--input", small_world / "sts/stsb_dev.parquet", "--column", "sentence1")
    vectors = (*texts, "--output", tmp_path / "vectors")
    for arguments in (
        ("compare", run_id, "nli-sed:ensemble", *stsb),
        ("embed", run_id, *vectors, "--address", "none"),
        ("plan", "distill", "--from-run", "nli-sed", "--data", small_world),
        ("report",),
    ):
        ended = raysts(*arguments, "--storage", uri)
        assert ended.code == 0, ended.err


KILLED = """
import os, sys
from raysts.commands.run import run
from raysts.storage import lease
from raysts.storage.bucket import Bucket
real, left = Bucket.replace, [2]

def replace(self, path, content, tag):
    if path.endswith("checkpoints.manifest.json"):
        left[0] -= 1
        if not left[0]:  # the second checkpoint is there, and nothing says so
            os.kill(os.getpid(), 9)
    return real(self, path, content, tag)

Bucket.replace = replace
if sys.argv[4:]:
    lease.place = lambda: sys.argv[4]
run("nli-sed", eval(sys.argv[1]), sys.argv[2], sys.argv[3], address="none")
"""


@pytest.mark.parametrize("machine", ["", pytest.param("another", marks=pytest.mark.slow)])
def test_killed_in_the_middle_of_an_upload_it_goes_on_on_another_machine(
    machine: str, s3: str, calm: dict[str, Any], small_world: Path, tiny_backbone: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    given = repr({"backbone": str(tiny_backbone), **SHORT})
    assert killed.exit_code(KILLED, given, str(small_world), s3, *filter(None, [machine])) == -9
    root = store_of(s3).root
    (run_id,) = names(root, "runs")
    there = bucket_of(root).list_objects(f"runs/{run_id}/checkpoints")
    assert {"step-0000003.pt", "step-0000006.pt"} <= there.keys(), "torn: the new checkpoint without its manifest"
    assert json.loads(content(root, "locks/nli-sed.lock"))["held"], "the lock of the dead is left"

    shutil.rmtree(tmp_path / "mirrors")
    steps = restored(monkeypatch)
    if machine:  # who knows whether it is dead: both locks are watched for four beats
        monkeypatch.setattr(lease, "BEAT", 1.0)
    found = run(s3, tiny_backbone, small_world)
    assert steps == [3, 0, 0], "the first member from its checkpoint, the second and the student from the start"
    assert values(found) == values(calm)
    same_weights(root, calm)
    metrics = (root / "runs" / run_id / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in metrics] == sorted({json.loads(line)["step"] for line in metrics})


def test_a_second_driver_is_refused_from_this_machine_and_from_another(
    s3: str, small_world: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = store_of(s3).root
    with Store.of(root).lock("locks/nli-sed.lock", "raysts run nli-sed"):
        with pytest.raises(InputError, match="held by raysts run nli-sed"):
            run(s3, tiny_backbone, small_world)
        monkeypatch.setenv("RAYSTS_MIRROR", str(tmp_path / "another machine"))
        with pytest.raises(InputError, match=r"s3://.* is held by raysts run nli-sed \(process \d+ on "):
            run(s3, tiny_backbone, small_world)
    assert not bucket_of(root).list_objects("runs", recursive=True), "the refused have written nothing"


KILLED_SEARCH = KILLED.replace("left = Bucket.replace, [2]", "left = Bucket.replace, [4]")
KILLED_SEARCH = KILLED_SEARCH.replace('run("nli-sed", ', 'tune("lower-bound", ')
KILLED_SEARCH = KILLED_SEARCH.replace("commands.run import run\n", "commands.tune import tune\n")


def test_a_killed_search_goes_on_on_another_machine_from_the_bucket_alone(
    s3: str, small_world: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in its second trial: the first is not repeated, the second goes on, and the points are those it had drawn."""
    import optuna

    lr = "sts.optim.lr"
    given = {
        "backbone": str(tiny_backbone), "train.max_steps": 6, "train.checkpoint_every": 2, "train.max_length": 24,
        "sts.data.sample": 96, "space.optim.lr": "log(1e-5,1e-3)", "space.lower_bound": None, "num_samples": 3, "seeds": 1,
    }  # fmt: skip
    assert killed.exit_code(KILLED_SEARCH, repr(given), str(small_world), s3) == -9
    root = store_of(s3).root
    bucket, study = bucket_of(root), "studies/lower-bound"
    (first,) = (name for name in bucket.list_objects(f"{study}/trials") if name.endswith(".json"))
    record = content(root, f"{study}/trials/{first}")
    asked = json.loads(content(root, f"{study}/asked.json"))
    assert len(asked) == 2 and asked[0] == json.loads(record)["point"]
    assert json.loads(content(root, f"{study}/study.json"))["status"] == "running"

    shutil.rmtree(tmp_path / "mirrors")
    monkeypatch.setenv("RAYSTS_MIRROR", str(tmp_path / "another machine"))
    steps = restored(monkeypatch)
    found = run_search("lower-bound", given, small_world, s3, address="none")
    assert steps == [2, 0], "the second trial from its checkpoint, the third from the start, and not the first"
    assert found["trials"] == 3 == len({point["overrides"][lr] for point in found["points"]})
    assert [point["overrides"] for point in found["points"][:2]] == asked
    assert content(root, f"{study}/trials/{first}") == record
    assert len([name for name in bucket.list_objects(f"{study}/trials") if name.endswith(".json")]) == 3

    here = tmp_path / "optuna.db"
    bucket.download(f"{study}/optuna.db", here)
    for path in (here, Path(found["study"]) / "optuna.db"):
        view = optuna.load_study(study_name="lower-bound", storage=f"sqlite:///{path}")
        assert [trial.state.name for trial in view.trials] == ["COMPLETE"] * 3
        assert {trial.params[lr] for trial in view.trials} == {point["overrides"][lr] for point in found["points"]}

    grid = {**given, "space.optim.lr": [point[lr] for point in asked], "num_samples": None}
    calm = run_search("lower-bound", grid, small_world, tmp_path / "calm", address="none")
    values = {point["run"]: point["value"] for point in found["points"]}
    assert {point["run"]: point["value"] for point in calm["points"]}.items() <= values.items()
    kept = [name for name in names(root, "runs") if bucket.entry(f"runs/{name}/model.manifest.json")]
    assert kept == [found["best_run"]["run"]], "the beaten models are removed from the bucket too"

    monkeypatch.setenv("RAYSTS_MIRROR", str(tmp_path / "a third machine"))
    monkeypatch.setattr(checkpoint, "restore", lambda *arguments: pytest.fail("trains again"))
    again = run_search("lower-bound", given, small_world, s3, address="none")
    assert {**again, "study": 0, "report": 0} == {**found, "study": 0, "report": 0}
