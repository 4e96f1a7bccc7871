"""The model card: README.md of a model directory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from raysts.data.shards import skipped_line
from raysts.models import pretrained
from raysts.models.layers import Layers, in_words
from raysts.pipeline.inputs import TINY
from raysts.pipeline.nodes.model import Model
from raysts.pipeline.nodes.train import TrainNode
from raysts.pipeline.outcome import Outcome, dev_of, joined
from raysts.pipeline.plan import Plan
from raysts.recipes import names
from raysts.recipes.overrides import dump

_TAGS = ("sentence-transformers", "sentence-similarity", "feature-extraction", "raysts")


def model_card(
    *,
    name: str,
    path: str,
    system: str,
    role: str,
    members: int,
    backbone: str,
    dimension: int,
    max_length: int,
    pooling: str,
    layers: Layers,
    similarity: str = "cosine",
    data: Sequence[Mapping[str, Any]],
    recipe_yaml: str,
    rows: Iterable[Mapping[str, Any]],
    command: str,
    source: str | None = None,
    base_model: str | None = None,
    language: str = "en",
    selected_by: str | None = None,
    random_backbone: bool = False,
    notes: Sequence[str] = (),
    versions: Mapping[str, str] | None = None,
    tags: Sequence[str] = (),
) -> str:
    """Text of a model card in the format of the Hugging Face hub: YAML front matter, then Markdown.

    Args:
        name: title of the card.
        path: what a user writes to load the model: its directory or hub name.
        system: name of the system (``nli-ct-sed``).
        role: ``student``, ``member`` or ``baseline``.
        members: how many members the ensemble behind a student has; of a member, how many were trained.
        backbone: what training started from, as the recipe names it.
        dimension: of an embedding.
        max_length: tokens per text, special tokens included.
        pooling: ``mean``, ``cls`` or ``max``.
        layers: layers pooled by the model as it is stored.
        similarity: the model's own.
        data: training data: per table ``stage``, ``table``, ``rows`` and ``sha256``.
        recipe_yaml: the resolved recipe.
        rows: results rows of this model alone (``raysts.schema.RESULTS``); shown are those of whole test sets with as
            many pooled layers as the model has.
        command: the exact command that made the model.
        source: the paper or code the recipe comes from.
        base_model: hub name of the backbone; None when it is not on the hub (a local folder, a random encoder).
        language: ISO 639-1 code of the training texts.
        selected_by: whose labels chose the checkpoint, or those of the members behind it (``stsb-dev``); None: none.
        random_backbone: whether the backbone is the default small encoder with random weights.
        notes: what else a user must know.
        versions: package versions.
        tags: hub tags beside the usual ones.
    """
    front: dict[str, Any] = {
        "language": language,
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": list(dict.fromkeys([*_TAGS, *tags])),
    }
    if base_model is not None:
        front["base_model"] = base_model
    pooled = f"the {'' if layers == 1 else 'mean of the '}{in_words(layers)}"
    compared = "the cosine of their vectors" if similarity == "cosine" else f"`model.similarity`, which is {similarity}"
    sections = [
        f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---",
        f"# {_line(name)}",
        f"{_what(system, role, members, backbone)} It maps a text of up to {max_length} tokens to a vector of "
        f"{dimension} numbers: {pooling} pooling of the token vectors of {pooled}. Compare two texts by {compared}.",
        "## How to use it",
        _use(path),
        "## Training data",
        _data_table(data),
        "## Scores",
        *_scores(rows, layers),
        "## What to know",
        "\n".join(f"- {_line(note)}" for note in _notes(selected_by, random_backbone, notes)),
        "## How to reproduce it",
        _fenced(command, "bash"),
        *([f"Source of the recipe: {_line(source)}"] if source else []),
        "<details><summary>The recipe, fully resolved</summary>",
        _fenced(recipe_yaml.rstrip(), "yaml"),
        "</details>",
    ]
    if versions:
        sections.append("Made with " + ", ".join(f"{_line(k)} {_line(v)}" for k, v in versions.items()) + ".")
    return "\n\n".join(sections) + "\n"


def card_of(
    plan: Plan, outcome: Outcome, model: Model, rows: Sequence[Mapping[str, Any]], name: str, command: str
) -> str:
    """The card of the model that is handed over by the run ``name``, whose results rows are ``rows``."""
    pipeline, recipes, record = plan.pipeline, plan.pipeline.recipes, model.record
    entry, recipe = names.RECIPES.get(pipeline.name), recipes[record["stage"]]
    by_dev = [dev_of([recipe.objective]) for recipe in recipes.values() if recipe.by_dev]
    return model_card(
        name=f"{name} ({record['role']})",
        path=str(model.model),
        system=pipeline.name,
        role=record["role"],
        members=len(plan.members),
        backbone=pipeline.backbone,
        dimension=pretrained.dim(model.model),
        similarity=next(iter(pretrained.similarities(model.model))),
        max_length=recipe.train.max_length,
        pooling=recipe.pooling,
        layers=model.job.export_layers if isinstance(model, TrainNode) else 1,
        data=[
            {"stage": stage, "table": r.table, "rows": plan.rows(r), "sha256": plan.corpus.fingerprint(r.table)}
            for stage, r in recipes.items()
        ],
        recipe_yaml=dump(pipeline),
        rows=[row for row in rows if row["run_id"] == model.id],
        command=command,
        source=entry.source if entry else None,
        selected_by=joined([outcome.selected_by, *by_dev]),
        random_backbone=pipeline.backbone == TINY,
        versions=record.get("versions"),
        notes=[
            *([outcome.choice] if outcome.choice else []),
            *(f"Training data is not whole; {skipped_line(file)}" for file in plan.skipped),
        ],
    )


def _what(system: str, role: str, members: int, backbone: str) -> str:
    text = f"A sentence-embedding model: `{_line(system)}` on the backbone `{_line(backbone)}`"
    if role == "student":
        return f"{text}, a student distilled from the mean embeddings of {members} ensemble members."
    if role == "member" and members > 1:
        return f"{text}, one of {members} members that differ in their seeds alone."
    return f"{text}."


def _use(path: str) -> str:
    code = f"""\
