"""Tokenising a table once: one file of the token store per Parquet row group."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from raysts.data.windows import Group, StoreSpec, finish_store, tokenize_group
from raysts.ids import unchanged
from raysts.models.embedders import open_embedder
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.local import Executor, Say
from raysts.pipeline.step import Step
from raysts.recipes.recipe import Resources
from raysts.storage.atomic import remove_drafts
from raysts.storage.store import Store


def tokens_step(inputs: Inputs, spec: StoreSpec) -> Step:
    """Return the step that writes a token store."""
    return Step(
        kind="tokens",
        id=spec.id,
        title=f"tokenise {inputs.corpus.title(spec.table)}",
        output=inputs.store_folder(spec),
        work=partial(_tokenize, inputs, spec),
        resources={"workers": 1, "cpus": 1, "gpus": 0},
        sentences=sum(group.size for group in inputs.groups(spec)) * len(spec.texts),
    )


class TokenizeGroup:
    """Writes a file of a token store. Units are (number of the file, row group).

    Args:
        content: content id of the tokenizer; None: of a model that raysts trains.
    """

    def __init__(self, device: str | None, spec: StoreSpec, tokenizer: Path, content: str | None, folder: Path) -> None:
        with unchanged(tokenizer, content, lambda path: open_embedder(path).tokenizer_id):
            self.tokenizer = open_embedder(tokenizer).tokenizer
        self.spec, self.folder = spec, folder

    def __call__(self, unit: tuple[int, Group]) -> dict[str, Any]:
        number, group = unit
        return tokenize_group(group, self.spec, self.tokenizer, self.folder, number)


def _tokenize(inputs: Inputs, spec: StoreSpec, executor: Executor, store: Store, say: Say) -> None:
    folder = inputs.store_folder(spec)
    remove_drafts(folder)
    inputs.corpus.table_with_spans(spec.table, spec.data).write()
    tokenizer = inputs.tokenizer_of(spec)
    args = (spec, tokenizer, spec.tokenizer if tokenizer in inputs.contents else None, folder)
    units = list(enumerate(inputs.groups(spec)))
    parts = list(executor.map(TokenizeGroup, args, units, Resources(cpus=1, gpus=0), say))
    inputs.corpus.check_unchanged([spec.table])
    finish_store(folder, spec, parts)
