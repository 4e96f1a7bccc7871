"""What a model was trained on, read on the machine that trained it and on one that has only the bucket."""

import re
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from run_commands import TINY, overrides, result

from raysts.evaluation.contamination import TrainedOn, trained_on
from raysts.recipes.recipe import Data
from raysts.recipes.tree import to_plain
from raysts.storage import runs
from raysts.storage.store import Store


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(runs, "RUN_ID", re.compile(".*"))  # here they have names
    return Store.open(tmp_path / "storage" if request.param == "folder" else request.getfixturevalue("memory"))


def write_run(store: Store, run: str, table: str, parents: list[str], **record: Any) -> Path:
    with store.put_dir(f"runs/{run}/model") as draft:
        (draft / "config.json").write_text("{}")
    facts = {"parents": parents, "backbone": "tiny", "backbone_id": "tinyid", "status": "done"}
    store.write_json(f"runs/{run}/recipe.json", {"data": to_plain(Data())})
    data = {"table": table, "sha256": f"sha-{table}", "rows": 3}
    store.write_json(f"runs/{run}/run.json", {**facts, "data": data, **record})
    return store.path(f"runs/{run}/model")


def of(model: Path) -> TrainedOn:
    store = Store.of(model)
    if store.remote:
        shutil.rmtree(store.root, ignore_errors=True)
    return trained_on(model)


def tables(trained: TrainedOn) -> set[str]:
    return {text.table for text in trained.texts}


def test_training_text_of_a_student_is_that_of_its_members_chain_too(store: Store, tmp_path: Path) -> None:
    write_run(store, "nli0", "nli/train", ["tinyid"])
    write_run(store, "ct0", "wikipedia/sentences", ["nli0"])
    student = write_run(store, "sed", "sts/stsb_train", ["tinyid", "means"])
    store.write_json("embeddings/means/manifest.json", {"members": ["ct0", "elsewhere"]})
    trained = of(student)
    assert tables(trained) == {"nli/train", "wikipedia/sentences", "sts/stsb_train"}
    assert trained.unknown == ("teacher elsewhere (not a run of this storage)",)
    bert = write_run(store, "bert", "nli/train", ["bertid"], backbone="bert-base", backbone_id="bertid")
    assert of(bert).unknown == ("backbone 'bert-base'",)
    store.write_json("runs/bernd/run.json", {"status": "pruned"})
    with store.put_dir("runs/berta/model") as draft:
        (draft / "config.json").write_text("{}")
    # A path, and the beginning of a run id, which others without model or record have.
    for backbone in (str(bert), "ber"):
        started = write_run(store, "more", "sts/stsb_train", ["x"], backbone=backbone, backbone_id="x")
        assert tables(of(started)) == {"nli/train", "sts/stsb_train"}
    assert "no record" in trained_on(tmp_path / "somewhere").unknown[0]


def test_an_ancestor_that_cannot_be_read_is_unknown(store: Store) -> None:
    write_run(store, "nli0", "nli/train", ["tinyid"])
    child = write_run(store, "ct0", "wikipedia/sentences", ["nli0"])
    assert (tables(of(child)), of(child).unknown) == ({"wikipedia/sentences", "nli/train"}, ())
    for gone in ("recipe.json", "run.json"):
        store.delete(f"runs/nli0/{gone}")
        trained = of(child)
        assert tables(trained) == {"wikipedia/sentences"} and len(trained.unknown) == 1 and "nli0" in trained.unknown[0]
    student = write_run(store, "sed", "sts/stsb_train", ["tinyid", "means"])
    assert of(student).unknown == ("teacher means (not a run of this storage)",), "its means have no record"


def test_what_a_student_starts_from_is_made_of_its_members(store: Store) -> None:
    write_run(store, "nli0", "nli/train", ["tinyid"])
    write_run(store, "average", "none", ["nli0"])
    store.write_json("runs/average/run.json", {"parents": ["nli0"], "status": "done"})
    store.write_json("embeddings/means/manifest.json", {"members": ["nli0"]})
    student = write_run(store, "sed", "sts/stsb_train", ["average", "means"])
    assert (tables(of(student)), of(student).unknown) == ({"sts/stsb_train", "nli/train"}, ())
    other = write_run(store, "sed", "sts/stsb_train", ["others", "means"])
    assert tables(of(other)) == {"sts/stsb_train", "nli/train"} and "parent" in of(other).unknown[0]


