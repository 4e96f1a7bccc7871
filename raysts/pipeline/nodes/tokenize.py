"""Tokenising a table once: one file of the token store per Parquet row group."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from raysts.data.windows import Group, StoreSpec, finish_store, tokenize_group
from raysts.ids import unchanged
from raysts.pipeline import teachers
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.local import Executor, Say
from raysts.pipeline.nodes.node import Node
from raysts.recipes.recipe import Resources
from raysts.storage.atomic import remove_drafts
from raysts.storage.store import Store


class TokenizeGroup:
    """Writes file ``number`` of a token store; units are (number, row group). ``content``: of the tokenizer; None: ours."""

    def __init__(self, device: str | None, spec: StoreSpec, tokenizer: Path, content: str | None, folder: Path) -> None:
        with unchanged(tokenizer, content, teachers.tokenizer_id):
            self.tokenizer = teachers.load_tokenizer(tokenizer)
        self.spec, self.folder = spec, folder

    def __call__(self, unit: tuple[int, Group]) -> dict[str, Any]:
        number, group = unit
        return tokenize_group(group, self.spec, self.tokenizer, self.folder, number)


@dataclass(frozen=True, kw_only=True)
class TokenizeNode(Node):
    """A token store, complete when its manifest is there."""

    kind: ClassVar[str] = "tokens"
    inputs: Inputs
    spec: StoreSpec

    @classmethod
    def of(cls, inputs: Inputs, spec: StoreSpec) -> TokenizeNode:
        return cls(
            id=spec.id,
            title=f"tokenise {inputs.corpus.title(spec.table)}",
            needs=(),
            resources={"workers": 1, "cpus": 1, "gpus": 0},
            sentences=sum(group.size for group in inputs.groups(spec)) * len(spec.texts),
            inputs=inputs,
            spec=spec,
        )

    @property
    def folder(self) -> Path:
        return self.inputs.store_folder(self.spec)

    def written(self, store: Store) -> list[Path]:
        manifest = store.read_json(self.folder / "manifest.json", fresh=True) or {"parts": []}
        return [self.folder / Path(part["file"]).name for part in manifest["parts"]]

    def is_done(self, store: Store) -> bool:
        return bool(self.written(store)) and self.is_sound(store)

    def run(self, executor: Executor, store: Store, say: Say) -> None:
        remove_drafts(self.folder)
        self.inputs.corpus.write_derived(self.spec.table)
        tokenizer = self.inputs.tokenizer_of(self.spec)
        args = (self.spec, tokenizer, self.spec.tokenizer if tokenizer in self.inputs.contents else None, self.folder)
        units = list(enumerate(self.inputs.groups(self.spec)))
        parts = list(executor.map(TokenizeGroup, args, units, Resources(cpus=1, gpus=0), say))
        self.inputs.corpus.check_unchanged([self.spec.table])
        finish_store(self.folder, self.spec, parts)
