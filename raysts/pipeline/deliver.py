"""The delivered model: its folder, and its card (``README.md``)."""

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from raysts.data import manifest
from raysts.data.fetch import sources
from raysts.evaluation.cost import cost_rows
from raysts.models import pretrained
from raysts.models.embedders import open_embedder
from raysts.models.layers import Layers, layers_text
from raysts.models.modules import describe
from raysts.pipeline.inputs import TINY
from raysts.pipeline.outcome import Outcome, join_names
from raysts.pipeline.plan import Plan
from raysts.pipeline.step import Step
from raysts.pipeline.verdict import Verdict
from raysts.recipes import names
from raysts.recipes.overrides import dump
from raysts.storage.atomic import remove_drafts
from raysts.storage.runs import record_of

_TAGS = ("sentence-transformers", "sentence-similarity", "feature-extraction", "raysts")


def write_model(plan: Plan, outcome: Outcome) -> tuple[Path | None, Step | None]:
    """Return the folder of the delivered model, and its run's model (None: no run).

    A model that pools other layers than stored is written again: a run with its record, or a folder in ``backbones/``.
    """
    store, chosen = plan.store, outcome.chosen
    model = next((model for model in plan.models if model.id == outcome.selected), None)
    if model is None and chosen is None:
        backbone = plan.start if plan.is_table or plan.kept_layers is not None else plan.backbone
        return (None if plan.pipeline.combine else backbone), None
    folder = model.output if model else plan.start
    store.get_dir(folder)
    if chosen is None or (chosen.pooling, chosen.layers) == describe(folder).stored_pooling:
        return folder, model
    target = store.path(f"runs/{chosen.pooled_id}/model" if model else f"backbones/pooled-{chosen.pooled_id}")
    record = record_of(folder) if model else {}
    # The record comes last: without it a kill came before.
    if not store.get_dir(target, fresh=True) or (record and not store.exists(target.parent / "run.json")):
        remove_drafts(target.parent, "model" if model else target.name)
        options = {"pooling": chosen.pooling, "layers": chosen.layers, "content": plan.contents.get(folder)}
        pooled = pretrained.load(folder, device="cpu", **options)  # type: ignore[arg-type]
        with store.put_dir(target) as draft:
            pooled.save(draft)
        if record:
            store.write_json(target.parent / "recipe.json", store.read_json(folder.parent / "recipe.json") or {})
            store.write_json(
                target.parent / "run.json", record | {"run_id": chosen.pooled_id, "pooled_again": chosen.id}
            )
    return target, model


def render(card: Mapping[str, Any]) -> str:
    """Return the card in the format of the Hugging Face hub: YAML front matter, then Markdown.

    Args:
        card: the values of ``model_card.md`` by name. ``layers``: of the stored model. ``rows``: the results of this
            model. The card shows those of whole test sets at these layers. For the front matter: ``language``,
            ``base_model``, ``licence`` (of the backbone, from its card) and ``datasets`` by their names on the hub, None
            or empty if unknown.
    """
    layers: Layers = card["layers"]
    shown = [
        row
        for row in card["rows"]
        if row["split"] == "test" and row["subset"] is None and row["layers"] in (str(layers), None)
        if row["value"] is not None and math.isfinite(row["value"])
    ]
    first = [row for row in shown if row["metric"] != "pearson" and row["aggregation"] in ("all", None)]
    front = ModelCardData(
        language=card["language"],
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=list(_TAGS),
        base_model=card["base_model"],
        license=card["licence"],
        datasets=card["datasets"] or None,
        model_name=_line(card["name"]),
        eval_results=[_eval_result(row) for row in first if row["rows"] == "all"] or None,
    )
    return _TEMPLATE.render(
        card,
        costs=cost_rows(card["models"]),
        front=front.to_yaml(),
        pooled=f"the {'' if layers == 1 else 'mean of the '}{layers_text(layers)}",
        first=first,
        rest=[row for row in shown if row not in first],
    )


