"""The part of the ``raysts`` command that searches."""

from __future__ import annotations

import argparse
from typing import Any

Outcome = tuple[dict[str, Any], str]
"""The fields of the JSON line, and the text for people."""

EXAMPLE = "raysts tune lower-bound --data DATA --set backbone=bert-base-uncased --set seeds=3"


def arguments(command: argparse.ArgumentParser) -> None:
    """The arguments of ``raysts tune`` beside the common ones."""
    command.add_argument("search", metavar="NAME", help="lower-bound, latte-mix or gausscse")
    command.add_argument("--name", help="name of the study in the storage (default: the search's name)")
    command.add_argument(
        "--warm-start", metavar="STUDY", help="learn from the points of this earlier study (searches that sample)"
    )
    command.add_argument("--mlflow", metavar="URI", help="also log every trial as a run of this MLflow")
    command.add_argument("--wandb", metavar="PROJECT", help="also log every trial as a run of Weights & Biases")
    command.description = (
        "Search what matters, on Ray Tune with Optuna. The same command again goes on where it stopped.\n\n"
        "Options of the search itself, by --set: seeds=3, num_samples=40, concurrency=2, keep=5, resources.gpus=0.25,\n"
        "metric=pearson (what trials are compared by: a dev score, or loss), asha=true or asha.grace=0.3, and its\n"
        "space: space.optim.lr='log(1e-6,1e-4)', space.lower_bound=0,0.25,0.5"
    )


def tune(options: argparse.Namespace, command: str) -> Outcome:
    """``raysts tune``."""
    from raysts.commands.tune import tune as run
    from raysts.recipes.overrides import parse_overrides

    found = run(
        options.search,
        parse_overrides(options.set),
        options.data,
        options.storage,
        name=options.name,
        warm_start=options.warm_start,
        mlflow=options.mlflow,
        wandb=options.wandb,
        address=options.address,
        command=command,
        skip_bad=options.skip_bad,
    )
    lines = [found.pop("table"), f"study:  {found['study']}", f"report: {found['report']}"]
    lines.append(f"dashboard: optuna-dashboard sqlite:///{found['study']}/optuna.db")
    lines.append(f"scalars: tensorboard --logdir {found['study']}/tensorboard")
    lines.append(f"next:   raysts distill --from-study {found['name']} --storage {found['storage']}")
    return found, "\n".join(lines)
