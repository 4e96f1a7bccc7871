"""``raysts tune``: a search to its end."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysts.commands.options import Command, Result, RunOptions, add, say_on_stderr

if TYPE_CHECKING:
    from raysts.search.search import Search

HELP = "search what matters, on Ray Tune with Optuna"
EXAMPLE = "raysts tune lower-bound --data DATA --set backbone=bert-base-uncased --set seeds=3"


class _SearchNames(str):
    """Help that names the searches when it is shown: they import what evaluates, for which no other command should wait."""

    def __mod__(self, values: Any) -> str:
        from raysts.search.named import SEARCHES

        *others, last = SEARCHES
        return (
            f"{', '.join(others)} or {last}; or a system of one training stage, or its YAML file, with a space of yours"
        )


def _arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("search", metavar="NAME", help=_SearchNames("name of a search"))
    command.add_argument("--name", help="name of the study in the storage (default: the search's name)")
    command.add_argument(
        "--warm-start", metavar="STUDY", help="learn from the points of this earlier study (searches that sample)"
    )
    command.add_argument("--mlflow", metavar="URI", help="also log every trial as a run of this MLflow (on Ray)")
    command.add_argument(
        "--wandb", metavar="PROJECT", help="also log every trial as a run of Weights & Biases (on Ray)"
    )
    command.description = (
        "Search what matters, on Ray Tune with Optuna. The same command again goes on where it stopped.\n\n"
        "Options of the search itself, by --set: seeds=3, num_samples=40, concurrency=2, keep=5, resources.gpus=0.25,\n"
        "metric=pearson (what trials are compared by: a dev score, or loss), asha=true or asha.grace=0.3, and its\n"
        "space: space.optim.lr='log(1e-6,1e-4)', space.lower_bound=0,0.25,0.5. A system has no space but what is given:\n"
        "raysts tune simcse-sup --set space.batch=32,64 --set space.optim.lr='log(1e-6,1e-4)' --set num_samples=20"
    )
    add(command, "--set", "--data", "--text", "--column", "--dev", "--storage", "--address", "--skip-bad")


def tune(
    search: str | Search,
    overrides: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    storage: str | Path | None = None,
    *,
    text: str | Path | None = None,
    column: str | None = None,
    dev: Mapping[str, str | Path] | None = None,
    name: str | None = None,
    warm_start: str | None = None,
    mlflow: str | None = None,
    wandb: str | None = None,
    address: str | None = None,
    command: str | None = None,
    skip_bad: bool = False,
    say: Callable[[str], None] = say_on_stderr,
) -> Result:
    """Run a search to its end; trials that have ended are not run again, killed ones go on from their checkpoints.

    Args:
        search: a name (``raysts.search.named.SEARCHES``), that of a system of one training stage, whose space the overrides
            give, or a Search.
        overrides: of the search (``seeds``, ``num_samples``, ``concurrency``, ``keep``, ``metric``, ``asha.grace``), of its space
            (``{"space.sts.optim.lr": "log(1e-6,1e-4)"}``) and of its pipeline (``backbone``, ``train.max_steps``).
        data, storage, text, column, dev, address, command, skip_bad, say: as :func:`raysts.run`; with ``address`` ``none``
            one trial after the other.
        name: name of the study in the storage; default the search's.
        warm_start: another study of this storage, whose scores the sampler learns from before its first proposal.
        mlflow: tracking URI that gets a run per trial, on Ray; none: not used.
        wandb: Weights & Biases project that gets a run per trial, on Ray; none: not used.

    Returns:
        status, storage, name, study (path), report (path), metric, mode (``max`` or ``min``), trials (number that
        finished), best (overrides, value: the point with the best mean over its seeds), best_run (overrides, seed,
        value), points (overrides, seed, value, status, run: one per trial that has ended), untrained (the value of the
        backbone as it is, where there is one), table (text), skipped (as :func:`raysts.run`).

    Raises:
        InputError: anything that would stop it later, or a study of this name that is of another search.
        RunFailed: trials failed for reasons that are not their points', or none finished.
    """
    from raysts.commands.study import planned, run_study
    from raysts.data.own import Own

    given = dict(overrides or {})
    line = command or f"raysts.tune({getattr(search, 'name', search)!r}, {given!r})"
    options = RunOptions(data, storage, name, address, line, skip_bad=skip_bad, say=say, own=Own.of(text, column, dev))
    return run_study(planned(search, given, options), options, warm_start=warm_start, mlflow=mlflow, wandb=wandb)


def _text(result: Result) -> str:
    lines = [result.pop("table"), f"study:  {result['study']}", f"report: {result['report']}"]
    lines.append(f"dashboard: optuna-dashboard sqlite:///{result['study']}/optuna.db")
    lines.append(f"scalars: tensorboard --logdir {result['study']}/tensorboard")
    lines.append(f"next:   raysts distill --from-study {result['name']} --storage {result['storage']}")
    return "\n".join(lines)


COMMANDS = (Command("tune", HELP, EXAMPLE, _arguments, tune, _text),)
