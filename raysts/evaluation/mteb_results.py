"""Results of the STS tasks as files of MTEB's format (``mteb.TaskResult``)."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raysts.models.layers import Layers
from raysts.storage.atomic import write_json

NAMES = {**{f"sts{year}": f"STS{year}" for year in range(12, 17)}, "stsb": "STSBenchmark", "sickr-all": "SICK-R"}
"""MTEB's names of the tasks; its SICK-R is the whole corpus."""

MAIN = "cosine_spearman"
"""MTEB's main score of an STS task."""

META = (
    "loader", "name", "revision", "release_date", "languages", "n_parameters", "memory_usage_mb", "max_tokens",
    "embed_dim", "license", "open_weights", "public_training_code", "public_training_data", "framework",
    "similarity_fn_name", "use_instructions", "training_datasets",
)  # fmt: skip
"""Fields of ``model_meta.json`` that MTEB asks for; what raysts does not know is null."""


def problems(tasks: Sequence[str], similarity: str | None) -> list[str]:
    """Return the reasons why nothing can be written, or an empty list."""
    reasons = []
    if not set(tasks) & set(NAMES):
        reasons.append(f"--mteb: none of the tasks {', '.join(tasks)} is one of MTEB's, which are {', '.join(NAMES)}")
    if similarity not in (None, "cosine"):
        reasons.append(f"--similarity {similarity}: MTEB's main score is by cosine; leave one of --mteb and it out")
    return reasons


def write(
    rows: Iterable[Mapping[str, Any]], folder: Path, model: str, revision: str, layers: Layers, default: str
) -> list[Path]:
    """Write a file for each task and ``model_meta.json`` from results rows, and return the tasks' paths.

    ``mteb.ResultCache(folder)`` finds them in ``<folder>/results/<model>/<revision>/``. ``model``: a Hugging Face name is kept,
    another becomes ``raysts/<its last part>``. ``mteb_version`` is null: it was not MTEB that measured.
    """
    name = model
    if Path(model).exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        name = f"raysts/{re.sub(r'[^A-Za-z0-9_.-]', '-', Path(model).name) or 'model'}"
    target = folder / "results" / name.replace("/", "__") / revision
    tasks: dict[str, dict[str, Any]] = {}
    for row in rows:
        selected = {"split": "test", "rows": "all", "aggregation": "all", "layers": str(layers)}
        if row["dataset"] not in NAMES or any(row[column] != value for column, value in selected.items()):
            continue
        task = tasks.setdefault(row["dataset"], {"sha256": row["dataset_sha256"], "scores": {}})
        if row["similarity"] == "cosine":
            task["scores"][f"cosine_{row['metric']}"] = row["value"]
        if row["similarity"] == default:
            task["scores"][row["metric"]] = row["value"]
    written = []
    for dataset, task in tasks.items():
        about = {"main_score": task["scores"][MAIN], "hf_subset": "default", "languages": ["eng-Latn"]}
        scores = task["scores"] | about
        result = {
            "dataset_revision": f"sha256:{task['sha256']}", "task_name": NAMES[dataset], "mteb_version": None,
            "scores": {"test": [scores]}, "evaluation_time": None, "kg_co2_emissions": None,
        }  # fmt: skip
        written.append(target / f"{NAMES[dataset]}.json")
        write_json(written[-1], result)
    meta = {"name": name, "revision": revision, "framework": ["PyTorch"], "similarity_fn_name": "cosine"}
    write_json(target / "model_meta.json", dict.fromkeys(META) | meta)
    return written