def _eval_result(row: Mapping[str, Any]) -> EvalResult:
    """Return a row in the format of the hub's model index. Values are from 0 to 1."""
    retrieval = row["dataset"].startswith("retrieval:")
    return EvalResult(
        task_type="information-retrieval" if retrieval else "semantic-similarity",
        dataset_type=_line(row["dataset"]),
        dataset_name=_line(row["dataset"]),
        dataset_split=row["split"],
        metric_type="_".join(filter(None, (row["metric"], row["similarity"]))),
        metric_value=row["value"],
    )


def _is_hub_name(name: str) -> bool:
    return bool(re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name)) and name != TINY and not Path(name).exists()


def _licence(folder: Path) -> str | None:
    path = folder / "README.md"
    with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
        licence = ModelCard.load(path, ignore_metadata_errors=True).data.license if path.is_file() else None
        return licence if isinstance(licence, str) else None
    return None


def _datasets(plan: Plan) -> list[str]:
    """Return the hub's data sets from which the training tables were fetched, by the manifest."""
    corpus, tables = plan.corpus, [recipe.table for recipe in plan.pipeline.recipes.values()]
    entries = {} if corpus.empty else manifest.read(corpus.root)
    canonical = {name for table in tables if table not in corpus.own for name in corpus.sources(table) or (table,)}
    fetched = [t for t in canonical if t in entries and manifest.is_intact(corpus.root, t, entries[t])]
    return sorted({source.dataset for table in fetched for source in sources().get(table, ()) if source.file is None})


def card_of(
    plan: Plan, verdict: Verdict, model: Step, folder: Path, rows: Sequence[Mapping[str, Any]], name: str, command: str
) -> str:
    """Return the card of the model that the run ``name`` delivers in ``folder``."""
    pipeline, recipes, record, corpus = plan.pipeline, plan.pipeline.recipes, model.record, plan.corpus
    entry, stored, embedder = names.RECIPES.get(pipeline.name), describe(folder), open_embedder(folder)
    by_dev = [plan.dev_name(recipe.spec.dev) for recipe in recipes.values() if recipe.uses_dev_labels]
    tables = {stage: (recipe, recipe.table) for stage, recipe in recipes.items()}
    return render(
        {
            "name": f"{name} ({record['role']})", "path": str(folder), "system": pipeline.name, "role": record["role"],
            "judge": plan.judge, "members": len(plan.members), "taught": plan.teacher.vectors.title if plan.teacher else "",
            "language": None if corpus.text else "en", "backbone": pipeline.backbone, "dimension": embedder.dim,
            "similarity": next(iter(embedder.similarities)), "max_length": stored.max_length, "pooling": stored.pooling,
            "layers": stored.layers, "recipe_yaml": dump(pipeline), "command": command, "notes": verdict.notes,
            "data": [
                {"stage": stage, "table": corpus.title(t), "rows": plan.rows(recipe), "sha256": corpus.fingerprint(t)}
                for stage, (recipe, t) in tables.items()
            ],
            "rows": [row for row in rows if row["run_id"] == model.id], "source": entry.source if entry else None,
            "compared": verdict.delivery.sentence if verdict.delivery else None,
            "selected_by": join_names([verdict.outcome.selected_by, *by_dev]),
            "base_model": pipeline.backbone if _is_hub_name(pipeline.backbone) else None, "teachers": pipeline.teachers,
            "licence": None if pipeline.backbone == TINY else _licence(plan.backbone), "datasets": _datasets(plan),
            "versions": record.get("versions"), "models": plan.costs(),
        }
    )  # fmt: skip


def _line(value: object) -> str:
    """Return the text on one line, without HTML tags."""
    return " ".join(str(value).split()).replace("<", "&lt;")


def _fence(text: str, language: str) -> str:
    """Return a code block with a fence that does not occur in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"


_MARKDOWN = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_MARKDOWN.filters |= {
    "line": _line,
    "cell": lambda value: _line(value).replace("|", "\\|"),
    "fenced": _fence,
    "hundredfold": lambda value: f"{100 * value:.2f}",
}
_TEMPLATE = _MARKDOWN.get_template("model_card.md")
