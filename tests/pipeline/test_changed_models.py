"""Models that change while they are used: what is named by a content id is made of that content, or not at all."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from run_commands import listening
from small_runs import write_backbone

import raysts
from raysts.errors import RunFailed
from raysts.ids import folder_id, guard_content
from raysts.models.pretrained import load

WORDS = (("small", "old", "red"), ("dog", "cat", "man"), ("runs", "sleeps", "eats", "sits"), ("house", "river", "tree"))
TEXTS = [f"the {size} {who} {does} {where} the {place}" for size, who, does, place in itertools.product(*WORDS)
         for where in ("near", "behind")]  # fmt: skip
SMALL = {
    "train.max_steps": 2, "train.max_length": 16, "sed.batch": 8, "sed.target": "concat", "evaluation.resamples": 2,
}  # fmt: skip


def by_rename(source: Path, target: Path) -> None:
    shutil.copyfile(source, target.with_name("new"))
    target.with_name("new").replace(target)


def in_place(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes())


def backbones(folder: Path) -> dict[str, Path]:
    """Two teachers, a student, and a model to put in the place of one."""
    names = ("a", "b", "student", "other")
    return {name: write_backbone(folder / name, "bert", seed=seed) for seed, name in enumerate(names)}


@pytest.fixture
def models(tmp_path: Path) -> dict[str, Path]:
    return backbones(tmp_path)


def distil(models: dict[str, Path], folder: Path, say: Callable[[str], None] = str) -> dict[str, Any]:
    text = folder / "texts.txt"
    text.write_text("\n".join(TEXTS))
    teachers, asked = [str(models["a"]), str(models["b"])], {**SMALL, "backbone": str(models["student"])}
    with listening(say):
        return raysts.distill(teachers, asked, text=text, storage=folder / "storage", address="none")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    """The word embeddings of a student of the same models whose run nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    student = load(distil(backbones(folder), folder)["model"], device="cpu")
    return student.encoder.backbone.embeddings.word_embeddings.weight


@pytest.mark.whole
@pytest.mark.parametrize(
    ("changed", "at", "how"),
    [
        ("a", "agreement of 2", in_place),
        ("a", "concatenated unit embeddings of 2 teachers ...", by_rename),
        ("student", "concatenated unit embeddings of 2 teachers: done", in_place),
        pytest.param("student", "tokenise texts ...", in_place, marks=pytest.mark.slow),
        pytest.param("student", "teachers: ", by_rename, marks=pytest.mark.slow),
    ],
)
def test_a_model_that_changes_during_a_run(
    changed: str, at: str, how: Callable[[Path, Path], None], models: dict[str, Path], undisturbed: torch.Tensor,
    tmp_path: Path,
) -> None:  # fmt: skip
    """It ends the run; with the model back the same command gives what an undisturbed run gives."""
    weights = models[changed] / "model.safetensors"
    kept, seen = shutil.copyfile(weights, tmp_path / "kept"), []

    def say(line: str) -> None:
        if at in line and not seen:
            seen.append(line)
            how(models["other"] / "model.safetensors", weights)

    with pytest.raises(RunFailed) as failed:
        distil(models, tmp_path, say)
    assert seen and f"{weights} (on " in str(failed.value) and "was changed after its id was made" in str(failed.value)
    (record,) = (tmp_path / "storage" / "pipelines").glob("*.json")
    assert json.loads(record.read_text(encoding="utf-8"))["status"] == "failed"
    how(kept, weights)
    again = load(distil(models, tmp_path)["model"], device="cpu")
    assert torch.equal(again.encoder.backbone.embeddings.word_embeddings.weight, undisturbed)


@pytest.mark.parametrize("how", [by_rename, in_place])
def test_a_change_while_it_embeds(how: Callable[[Path, Path], None], models: dict[str, Path], tmp_path: Path) -> None:
    """No shard is written that another model made; what is loaded does not change with its file."""
    weights, content = models["a"] / "model.safetensors", folder_id(models["a"])
    loaded = load(models["a"], device="cpu", content=content)
    before = loaded.encode(TEXTS)
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "in.parquet", row_group_size=50)
    how(models["other"] / "model.safetensors", weights)
    assert (loaded.encode(TEXTS) == before).all()
    with pytest.raises(RunFailed, match="was changed after its id was made"):
        load(models["a"], device="cpu", content=content)

    def say(line: str) -> None:
        if "0 done" in line:
            how(models["b"] / "model.safetensors", weights)

    with listening(say), pytest.raises(RunFailed, match=f"{weights} .on .*: model .* was changed"):
        raysts.embed(models["a"], tmp_path / "in.parquet", "text", tmp_path / "out", address="none")
    assert not [path for path in (tmp_path / "out").iterdir() if path.suffix == ".parquet"]


def test_weights_that_come_back_while_they_are_read(models: dict[str, Path], tmp_path: Path) -> None:
    """What was read in between is another model, though the files are again those of the id."""
    weights = models["a"] / "model.safetensors"
    content, kept = folder_id(models["a"]), weights.rename(tmp_path / "kept")
    shutil.copyfile(models["other"] / "model.safetensors", weights)
    with pytest.raises(RunFailed, match="was changed"), guard_content(models["a"], content):
        kept.replace(weights)


def test_vectors_that_change_during_a_run(models: dict[str, Path], tmp_path: Path) -> None:
    vectors = tmp_path / "vectors.parquet"
    made = load(models["a"], device="cpu").encode(TEXTS)
    pq.write_table(pa.table({"text": TEXTS, "embedding": list(made)}), vectors)
    models["a"] = vectors

    def say(line: str) -> None:
        if "agreement of 2" in line and line.endswith("..."):
            pq.write_table(pa.table({"text": TEXTS, "embedding": list(made[::-1])}), vectors)

    with pytest.raises(RunFailed, match=f"{vectors} .on .*was changed after its id was made"):
        distil(models, tmp_path, say)
