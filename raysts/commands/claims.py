"""``raysts claims``: tests of the claims of the papers against their baselines."""

from raysts.commands import options as opt
from raysts.commands.options import Command, Result, RunOptions
from raysts.errors import InputError, nearest
from raysts.papers.claims import CLAIMS


def claims(
    paper: opt.Name = None,
    *,
    seeds: int = 5,
    scale: str = "small",
    plan: bool = False,
    stand_ins: bool = False,
    overrides: opt.Overrides = None,
    data: opt.Data = None,
    storage: opt.StoragePlace = None,
    address: opt.Address = None,
    command: opt.CommandLine = None,
    strict_contamination: opt.StrictContamination = False,
    skip_bad: opt.SkipBad = False,
) -> Result:
    """Test the papers' claims, each with a paired interval and a verdict.

    The runs are the pipelines of ``raysts run claims-PAPER``. Finished work is not repeated, and the same command continues
    an interrupted one. Systems without a claim that the data can measure are omitted.

    Args:
        paper: sed, gausscse or latte-mix (default: all of them).
        seeds: members of every system, and students of each ensemble, two at least.
        scale: small, or paper with the papers' backbones and sizes.
        plan: start nothing, and list the steps.
        stand_ins: test claims on other sets of the same task, marked as such, if the data lack their test sets.

    Returns:
        status, storage, claims (rows: :meth:`raysts.papers.verdicts.ClaimVerdict.as_plain` and ``paper``), reports (paths), text;
        with ``plan`` status, storage, nodes and notes (as :func:`raysts.plan`).

    Raises:
        InputError: a problem that would stop a run, before anything starts, or no claim can be measured.
        RunFailed: some runs failed.
    """
    from raysts.commands import experiment
    from raysts.papers.experiments import EXPERIMENTS

    if paper is not None and paper not in CLAIMS:
        raise InputError(f"paper '{paper}'{nearest(paper, CLAIMS)}: must be one of {', '.join(CLAIMS)}")
    if seeds < 2:
        raise InputError(f"--seeds {seeds}: must be at least 2, for claims are about what differs between seeds too")
    settings = dict(overrides or {})
    if counted := [key for key in settings if key in ("members", "students")]:
        raise InputError(f"{', '.join(counted)}: --seeds sets it. Remove it")
    called = f"{paper!r}, seeds={seeds}, scale={scale!r}, stand_ins={stand_ins}, overrides={settings!r}"
    line = command or f"raysts.claims({called})"
    options = RunOptions(
        data, storage, address=address, command=line, strict_contamination=strict_contamination, skip_bad=skip_bad,
        stand_ins=stand_ins,
    )  # fmt: skip
    recipes = {name: f"claims-{name}@{scale}" for name in ([paper] if paper else CLAIMS)}
    counts = {name: dict.fromkeys(EXPERIMENTS[f"claims-{name}"].settings, seeds) for name in recipes}
    checked = {
        name: experiment.plan_experiment(recipe, settings | counts[name], options) for name, recipe in recipes.items()
    }
    if plan:
        described = [experiment.describe_experiment(experiment_plan) for experiment_plan in checked.values()]
        nodes = {node["id"]: node for entry in described for node in entry["nodes"]}
        return {
            "status": "done",
            **described[0],
            "name": ", ".join(entry["name"] for entry in described),
            "nodes": [*nodes.values()],
            "notes": [note for experiment_plan in checked.values() for note in experiment_plan.notes],
        }
    results = {name: experiment.run(experiment_plan) for name, experiment_plan in checked.items()}
    return {
        "status": "done",
        "storage": next(iter(results.values()))["storage"],
        "claims": [{"paper": name, **row} for name, entry in results.items() for row in entry["claims"]],
        "reports": [entry["report"] for entry in results.values()],
        "text": "\n".join(entry["text"] for entry in results.values()),
    }


def _text(result: Result) -> str:
    from raysts.commands.look import plan_text

    if "nodes" in result:
        return plan_text(result)
    return "\n".join([str(result.pop("text")), *(f"report: {path}" for path in result["reports"])])


EXAMPLE = "raysts claims sed --data DATA --set backbone=MODEL --seeds 5"
COMMANDS = (Command("claims", claims, _text, EXAMPLE, opt.MEASURE, ("paper",)),)
