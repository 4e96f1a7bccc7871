"""A pipeline resolved against data, storage and models.

Plans and checks are built from it. Only :meth:`Inputs.write_backbone` writes.
"""

import contextlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raysts.data.batches import BatchOrder
from raysts.data.corpora import Corpus
from raysts.data.derive import TARGETS, source_of
from raysts.data.user import DEV, TEXT
from raysts.data.windows import WINDOW, GroupPart, StoreSpec, select
from raysts.data.world import MAX_LENGTH, WORLD_VERSION, tiny_config, world_tokenizer, write_tiny_backbone
from raysts.errors import InputError
from raysts.evaluation import harness
from raysts.evaluation.agreement import AGREEMENT
from raysts.evaluation.contamination import Contamination, TrainedOn, TrainingText, merge_histories, trained_on
from raysts.evaluation.dev import Dev, dev_name, load_dev
from raysts.evaluation.text_overlap import normalise
from raysts.evaluation.words import WORDS, WordSets
from raysts.ids import content_id, derive_seed, file_digest, folder_id, guard_content
from raysts.models import pretrained
from raysts.models.embedders import find_embedder, open_embedder, short_names
from raysts.models.families import family_of
from raysts.models.layers import Layers, pooling_modes
from raysts.models.modules import describe
from raysts.models.pretrained import find, tokenizer_id
from raysts.models.prompts import Prompts
from raysts.models.static import is_static
from raysts.models.tokens import tokenize
from raysts.models.weights import TABLE_VERSION, keep_layers, spaced_layers, token_table
from raysts.ops.ensemble import Target
from raysts.pipeline.outcome import members_dev
from raysts.recipes.catalog import DistillationSettings
from raysts.recipes.overrides import apply_overrides
from raysts.recipes.recipe import Pipeline, Recipe
from raysts.schema import DEVS
from raysts.storage.runs import record_of
from raysts.storage.store import Store
from raysts.training.job import total_steps

TINY = "tiny"
OTHER_FORMATS = ("onnx", "openvino", "coreml", "*.onnx", "*.h5", "*.msgpack", "*.ot")
"""What a model directory may hold that raysts does not read."""
SENTENCES = ("nli/sentences", TARGETS)
"""Tables of single sentences that the user's text replaces in a corpus that can make nothing of the kind."""
ENOUGH, MEASURED = 0.95, 2_000
"""Share of the texts that an automatic length reads whole, and texts that it is measured on at most."""
SMALLEST = 2e5
"""Weights that a token of a table of token vectors is taken to go through; what it costs to read a token."""
TOKENS_A_WORD, MOST_TOKENS = 1.3, 256
"""Rough tokens of a word, and of a measured text at most."""
OTHER_FILES = 1_000_000
"""Bytes of a model besides its weights, roughly: tokenizer and vocabulary."""


def words_of(texts: Sequence[str]) -> np.ndarray:
    """Return the number of words of each text."""
    return np.array([float(len(text.split())) for text in texts] or [1.0])


def _tokens(words: np.ndarray, most: int) -> float:
    return float(np.minimum(2 + TOKENS_A_WORD * words, most).mean())


def made_backbone(backbone: str, backbone_id: str, layers: bool, static: bool) -> str | None:
    """Return the path in the storage of a starting model that runs make, else None."""
    kinds = {"static": static, "layers": layers, "tiny": backbone == TINY}
    kind = next((name for name, is_made in kinds.items() if is_made), None)
    return f"backbones/{kind}-{backbone_id}" if kind else None


class ReadingLength(NamedTuple):
    """An automatic length."""

    tokens: int
    limit: int
    """Tokens that the backbone and the teachers read at most."""
    at_limit: float
    """Share of the texts that need as many tokens or more."""

    @property
    def reason(self) -> str:
        if self.at_limit > 1 - ENOUGH:
            return f"backbone and teachers read no more, and {self.at_limit:.0%} of the texts have as many or more."
        return f"{ENOUGH:.0%} of the texts have no more."


