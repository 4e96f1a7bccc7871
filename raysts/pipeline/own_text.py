"""Adaptation of a pipeline to user text: the recipes' tables and the selection."""

from raysts.data.corpora import Corpus
from raysts.data.derive import TARGETS
from raysts.data.user import DEV, TEXT
from raysts.recipes.recipe import DEFAULTS, Pipeline, Recipe

SENTENCES = ("nli/sentences", TARGETS)
"""Tables of single sentences that the text stands for where a corpus can make nothing of the kind."""


def on_own_text(pipeline: Pipeline, corpus: Corpus) -> Pipeline:
    """Return the pipeline with recipes that read the text in place of single sentences.

    Without a development set, a member keeps the checkpoint of its last step. Agreement may still select those of
    students.
    """
    if corpus.text is None:
        return pipeline
    recipes = {stage: _reading(recipe, corpus) for stage, recipe in pipeline.recipes.items()}
    recipes |= {stage: _keeping_last(recipes[stage], corpus) for stage in pipeline.stages}
    return pipeline.updated(recipes=recipes)


def kept_last(pipeline: Pipeline, corpus: Corpus) -> list[str]:
    """Return a note on the stages that keep the last step for lack of a development set."""
    stages = [
        stage
        for stage, recipe in pipeline.stages.items()
        if DEFAULTS[recipe.objective].by_dev and not recipe.by_dev and not corpus.files(recipe.spec.dev)
    ]
    if not stages:
        return []
    return [
        f"{', '.join(stages)}: no development set is there, so the last step is kept (--dev NAME=FILE lets yours choose)"
    ]


def _reading(recipe: Recipe, corpus: Corpus) -> Recipe:
    made_of = corpus.sources(recipe.table)
    exists = corpus.files(recipe.table) or (made_of and all(map(corpus.files, made_of)))
    if recipe.table not in SENTENCES or exists:
        return recipe
    return recipe.updated(data=recipe.data.updated(table=TEXT, sources=()))


def _keeping_last(recipe: Recipe, corpus: Corpus) -> Recipe:
    spec = recipe.spec
    if spec.dev != DEV or corpus.files(DEV) or not (recipe.by_dev or recipe.train.patience):
        return recipe
    keep = next(keep for keep in spec.keeps if keep not in spec.keeps_by_dev)
    return recipe.updated(train=recipe.train.updated(keep=keep, patience=None, eval_first=False))