import raysts

model = raysts.load({path!r})
vectors = model.encode(["A man is playing a guitar.", "Someone plays an instrument."])  # float32 [2, D]
"""
    other = f"""\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer({path!r})
vectors = model.encode(["A man is playing a guitar.", "Someone plays an instrument."])
print(model.similarity(vectors[:1], vectors[1:]))
"""
    return f"{_fenced(code.rstrip(), 'python')}\n\nor, without raysts:\n\n{_fenced(other.rstrip(), 'python')}"


def _data_table(data: Sequence[Mapping[str, Any]]) -> str:
    if not data:
        return "None: nothing was trained."
    lines = [[str(d["stage"]), f"`{_line(d['table'])}`", f"{d['rows']:,}", f"`{str(d['sha256'])[:16]}`"] for d in data]
    return _markdown_table(["stage", "table", "rows", "sha256 (first 16 digits)"], lines, right={2})


def _scores(rows: Iterable[Mapping[str, Any]], layers: Layers) -> list[str]:
    shown = [
        row
        for row in rows
        if row["split"] == "test" and row["subset"] is None and row["layers"] in (str(layers), None)
        if row["value"] is not None and math.isfinite(row["value"])
    ]
    if not shown:
        return ["Not measured."]
    first = [row for row in shown if row["metric"] != "pearson" and row["aggregation"] in ("all", None)]
    rest = [row for row in shown if row not in first]
    legend = (
        "`all`: one correlation over all subsets together; `mean`, `wmean`: mean of the subsets' correlations, the "
        "second weighted by their pairs. Intervals are bootstrap intervals over the pairs."
    )
    if not first or not rest:
        return [_scores_table(shown), legend]
    return [_scores_table(first), legend, "<details><summary>Other metrics and aggregations</summary>",
            _scores_table(rest), "</details>"]  # fmt: skip


def _scores_table(rows: list[Mapping[str, Any]]) -> str:
    lines = [
        [
            f"{row['dataset']} {row['split']}" + (" (clean rows)" if row["rows"] == "clean" else ""),
            str(row["metric"]),
            str(row["aggregation"] or "–"),
            str(row["layers"] or "–"),
            str(row["similarity"] or "–"),
            f"{100 * row['value']:.2f}",
            _interval(row),
            f"{row['n']:,}" if row["n"] else "–",
        ]
        for row in rows
    ]
    head = ["set", "metric", "aggregation", "layers pooled", "similarity", "× 100", "95 % interval", "n"]
    return _markdown_table(head, lines, right={5, 7})


def _interval(row: Mapping[str, Any]) -> str:
    if row["ci_low"] is None or row["ci_high"] is None:
        return "–"
    return f"{100 * row['ci_low']:.2f} to {100 * row['ci_high']:.2f}"


def _notes(selected_by: str | None, random_backbone: bool, notes: Sequence[str]) -> list[str]:
    found = [
        "No labels of an evaluation set chose the checkpoint."
        if selected_by is None
        else f"Labels of {selected_by} chose the checkpoint (of the model or of members behind it), so scores on "
        "that set are not a test."
    ]
    if random_backbone:
        found.append(
            "The backbone was a small encoder with random weights, made for raysts' generated sentences: the model "
            "shows that the pipeline works, and is not meant for real text."
        )
    return [*found, *notes]


def _markdown_table(head: Sequence[str], lines: Sequence[Sequence[str]], right: set[int]) -> str:
    rule = ["---:" if column in right else "---" for column in range(len(head))]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in [head, rule, *lines])


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")


def _line(value: object) -> str:
    """Text that cannot end its line, nor open an HTML tag."""
    return " ".join(str(value).split()).replace("<", "&lt;")


def _fenced(text: str, language: str) -> str:
    """A code block whose fence does not occur in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"