@dataclass(kw_only=True, eq=False)
class Inputs:
    """A pipeline with its data, storage and models.

    ``locate`` returns the folder of a model that the recipe names; it resolves run ids.
    """

    pipeline: Pipeline
    corpus: Corpus
    storage: Path
    locate: Callable[[str], Path] = field(default=find)
    _devs: dict[str, Dev] = field(default_factory=dict, repr=False)
    _groups: dict[tuple[Path, str], list[GroupPart]] = field(default_factory=dict, repr=False)
    _words: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    _lengths: dict[str, ReadingLength] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.pipeline = use_user_text(self.pipeline, self.corpus)
        has_dev = not (self.corpus.text and self.pipeline.combine) or self.corpus.files(members_dev(self.pipeline))
        self.corpus = self.corpus.writing_to(self.storage / "tables", hold_out=not has_dev)
        if self._has_one_layer:
            evaluation = self.pipeline.evaluation.replace(layers=(1,), compare=1)
            self.pipeline = self.pipeline.replace(evaluation=evaluation)

    @property
    def store(self) -> Store:
        return Store.of(self.storage)

    # -- models ------------------------------------------------------------------------------------------------------

    @cached_property
    def backbone(self) -> Path:
        """Return the folder of the backbone. The run writes that of ``tiny``."""
        if self.pipeline.backbone == TINY:
            return self.storage / "backbones" / f"tiny-{self.backbone_id}"
        return self.locate(self.pipeline.backbone).absolute()

    @property
    def is_table(self) -> bool:
        """Return True if training starts from a table of token vectors that is made of the backbone."""
        return self.pipeline.student == "static"

    @cached_property
    def distributed_pooling(self) -> tuple[str, Layers]:
        """Return the pooling and layers that the backbone's folder configures."""
        is_mean = self.pipeline.backbone == TINY or self.is_table
        return ("mean", 1) if is_mean else describe(self.backbone).stored_pooling

    @property
    def start(self) -> Path:
        """Return the folder from which steps read the backbone.

        The run makes it of the backbone, or copies one from elsewhere into an object store.
        """
        has_layers = self.kept_layers is not None
        if folder := made_backbone(self.pipeline.backbone, self.backbone_id, has_layers, self.is_table):
            return self.storage / folder
        if not self.store.remote or self.backbone.is_relative_to(self.storage):
            return self.backbone
        return self.storage / "backbones" / f"copy-{self.backbone_id}"

    @cached_property
    def worker_gigabytes(self) -> float:
        folder = self.backbone if self.is_table or self.kept_layers else self.start
        return pretrained.worker_gigabytes(folder, bool(self.pipeline.resources.gpus))

    @cached_property
    def kept_layers(self) -> tuple[int, ...] | None:
        """Return the numbers of the backbone's layers from which training starts, or None for all."""
        layers = self.pipeline.backbone_layers
        return spaced_layers(layers, self.depth) if isinstance(layers, int) else layers

    @cached_property
    def backbone_config(self) -> dict[str, Any]:
        return tiny_config() if self.pipeline.backbone == TINY else pretrained.check(self.backbone)

    @property
    def _kept_share(self) -> float:
        return 1.0 if self.kept_layers is None else len(self.kept_layers) / self.depth

    @cached_property
    def size(self) -> float:
        """Return the number of weights that each token goes through, without the embeddings."""
        if self.is_table:
            return SMALLEST
        if self.pipeline.backbone != TINY:
            return max(SMALLEST, pretrained.token_parameters(self.backbone) * self._kept_share)
        width, inner = (tiny_config()[name] for name in ("hidden_size", "intermediate_size"))
        return max(SMALLEST, (4 * width**2 + 2 * width * inner) * self.depth * self._kept_share)

    @cached_property
    def model_bytes(self) -> int:
        """Return the bytes of a trained model, roughly: its weights in float32, and its tokenizer."""
        total = 0.0 if self.pipeline.backbone == TINY else pretrained.weight_bytes(self.backbone)
        embeddings = max(0.0, total - 4 * self.size / self._kept_share)
        return round(embeddings + 4 * self.size + OTHER_FILES)

    def size_of(self, folders: Sequence[Path]) -> float:
        """Return the mean :attr:`size` of models. Those of steps are as large as the trained one."""
        named = {*self.teacher_folders} & {*folders}
        sizes = {folder: pretrained.token_parameters(folder) if folder.is_dir() else 0.0 for folder in named}
        return max(SMALLEST, float(np.mean([sizes.get(folder, self.size) for folder in folders] or [self.size])))

    def tokens(self, recipe: Recipe) -> float:
        """Return the mean number of tokens of a recipe's texts and spans, roughly."""
        most, data = self.store_spec(recipe).max_length, recipe.data
        if recipe.table not in self._words:
            self._words[recipe.table] = words_of(self.sample_texts(recipe))
        words = self._words[recipe.table]
        spans = np.minimum(words, float(np.mean(data.span_tokens)))
        return (_tokens(words, most) + data.spans * _tokens(spans, most)) / (1 + data.spans)

    @property
    def depth(self) -> int:
        """Return the number of layers of the backbone, before any are left out."""
        if self.is_table:
            return 1
        return int(self.backbone_config[family_of(self.backbone_config["model_type"]).depth])

    @property
    def hidden_width(self) -> int:
        """Return the dimensions of the backbone's token vectors."""
        if self.pipeline.backbone == TINY:
            return int(tiny_config()["hidden_size"])
        return open_embedder(self.backbone).dim if self.is_table else pretrained.width(self.backbone)

    @property
    def _has_one_layer(self) -> bool:
        with contextlib.suppress(InputError):  # ``check`` says so, with whatever else is wrong
            word_vectors = self.pipeline.backbone != TINY and is_static(self.backbone)
            return word_vectors or self.is_table or self.pipeline.backbone_layers == 1
        return False

    @cached_property
    def backbone_id(self) -> str:
        tiny = [TINY, WORLD_VERSION, derive_seed(self.pipeline.seed, "backbone")]
        full_id = content_id(tiny) if self.pipeline.backbone == TINY else folder_id(self.backbone)
        if self.is_table:
            return content_id([full_id, "static", TABLE_VERSION])
        return full_id if self.kept_layers is None else content_id([full_id, *self.kept_layers])

    @cached_property
    def contents(self) -> dict[Path, str]:
        """Return the ids of the models from elsewhere, by folder. Every load checks them."""
        ids = {folder: open_embedder(folder).id for folder in self.teacher_folders}
        return ids if self.pipeline.backbone == TINY else ids | {self.backbone: folder_id(self.backbone)}

    @property
    def reads(self) -> dict[str, str]:
        """Return the starting model and those from elsewhere by content, below the storage as relative paths."""
        contents, storage = self.contents | {self.start: self.backbone_id}, self.storage.resolve()
        paths = {content: path.resolve() for path, content in contents.items()}
        return {id_: str(p.relative_to(storage) if p.is_relative_to(storage) else p) for id_, p in paths.items()}

    @cached_property
    def tokenizer_id(self) -> str:
        full_id = content_id([TINY, WORLD_VERSION])
        full_id = full_id if self.pipeline.backbone == TINY else tokenizer_id(self.backbone)
        return content_id([full_id, "static", TABLE_VERSION]) if self.is_table else full_id

    @cached_property
    def prompts(self) -> Prompts:
        has_none = self.pipeline.backbone == TINY or self.is_table
        return Prompts() if has_none else describe(self.backbone).prompts

    @cached_property
    def prompt(self) -> str:
        return self.prompts.resolve(self.pipeline.prompt)

    def write_backbone(self) -> None:
        """Write the tiny backbone, some layers of another, or its copy, unless it exists."""
        if self.start.parent != self.storage / "backbones":
            return
        exists, tiny = self.store.get_dir(self.start, fresh=True), self.pipeline.backbone == TINY
        changed = self.is_table or self.kept_layers is not None
        if exists and (tiny or changed or _is_copy(exists, self.backbone)):
            return
        with self.store.put_dir(self.start) as draft:
            if tiny:
                write_tiny_backbone(draft, derive_seed(self.pipeline.seed, "backbone"))
            elif not changed:
                unread = shutil.ignore_patterns(*OTHER_FORMATS)
                with guard_content(self.backbone, self.backbone_id):
                    shutil.copytree(self.backbone, draft, ignore=unread, dirs_exist_ok=True)
            if changed:
                source, content = (draft, None) if tiny else (self.backbone, folder_id(self.backbone))
                model = pretrained.load(source, device="cpu", content=content)
                if self.kept_layers is not None:
                    keep_layers(model, self.kept_layers)
                (token_table(model) if self.is_table else model).save(draft)

    @cached_property
    def teacher_folders(self) -> list[Path]:
        """Return the teachers' paths: model folders or Parquet (:mod:`raysts.models.embedders`)."""
        return [find_embedder(name, self.locate) for name in self.pipeline.teachers]

    def tokenizer_of(self, spec: StoreSpec) -> Path:
        """Return the folder of the tokenizer that makes these token shards."""
        if spec.tokenizer == self.tokenizer_id:
            return self.start
        return next(path for path in self.teacher_folders if open_embedder(path).tokenizer_id == spec.tokenizer)

    @property
    def distillation(self) -> DistillationSettings | None:
        settings = self.pipeline.sed.settings if self.pipeline.sed else None
        return settings if isinstance(settings, DistillationSettings) else None

    @property
    def target(self) -> Target:
        return self.distillation.target if self.distillation else "mean"

    @property
    def student_width(self) -> int:
        """Return the dimensions of the student, before any fitted head."""
        recipe = self.pipeline.sed
        return self.hidden_width * len(pooling_modes(recipe.pooling if recipe else "mean"))

    @cached_property
    def trial_stages(self) -> list[dict[str, Recipe]]:
        """Return the stages of each member that is a trial. Teachers are trained already."""
        plain, trials = self.pipeline.replace(trials=()), () if self.pipeline.teachers else self.pipeline.trials
        return [use_user_text(apply_overrides(plain, trial.point), self.corpus).stages for trial in trials]

    @property
    def recipes(self) -> dict[str, Recipe]:
        """Return the recipes of all training runs, by their names for people."""
        named = dict(self.pipeline.recipes)
        for number, stages in enumerate(self.trial_stages):
            named |= {f"member {number}: {stage}": recipe for stage, recipe in stages.items()}
        return named

    # -- data --------------------------------------------------------------------------------------------------------

    def dev(self, table: str) -> Dev | None:
        """Return the development set of a table, or None if the corpus lacks it."""
        if table not in self._devs and self.corpus.files(table):
            self._devs[table] = load_dev(self.corpus, table)
        return self._devs.get(table)

    def dev_name(self, table: str) -> str:
        """Return the name in results of a table's development set, or of its replacement."""
        if self.uses_agreement and not self.corpus.files(table):
            return AGREEMENT
        return self.own_title(table) or dev_name(table)

    @property
    def uses_agreement(self) -> bool:
        """Return True if agreement with the ensemble on held-out texts selects models."""
        return self.corpus.text is not None and self.corpus.text.held_count > 0

    @property
    def chooser(self) -> Dev | None:
        """Return the development set that selects among finished models, or None if it is missing."""
        return self.dev(members_dev(self.pipeline))

    @cached_property
    def dev_overlaps(self) -> dict[str, tuple[int, int]]:
        """Return by task its rows (pairs or queries) in the selecting development set, and all its rows.

        A task without overlap has no entry.
        """
        table = members_dev(self.pipeline)
        selecting = [name for name in self.corpus if name.startswith(DEVS)] if table in self.corpus.own else [table]
        chose = {key for name in selecting if name in self.corpus for key in _keys(self.corpus[name].read())}
        overlaps = {}
        for name in self.tasks if chose else ():
            tables = [table for labelled in harness.sets_of(self.corpus, [name]) for table in labelled.rows]
            keys = [key for tested in tables for key in _keys(self.corpus.read(tested))]
            if shared := sum(key in chose for key in keys):
                overlaps[name] = shared, len(keys)
        return overlaps

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """Return the evaluated tasks: the named ones, or all that have files and are not heavy or in ``also``."""
        evaluation, by_name = self.pipeline.evaluation, harness.tasks_of(self.corpus)
        also = [name for name in evaluation.also if name not in by_name or by_name[name].tables(self.corpus)]
        defaults = () if evaluation.tasks else (*harness.default_tasks(self.corpus, heavy=False), *also)
        return evaluation.tasks or tuple(dict.fromkeys(defaults))

    @cached_property
    def test_tables(self) -> list[str]:
        """Return the tables of the tasks. The sentences that a model's own tasks read are not a test's."""
        tasks = harness.tasks_of(self.corpus)
        return [table for name in self.tasks if not tasks[name].asks_model for table in tasks[name].tables(self.corpus)]

    @cached_property
    def model_sets(self) -> list[WordSets]:
        """Return what the tasks ask for of each model itself."""
        contextual = self.pipeline.backbone == TINY or not is_static(self.backbone)
        return [WORDS.read(self.corpus, contextual)] if WORDS.name in self.tasks else []

    @cached_property
    def test_sentences(self) -> int:
        """Return the number of sentences that each model reads to be measured."""
        return len(harness.sentences(self.corpus, self.tasks)) + sum(len(sets.sentences) for sets in self.model_sets)

    @cached_property
    def test_tokens(self) -> float:
        texts = harness.sentences(self.corpus, self.tasks)
        return self.tokens_of([str(text) for text in texts[:: max(1, len(texts) // MEASURED)]])

    def tokens_of(self, texts: Sequence[str]) -> float:
        """Return the number of tokens of a text, roughly, as models read that are measured."""
        return _tokens(words_of(texts), self.pipeline.max_seq_length or MOST_TOKENS)

    @property
    def skipped_files(self) -> list[dict[str, Any]]:
        """Return the unreadable files of the training tables, which ``skip_bad`` leaves out."""
        return self.corpus.find_skipped(recipe.table for recipe in self.recipes.values())

    def resolve_recipe(self, recipe: Recipe) -> Recipe:
        """Return the recipe with its length, precision, and the evaluated tasks as sources of targets."""
        if recipe.train.precision == "auto" != self.pipeline.precision:
            recipe = recipe.replace(train=recipe.train.replace(precision=self.pipeline.precision))
        if recipe.train.max_length == "auto":
            recipe = recipe.replace(train=recipe.train.replace(max_length=self.reading_length(recipe).tokens))
        if recipe.table != TARGETS or recipe.data.sources:
            return recipe
        tables = self.corpus.sources(TARGETS)
        sources = tuple(dict.fromkeys(source_of(table) for table in self.test_tables if table in tables))
        return recipe.replace(data=recipe.data.replace(sources=sources))

    def reading_length(self, recipe: Recipe) -> ReadingLength:
        """Return the length at which a recipe of automatic length reads its texts."""
        if recipe.table not in self._lengths:
            tokenizer, limit = world_tokenizer(), MAX_LENGTH
            if self.pipeline.backbone != TINY:
                tokenizer = pretrained.load_tokenizer(self.backbone)
                limit = open_embedder(self.backbone).max_length
            limits = [open_embedder(folder).max_length for folder in self.teacher_folders]
            limit = min(limit, max(limits, default=limit))
            lengths = tokenize(tokenizer, self.sample_texts(recipe), limit, self.prompt).lengths
            needed = int(np.ceil(np.quantile(lengths, ENOUGH)))
            self._lengths[recipe.table] = ReadingLength(max(3, needed), limit, float((lengths >= limit).mean()))
        return self._lengths[recipe.table]

    def sample_texts(self, recipe: Recipe) -> list[str]:
        if self.corpus.text and recipe.table == TEXT:
            return self.corpus.text.sample[:MEASURED]
        table = self.corpus[recipe.table]
        return [text for column in recipe.spec.texts for text in table.head(column, MEASURED) if text is not None]

    def reading_notes(self) -> list[str]:
        """Return how recipes of automatic length, or with spans, read texts, and the trials of the teachers."""
        models = zip(self.pipeline.teachers, self.pipeline.trials, strict=False)
        trials = [f"{model} ({trial.text})" for model, trial in models]
        notes = [f"Trials of a search, best first: {'; '.join(trials)}."] if trials else []
        for stage, recipe in self.pipeline.recipes.items():
            if recipe.train.max_length == "auto":
                length = self.reading_length(recipe)
                reads = f"reads the first {length.tokens} tokens of a text, in training and later"
                notes.append(f"{stage}: {reads}: {length.reason}")
            if spans := recipe.data.spans:
                rows, (shortest, longest) = self.all_rows(recipe), recipe.data.span_tokens
                texts = (rows - self.queries(recipe)) // (1 + spans)
                notes.append(
                    f"{stage}: trains on {texts:,} texts and on {spans} spans of each ({shortest} to {longest} words): "
                    f"{spans * texts / rows:.0%} of its rows are spans"
                    f"{', every other one read as a query' if self.span_queries(recipe) else ''}."
                )
        return notes

    def facts(self, stage: str, role: str, member: int | None, parents: Sequence[str]) -> dict[str, Any]:
        named = Path(self.pipeline.backbone)
        run = record_of(self.backbone).get("run_id")  # the name of a run may be used again
        backbone = named.absolute() if named.is_file() else run or named
        return {
            "system": self.pipeline.name, "stage": stage, "role": role, "member": member, "root_seed": self.pipeline.seed,
            "parents": list(parents), "backbone": str(self.backbone if named.is_dir() else backbone),
            "backbone_id": self.backbone_id,
            **({"backbone_layers": list(self.kept_layers)} if self.kept_layers is not None else {}),
            **({"student": "static"} if self.is_table else {}),
        }  # fmt: skip

    def own_title(self, table: str) -> str | None:
        """Return the display name of user data that replaces a table, or None."""
        return self.corpus.title(table) if table in self.corpus.own else None

    def store_spec(self, recipe: Recipe) -> StoreSpec:
        recipe = self.resolve_recipe(recipe)
        return StoreSpec(
            table=recipe.table,
            fingerprint=self.corpus.fingerprint(recipe.table),
            texts=recipe.spec.texts,
            values=tuple(name for name in recipe.spec.values if name != "teacher"),
            tokenizer=self.tokenizer_id,
            max_length=int(recipe.train.max_length),
            data=recipe.data,
            **self.sides(recipe, self.prompts, self.pipeline.prompt),
        )

    def sides(self, recipe: Recipe, prompts: Prompts, named: str | None) -> dict[str, Any]:
        """Return the prompts of a token store. Unless one is ``named`` for all texts, each side has its own."""
        query = document = prompt = prompts.resolve(named)
        if named is None:
            query, document = prompts.side_prompt("query"), prompts.side_prompt("document")
        if self.queries(recipe) or (self.span_queries(recipe) and query != document):
            return {"prompt": document, "query_prompt": query}
        return {"prompt": prompt}

    def span_queries(self, recipe: Recipe) -> bool:
        """Return True if spans stand for queries: the student has a prompt for those, the table none."""
        is_sided = self.prompts.side_prompt("query") != self.prompts.side_prompt("document")
        return is_sided and self.pipeline.prompt is None and recipe.data.spans > 0 and not self.queries(recipe)

    def queries(self, recipe: Recipe) -> int:
        """Return the number of texts of the query side that a recipe reads."""
        return self.corpus[recipe.table].query_rows

    def teacher_specs(self, recipe: Recipe) -> list[StoreSpec]:
        """Return the token shards that each teacher reads: its tokens, behind its prompt."""
        spec, specs = self.store_spec(recipe), []
        for embedder in map(open_embedder, self.teacher_folders):
            most = embedder.max_length if embedder.kind == "address" else min(spec.max_length, embedder.max_length)
            named = None if embedder.kind == "vectors" else self.pipeline.teacher_prompt
            sides = self.sides(recipe, embedder.prompts, named)
            specs.append(replace(spec, tokenizer=embedder.tokenizer_id, max_length=most, **sides))
        return specs

    def store_folder(self, spec: StoreSpec) -> Path:
        return self.storage / "tokens" / spec.id

    @cached_property
    def specs(self) -> dict[str, StoreSpec]:
        return {spec.id: spec for spec in self.readers.values()}

    @cached_property
    def readers(self) -> dict[str, StoreSpec]:
        """Return the token shards that each training run and each teacher reads, by its name for people."""
        readers = {name: self.store_spec(recipe) for name, recipe in self.recipes.items()}
        if self.pipeline.sed:
            names = [f"teacher {name}" for name in short_names(self.pipeline.teachers)]
            readers |= zip(names, self.teacher_specs(self.pipeline.sed), strict=True)
        return readers

    def store_title(self, spec: StoreSpec) -> str:
        """Return the table of token shards for people, with who reads them if others read other shards of it."""
        title = self.corpus.title(spec.table)
        if sum(other.table == spec.table for other in self.specs.values()) == 1:
            return title
        names = [name for name, read in self.readers.items() if read.id == spec.id]
        return f"{title} for {names[0]}" + (f" and {len(names) - 1} more" if names[1:] else "")

    @property
    def written_tables(self) -> list[str]:
        """Return the tables that are written before they are tokenised, as paths in the storage."""
        tables = [self.corpus.table_with_spans(spec.table, spec.data) for spec in self.specs.values()]
        return sorted({str(table.path.relative_to(self.storage)) for table in tables if table.content})

    def groups(self, spec: StoreSpec) -> list[GroupPart]:
        key = self.storage, spec.id  # files of a user's text lie in the storage
        if key not in self._groups:
            self._groups[key] = select(self.corpus, spec.table, spec.data)
        return self._groups[key]

    def rows(self, recipe: Recipe) -> int:
        """Return the number of texts that a recipe reads, with queries, without spans."""
        queries, spans = self.queries(recipe), recipe.data.spans
        return (self.all_rows(recipe) - queries) // (1 + spans) + queries

    def all_rows(self, recipe: Recipe) -> int:
        """Return the number of texts that a recipe reads, with their spans."""
        return sum(group.size for group in self.groups(self.store_spec(recipe)))

    def optimiser_steps(self, recipe: Recipe) -> int:
        groups = self.groups(self.store_spec(recipe))
        sizes = [min(WINDOW, group.size - first) for group in groups for first in range(0, group.size, WINDOW)]
        return total_steps(recipe, BatchOrder(np.array(sizes), recipe.group, recipe.batch, 0, recipe.train.drop_last))

    # -- training text in the test sets --------------------------------------------------------------------------------

    def trained_on(self) -> TrainedOn:
        """Return the training text of all models of the pipeline and of their ancestors."""
        start = TrainedOn() if self.pipeline.backbone == TINY else trained_on(self.backbone)
        recipes = [*map(self.resolve_recipe, self.recipes.values())]
        prints = {recipe.table: self.corpus.fingerprint(recipe.table) for recipe in recipes}
        texts = (TrainingText(r.table, r.data, prints[r.table], self.own_title(r.table)) for r in recipes)
        return merge_histories([start, *map(trained_on, self.teacher_folders), TrainedOn(tuple(texts))])

    def contamination(self, keep: bool = True) -> Contamination:
        """Return the training text in the test sets. All models share the clean rows, to be comparable."""
        cache = self.storage / "contamination" if keep else None
        return harness.find_contamination(self.corpus, self.tasks, self.trained_on(), cache=cache)


def _is_copy(copy: Path, folder: Path) -> bool:
    """Return True if every file of ``copy`` equals that of ``folder``, which may hold more."""
    files = [path.relative_to(copy) for path in copy.rglob("*") if path.is_file()]
    return all((folder / name).is_file() and file_digest(copy / name) == file_digest(folder / name) for name in files)


def _keys(table: pa.Table) -> list[frozenset[str]]:
    """Return the texts of each row that is an unordered pair or a query. Another table has none."""
    names = [name for name in ("sentence1", "sentence2", "text") if name in table.column_names]
    texts = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    return [frozenset(map(normalise, row)) for row in texts]


def use_user_text(pipeline: Pipeline, corpus: Corpus) -> Pipeline:
    """Return the pipeline with recipes that read the text in place of single sentences.

    Without a development set, a member keeps the checkpoint of its last step.
    """
    recipes = dict(pipeline.recipes)
    for stage, recipe in recipes.items() if corpus.text else ():
        spec, made_of = recipe.spec, corpus.sources(recipe.table)
        exists = corpus.files(recipe.table) or (made_of and all(map(corpus.files, made_of)))
        if recipe.table in SENTENCES and not exists:
            recipe = recipe.replace(data=recipe.data.replace(table=TEXT, sources=()))
        by_dev = spec.dev == DEV and (recipe.uses_dev_labels or recipe.train.patience)
        if stage in pipeline.stages and by_dev and not corpus.files(DEV):
            keep = next(keep for keep in spec.keeps if keep not in spec.keeps_by_dev)
            recipe = recipe.replace(train=recipe.train.replace(keep=keep, patience=None, eval_first=False))
        recipes[stage] = recipe
    return pipeline.replace(recipes=recipes) if corpus.text else pipeline
