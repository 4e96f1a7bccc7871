"""Prompts in a pipeline: what members, students and teachers read, and what the trained model says of itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_runs import distillation, write_backbone

from raysts.data.corpora import Corpus
from raysts.data.windows import Windows, columns_of
from raysts.errors import InputError
from raysts.models.modules import describe
from raysts.models.pretrained import load
from raysts.models.prompts import Prompts
from raysts.pipeline import validate
from raysts.pipeline.executor import LocalExecutor
from raysts.pipeline.plan import Plan
from raysts.pipeline.step import Context
from raysts.pipeline.steps.train import train_all
from raysts.recipes.recipe import DEFAULTS, Data

PROMPTS = Prompts(texts={"query": "a cat: ", "passage": "the small "}, default="query")


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    """A model of another author, with prompts, pooled by its first token, its vectors of unit length."""
    model = load(write_backbone(tmp_path / "plain", "bert", seed=1), pooling="cls", device="cpu")
    model.prompts, model.normalize = PROMPTS, True
    model.save(tmp_path / "teacher")
    return tmp_path / "teacher"


@pytest.mark.parametrize(("asked", "text"), [(None, "a cat: "), ("passage", "the small ")])
def test_a_student_of_a_teacher_with_prompts(
    asked: str | None, text: str, teacher: Path, tiny_backbone: Path, small_corpus: Corpus, tmp_path: Path
) -> None:
    recipe = DEFAULTS["sed"]
    train = recipe.train.replace(max_steps=2, keep="last", patience=None)
    recipe = recipe.replace(data=Data(sample=40), batch=8, train=train)
    how = {"prompt": "house of ", "teacher_prompt": asked, "precision": "fp32"}
    pipeline = distillation(tiny_backbone, teacher, recipe=recipe, **how)
    plan = Plan(pipeline=pipeline, corpus=small_corpus, storage=tmp_path / "storage")
    validate.check(plan)
    assert plan.teacher is not None
    assert sorted(spec.prompt for spec in plan.specs.values()) == sorted(["house of ", text])
    table = "tokenise wikipedia/sentences for"
    titles = [step.title for step in plan.steps if step.kind == "tokens"]
    assert titles == [f"{table} sed", f"{table} teacher teacher"]
    context = Context(LocalExecutor(device="cpu", threads=1), plan.store)
    for step in plan.steps:
        if step.kind in ("tokens", "vectors"):
            step.work(context)
    assert not train_all(plan.student_chains[0], context)

    spec, model = plan.store_spec(recipe), load(teacher, prompt=asked, device="cpu")
    table = Windows(plan.store_folder(spec), plan.teacher.vectors.output).read(0)
    (group,) = plan.groups(spec)
    sentences = np.array(small_corpus.read(recipe.table)["sentence"].to_pylist())[group.rows].tolist()
    model.max_length = recipe.train.max_length
    np.testing.assert_allclose(columns_of(table, (), ("teacher",))["teacher"], model.encode(sentences), atol=1e-5)
    student = load(plan.student_chains[0][0].output, device="cpu")
    assert student.prompts.resolve() == "house of "
    read = columns_of(table, ("sentence",), ())["sentence"]
    np.testing.assert_array_equal(read.flat, student.tokenize(sentences).flat)


def test_the_backbones_default_prompt_is_part_of_the_ids(teacher: Path, small_corpus: Corpus, tmp_path: Path) -> None:
    recipe, found = DEFAULTS["sed"], {}
    for prompt in (None, "passage", ""):
        pipeline = distillation(teacher, teacher, prompt=prompt)
        plan = Plan(pipeline=pipeline, corpus=small_corpus, storage=tmp_path / "storage")
        found[plan.store_spec(recipe).prompt] = {node.id for chain in plan.student_chains for node in chain}
    assert list(found) == ["a cat: ", "the small ", ""] and len(set.union(*found.values())) == 3
    assert describe(teacher).prompts == PROMPTS


@pytest.mark.parametrize(("field", "name"), [("prompt", "query"), ("teacher_prompt", "qery")])
def test_a_prompt_that_is_not_there(
    field: str, name: str, teacher: Path, tiny_backbone: Path, small_corpus: Corpus, tmp_path: Path
) -> None:
    pipeline = distillation(tiny_backbone, teacher, **{field: name})
    with pytest.raises(InputError, match=f"prompt '{name}': the model has no prompt of that name"):
        validate.check(Plan(pipeline=pipeline, corpus=small_corpus, storage=tmp_path / "storage"))