def test_only_records_say_that_a_backbone_was_trained_on_nothing(store: Store) -> None:
    for name in ("tiny-a", "tiny-b", "average-a"):
        with store.put_dir(f"backbones/{name}") as draft:
            (draft / "config.json").write_text("{}")
    store.write_json("pipelines/x.json", {"pipeline": {"backbone": "tiny"}, "backbone_id": "a"})
    store.write_json("pipelines/y.json", {"pipeline": {"backbone": "bert-base"}, "backbone_id": "b"})
    assert of(store.path("backbones/tiny-a")) == TrainedOn()
    for other in ("backbones/tiny-b", "backbones/average-a", "models/tiny-a", "tiny-a", "backbones/tiny-"):
        assert of(store.path(other)).unknown, other
    write_run(store, "ct0", "nli/train", ["c"], backbone_id="c")
    assert of(store.path("backbones/tiny-b")).unknown
    write_run(store, "nli0", "nli/train", ["b"], backbone_id="b")
    assert of(store.path("backbones/tiny-b")) == TrainedOn()


def test_teachers_of_known_content_are_looked_up_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "RUN_ID", re.compile(".*"))
    store = Store.open(tmp_path / "storage")
    write_run(store, "nli0", "nli/train", ["tinyid"])
    write_run(store, "ct0", "wikipedia/sentences", ["tinyid"])
    store.write_json("embeddings/means/manifest.json", {"members": ["of nli0", "of ct0", "elsewhere", "gone"]})
    student = write_run(store, "sed", "sts/stsb_train", ["tinyid", "means"])
    records = {"a": {"of nli0": "nli0"}, "b": {"of ct0": "ct0", "gone": "gone"}, "c": {}}
    for name, reads in records.items():
        folders = {content: f"runs/{run}/model" for content, run in reads.items()}
        store.write_json(f"pipelines/{name}.json", {"reads": folders})
    store.write_json("pipelines/d.json", {"name": "d"})
    with patch.object(Store, "read_json", autospec=True, side_effect=Store.read_json) as read:
        trained = trained_on(student)
    assert tables(trained) == {"nli/train", "wikipedia/sentences", "sts/stsb_train"}
    gone = f"'{store.path('runs/gone/model')}' (no record of a run beside it)"
    assert trained.unknown == ("teacher elsewhere (not a run of this storage)", gone)
    assert [Path(call.args[1]).parent.name for call in read.call_args_list].count("pipelines") == 4, "each record once"


def test_what_stands_beside_a_model_from_elsewhere_is_left_alone(tmp_path: Path) -> None:
    """Also where it has the name of a record, and is none."""
    (tmp_path / "model").mkdir()
    (tmp_path / "run.json").write_text("[1]")
    assert "no record" in trained_on(tmp_path / "model").unknown[0] and (tmp_path / "run.json").read_text() == "[1]"


# -- models that commands trained ------------------------------------------------------------------------------------------
SHORT = {"train.max_steps": 1, "evaluation.tasks": "[stsb]", "evaluation.resamples": 0}
FEW = {"sed.data.sample": 60, "sed.batch": 8, **SHORT}
ONE = {**TINY, "members": 1, **SHORT}
LEARNT = {"wikipedia/sentences", "nli/train"}


@pytest.fixture(scope="module")
def trained_nli(few_world: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[object]]:
    """Return an NLI model of one step, whose run has the name a, and the options of its storage."""
    folder = tmp_path_factory.mktemp("lineage")
    place = ["--data", few_world, "--storage", folder / "s", "--address", "none"]
    return Path(result("run", "nli", "--name", "a", *place, *overrides(ONE))["model"]), place


@pytest.mark.parametrize("named", ["folder", *(pytest.param(n, marks=pytest.mark.slow) for n in ("--from-run=a", "a"))])
def test_teachers_that_a_distillation_names(named: str, trained_nli: tuple[Path, list[object]]) -> None:
    """By their run, or by a folder of this storage."""
    teacher, place = trained_nli
    named = str(teacher) if named == "folder" else named
    done = result("distill", named, "--name", "b", *place, *overrides(FEW))
    trained = trained_on(Path(done["model"]))
    assert not trained.unknown and tables(trained) == LEARNT


@pytest.mark.parametrize("layers", [1, pytest.param(None, marks=pytest.mark.slow)])
def test_a_backbone_that_is_a_run_of_the_storage(layers: int | None, trained_nli: tuple[Path, list[object]]) -> None:
    other = {**ONE, "backbone": "a"} | ({"backbone_layers": layers} if layers else {})
    trained = trained_on(Path(result("run", "ct", *trained_nli[1], *overrides(other))["model"]))
    assert not trained.unknown and tables(trained) == LEARNT
