"""What goes into a pipeline on a corpus: its backbone, token stores, rows, steps, and the training text of its models.

Nodes are made of this, and what would stop them is looked for in this. Nothing here starts or writes anything but
:meth:`Inputs.write_backbone`.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raysts.data.batches import BatchOrder
from raysts.data.corpora import Corpus
from raysts.data.derive import TARGETS, source_of
from raysts.data.parquet import skipped_line
from raysts.data.windows import WINDOW, Group, StoreSpec, select
from raysts.data.world import WORLD_VERSION, tiny_config, write_tiny_backbone
from raysts.errors import InputError
from raysts.evaluation import harness
from raysts.evaluation.agreement import AGREEMENT
from raysts.evaluation.contamination.contamination import Contamination
from raysts.evaluation.contamination.lineage import TrainedOn, TrainingText, together, trained_on
from raysts.evaluation.contamination.text_overlap import normalise
from raysts.evaluation.dev import Dev, dev_name, load_dev
from raysts.ids import content_id, derive_seed, file_digest, folder_id, unchanged
from raysts.models import memory, pretrained
from raysts.models.layers import Layers, pooling_modes
from raysts.models.modules import describe, pooled_by
from raysts.models.pretrained import find, tokenizer_id
from raysts.models.prompts import Prompts
from raysts.models.static import is_static
from raysts.ops.ensemble import Target
from raysts.pipeline import teachers
from raysts.pipeline.outcome import members_dev
from raysts.pipeline.own_text import kept_last, on_own_text
from raysts.recipes.catalog import DistillationSettings
from raysts.recipes.recipe import Pipeline, Recipe
from raysts.schema import DEVS
from raysts.storage.store import BucketStore, Store
from raysts.training.job import total_steps

TINY = "tiny"
OTHER_FORMATS = ("onnx", "openvino", "coreml", "*.onnx", "*.h5", "*.msgpack", "*.ot")
"""What a model directory may hold that raysts does not read."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """A pipeline with the data, the storage and the models that it is run on. ``locate``: folder of a model named in the recipe
    (resolves run ids)."""

    pipeline: Pipeline
    corpus: Corpus
    storage: Path
    locate: Callable[[str], Path] = field(default=find)
    _devs: dict[str, Dev] = field(default_factory=dict, init=False, repr=False, compare=False)
    _groups: dict[str, list[Group]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "corpus", self.corpus.writing_to(self.storage / "tables"))
        object.__setattr__(self, "pipeline", on_own_text(self.pipeline, self.corpus))
        if self.corpus.text and self.pipeline.combine and not self.corpus.files(members_dev(self.pipeline)):
            object.__setattr__(self, "corpus", self.corpus.holding_out())
        if self._of_word_vectors:  # they have one layer
            evaluation = self.pipeline.evaluation.updated(layers=(1,), compare=1)
            object.__setattr__(self, "pipeline", self.pipeline.updated(evaluation=evaluation))

    @property
    def store(self) -> Store:
        return Store.of(self.storage)

    # -- models ------------------------------------------------------------------------------------------------------

    @cached_property
    def backbone(self) -> Path:
        """Folder of the backbone; that of ``tiny`` is written when the pipeline runs."""
        if self.pipeline.backbone == TINY:
            return self.storage / "backbones" / f"tiny-{self.backbone_id}"
        return self.locate(self.pipeline.backbone).absolute()

    @cached_property
    def distributed(self) -> tuple[str, Layers]:
        """Pooling and layers of the backbone as it was distributed: those that its folder says."""
        return ("mean", 1) if self.pipeline.backbone == TINY else pooled_by(self.backbone)

    @property
    def start(self) -> Path:
        """Folder of the backbone as nodes read it: one from elsewhere is copied into an object store."""
        if not isinstance(self.store, BucketStore) or self.backbone.is_relative_to(self.storage):
            return self.backbone
        return self.storage / "backbones" / f"copy-{self.backbone_id}"

    @cached_property
    def worker_gigabytes(self) -> float:
        asked = self.pipeline.resources
        return memory.worker_gigabytes(self.start, bool(asked.gpus))

    @property
    def _of_word_vectors(self) -> bool:
        try:
            return self.pipeline.backbone != TINY and is_static(self.backbone)
        except InputError:  # ``check`` says so, with whatever else is wrong
            return False

    @cached_property
    def backbone_id(self) -> str:
        if self.pipeline.backbone == TINY:
            return content_id([TINY, WORLD_VERSION, self._tiny_seed])
        return folder_id(self.backbone)

    @cached_property
    def contents(self) -> dict[Path, str]:
        """Content ids of the models from elsewhere, which every load of one asks for."""
        found = {folder: teachers.content_of(folder) for folder in self.teacher_folders}
        return found if self.pipeline.backbone == TINY else found | {self.backbone: self.backbone_id}

    @property
    def _tiny_seed(self) -> int:
        return derive_seed(self.pipeline.seed, "backbone")

    @cached_property
    def tokenizer_id(self) -> str:
        if self.pipeline.backbone == TINY:
            return content_id([TINY, WORLD_VERSION])
        return tokenizer_id(self.backbone)

    @cached_property
    def prompt(self) -> str:
        if self.pipeline.backbone == TINY:
            return Prompts().resolve(self.pipeline.prompt)
        return describe(self.backbone).prompts.resolve(self.pipeline.prompt)

    def write_backbone(self) -> None:
        """Write the tiny backbone, if that is what the pipeline starts from and it is not there, or the copy of another."""
        if self.start.parent != self.storage / "backbones":
            return
        there, copied = self.store.get_dir(self.start, fresh=True), self.backbone != self.start
        if there and (not copied or _is_copy(there, self.backbone)):
            return
        with self.store.put_dir(self.start) as draft:
            if not copied:
                write_tiny_backbone(draft, self._tiny_seed)
            else:
                unread = shutil.ignore_patterns(*OTHER_FORMATS)
                with unchanged(self.backbone, self.backbone_id):
                    shutil.copytree(self.backbone, draft, ignore=unread, dirs_exist_ok=True)

    @cached_property
    def teacher_folders(self) -> list[Path]:
        """What is named as teachers: folders of models, or Parquet (:mod:`raysts.pipeline.teachers`)."""
        return [teachers.find(name, self.locate) for name in self.pipeline.teachers]

    def tokenizer_of(self, spec: StoreSpec) -> Path:
        """The folder of what makes the tokens of a token store: the backbone, or a teacher that reads others."""
        if spec.tokenizer == self.tokenizer_id:
            return self.start
        return next(path for path, tokenizer in self.teacher_tokenizers.items() if tokenizer == spec.tokenizer)

    @cached_property
    def teacher_tokenizers(self) -> dict[Path, str]:
        """Content ids of what makes the teachers' tokens."""
        return {path: teachers.tokenizer_id(path) for path in self.teacher_folders}

    @property
    def distilled(self) -> DistillationSettings | None:
        settings = self.pipeline.sed.settings if self.pipeline.sed else None
        return settings if isinstance(settings, DistillationSettings) else None

    @property
    def target(self) -> Target:
        return distilled.target if (distilled := self.distilled) else "mean"

    @property
    def student_width(self) -> int:
        """Dimensions of the student, before what may be fitted behind it."""
        recipe = self.pipeline.sed
        width = tiny_config()["hidden_size"] if self.pipeline.backbone == TINY else pretrained.width(self.backbone)
        return int(width) * len(pooling_modes(recipe.pooling if recipe else "mean"))

    # -- data --------------------------------------------------------------------------------------------------------

    def dev(self, table: str) -> Dev | None:
        """The development set that a table holds; none when the corpus has no such table."""
        if table not in self._devs and self.corpus.files(table):
            self._devs[table] = load_dev(self.corpus, table)
        return self._devs.get(table)

    def dev_name(self, table: str) -> str:
        """What results call the development set that is read as a table, or what selects in its place."""
        if self.by_agreement and not self.corpus.files(table):
            return AGREEMENT
        return self.corpus.title(table) if table in self.corpus.own else dev_name(table)

    @property
    def by_agreement(self) -> bool:
        """Whether, for want of labelled pairs, agreement with the ensemble on held-out texts selects."""
        return self.corpus.text is not None and self.corpus.text.held > 0

    @property
    def chooser(self) -> Dev | None:
        """The development set that chooses among finished models; none when the corpus has no such table."""
        return self.dev(members_dev(self.pipeline))

    @cached_property
    def in_dev(self) -> dict[str, tuple[int, int]]:
        """Of each task of which pairs, or queries, are in the development set that chooses: how many are, and of how many."""
        table = members_dev(self.pipeline)
        selecting = [name for name in self.corpus if name.startswith(DEVS)] if table in self.corpus.own else [table]
        chose = {key for name in selecting if name in self.corpus for key in _keys(self.corpus[name].read())}
        found = {}
        for name in self.tasks if chose else ():
            tables = [table for labelled in harness.sets_of(self.corpus, [name]) for table in labelled.rows]
            keys = [key for tested in tables for key in _keys(self.corpus.read(tested))]
            if shared := sum(key in chose for key in keys):
                found[name] = shared, len(keys)
        return found

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """Tasks that are evaluated: those named, else all that have files and do not take minutes a model.

        On text of the user's own there may be none.
        """
        return self.pipeline.evaluation.tasks or harness.default_tasks(self.corpus, heavy=False)

    @cached_property
    def test_tables(self) -> list[str]:
        known = harness.tasks_of(self.corpus)
        return [table for task in self.tasks for table in known[task].tables(self.corpus)]

    @cached_property
    def test_sentences(self) -> int:
        return len(harness.sentences(self.corpus, self.tasks))

    @property
    def skipped(self) -> list[dict[str, Any]]:
        """The files of its training tables that cannot be read and are left out (``skip_bad`` of the corpus)."""
        return self.corpus.skipped(recipe.table for recipe in self.pipeline.recipes.values())

    @property
    def skipped_lines(self) -> list[str]:
        """Return :attr:`skipped` for people."""
        return [*map(skipped_line, self.skipped)]

    def resolved(self, recipe: Recipe) -> Recipe:
        """The recipe with the pipeline's precision, and its test sentences named: those of the evaluated tasks, unless it
        says which."""
        if recipe.train.precision == "auto" != self.pipeline.precision:
            recipe = recipe.updated(train=recipe.train.updated(precision=self.pipeline.precision))
        if recipe.table != TARGETS or recipe.data.sources:
            return recipe
        known = self.corpus.sources(TARGETS)
        sources = tuple(dict.fromkeys(source_of(table) for table in self.test_tables if table in known))
        return recipe.updated(data=recipe.data.updated(sources=sources))

    def facts(self, stage: str, role: str, member: int | None, parents: Sequence[str]) -> dict[str, Any]:
        named = Path(self.pipeline.backbone)
        return {
            "system": self.pipeline.name,
            "stage": stage,
            "role": role,
            "member": member,
            "root_seed": self.pipeline.seed,
            "parents": list(parents),
            "backbone": str(self.backbone if named.is_dir() else named.absolute() if named.is_file() else named),
            "backbone_id": self.backbone_id,
        }

    def own_title(self, table: str) -> str | None:
        """What people call the data of the user's own that stands for a table; None where there is none."""
        return self.corpus.title(table) if table in self.corpus.own else None

    def store_spec(self, recipe: Recipe) -> StoreSpec:
        recipe = self.resolved(recipe)
        return StoreSpec(
            table=recipe.table,
            fingerprint=self.corpus.fingerprint(recipe.table),
            texts=recipe.spec.texts,
            values=tuple(name for name in recipe.spec.values if name != "teacher"),
            tokenizer=self.tokenizer_id,
            max_length=recipe.train.max_length,
            data=recipe.data,
            prompt=self.prompt,
        )

    def teacher_specs(self, recipe: Recipe) -> list[StoreSpec]:
        """The token stores that the teachers read a distillation's rows from: each one's tokens, behind its prompt."""
        own, asked = self.store_spec(recipe), self.pipeline.teacher_prompt
        return [
            replace(own, tokenizer=self.teacher_tokenizers[path], prompt=teachers.prompt_of(path, asked))
            for path in self.teacher_folders
        ]

    def store_folder(self, spec: StoreSpec) -> Path:
        return self.storage / "tokens" / spec.id

    @cached_property
    def specs(self) -> dict[str, StoreSpec]:
        specs = [self.store_spec(recipe) for recipe in self.pipeline.recipes.values()]
        specs += self.teacher_specs(self.pipeline.sed) if self.pipeline.sed else []
        return {spec.id: spec for spec in specs}

    def groups(self, spec: StoreSpec) -> list[Group]:
        if spec.id not in self._groups:
            self._groups[spec.id] = select(self.corpus, spec.table, spec.data)
        return self._groups[spec.id]

    def text_notes(self) -> list[str]:
        return [self.corpus.text.line, *kept_last(self.pipeline, self.corpus)] if self.corpus.text else []

    def cut(self) -> list[str]:
        """A line for each stage of which texts were cut in training, as far as its token store is there and knows."""
        lines = []
        for stage, recipe in self.pipeline.recipes.items():
            spec = self.store_spec(recipe)
            manifest = self.store.read_json(self.store_folder(spec) / "manifest.json") or {"parts": [], "rows": 0}
            if cut := sum(part.get("cut", 0) for part in manifest["parts"]):
                lines.append(
                    f"{stage}: {cut:,} of {manifest['rows'] * len(spec.texts):,} texts had more than {spec.max_length} tokens "
                    f"and were cut there in training (--set {stage}.train.max_length=N reads more of them)"
                )
        return lines

    def rows(self, recipe: Recipe) -> int:
        return sum(group.size for group in self.groups(self.store_spec(recipe)))

    def optimiser_steps(self, recipe: Recipe) -> int:
        groups = self.groups(self.store_spec(recipe))
        sizes = [min(WINDOW, group.size - first) for group in groups for first in range(0, group.size, WINDOW)]
        return total_steps(recipe, BatchOrder(np.array(sizes), recipe.group, recipe.batch, 0, recipe.train.drop_last))

    # -- training text in the test sets --------------------------------------------------------------------------------

    def trained_on(self) -> TrainedOn:
        """The training text of all models, with what went before: backbone, teachers, members, student."""
        start = TrainedOn() if self.pipeline.backbone == TINY else trained_on(self.backbone)
        recipes = [self.resolved(recipe) for recipe in self.pipeline.recipes.values()]
        own = TrainedOn(
            tuple(
                TrainingText(r.table, r.data, self.corpus.fingerprint(r.table), self.own_title(r.table))
                for r in recipes
            )
        )
        return together([start, *map(trained_on, self.teacher_folders), own])

    def contamination(self, keep: bool = True) -> Contamination:
        """That text in the test sets. Every model has its clean score on the same rows, so that they compare."""
        cache = self.storage / "contamination" if keep else None
        return harness.searched(self.corpus, self.tasks, self.trained_on(), cache=cache)

    def refuse_contamination(self) -> None:
        """Raise one InputError with every test set that holds training rows of the models."""
        problems = self.contamination(keep=False).refuse(self.pipeline.name)
        if problems:
            raise InputError(problems)


def _is_copy(copy: Path, folder: Path) -> bool:
    """Whether the files of a copy are those of the folder, which may hold more."""
    files = [path.relative_to(copy) for path in copy.rglob("*") if path.is_file()]
    return all((folder / name).is_file() and file_digest(copy / name) == file_digest(folder / name) for name in files)


def _keys(table: pa.Table) -> list[frozenset[str]]:
    """The texts of each row that is a pair, in any order, or a query; none of another table."""
    texts = [
        table.column(name).to_pylist() for name in ("sentence1", "sentence2", "text") if name in table.column_names
    ]
    return [frozenset(map(normalise, row)) for row in zip(*texts, strict=True)]
