"""The rooms of the house, the one way in which they import each other, and the numbers that only fall."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import house
from house import ROOT, edges, imported_names, module_of, parsed

FILES = house.python_files()

ROOMS = (
    "ops", "storage", "cpu", "models", "recipes", "objectives", "data", "evaluation", "training", "pipeline", "search", "report",
    "cluster", "papers", "commands",
)  # fmt: skip
"""The folders, from the ground up: a file imports its own folder and those before it."""
LOOSE = {"__init__", "__main__", "cli", "errors", "ids", "log", "schema"}
"""What stands at the top beside them: the first three above everything, the others below."""
GROUND, ROOF = ("errors", "schema", "ids", "log"), ("__init__", "cli", "__main__")

LEVEL = {name: level for level, name in enumerate([*GROUND, *ROOMS, *ROOF])}
HEAVY = {"sentence_transformers", "datasets", "matplotlib", "optuna"}


def room(path: Path) -> str:
    """Return the folder or the loose file that a file is, as ``LEVEL`` names it."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def test_numbers_only_fall() -> None:
    """``python tests/house.py`` writes the numbers again."""
    ceilings = json.loads(house.CEILINGS.read_text(encoding="utf-8"))
    more = house.above(ceilings, house.counts())
    texts = {name: house.matches(name.removeprefix("language: ")) for name in more}
    assert not more, "\n".join([f"{name} is {text} {texts[name] or ''}" for name, text in more.items()])


def test_only_these_rooms_stand_at_the_top() -> None:
    assert {path.stem for path in ROOT.glob("*.py")} == LOOSE
    assert {room(path) for path in FILES} == LOOSE | set(ROOMS)
    assert not {path.stem for path in FILES} & {"utils", "helpers", "common", "misc", "util", "helper"}


def test_imports_go_down() -> None:
    upward = {
        f"{module_of(path)} imports {module_of(other)}"
        for path, other in edges()
        if room(path) not in ROOF and room(path) != room(other) and other != ROOT / "__init__.py"
        and LEVEL[room(other)] > LEVEL[room(path)]
    }  # fmt: skip
    assert not upward, "\n".join(sorted(upward))


def test_only_commands_know_the_papers_and_no_report_or_paper_knows_the_cluster() -> None:
    assert {room(path) for path, other in edges() if room(other) == "papers"} == {"papers", "commands"}
    rooms = [{room(a), room(b)} for a, b in edges()]
    assert not [pair for pair in rooms if pair & {"report", "papers"} and "cluster" in pair]


def test_no_file_imports_itself_through_others() -> None:
    uses: dict[str, set[str]] = {module_of(path): set() for path in FILES}
    for path, other in edges():
        if module_of(path) != "raysts":  # which imports its functions when they are first used
            uses[module_of(path)].add(module_of(other))
    left = dict(uses)
    while free := {name for name, others in left.items() if not others & left.keys()}:
        left = {name: others for name, others in left.items() if name not in free}
    users = set.union(set(), *left.values())
    while idle := left.keys() - users:  # uses a circle, and stands in none
        left = {name: others for name, others in left.items() if name not in idle}
        users = set.union(set(), *left.values())
    assert not left, f"circle among {', '.join(sorted(left))}"


def test_ray_is_imported_in_its_own_room_alone_and_heavy_packages_when_they_are_used() -> None:
    for path in (path for path in FILES if room(path) != "cluster"):
        names = {name.split(".")[0] for name in imported_names(parsed(path))}
        at_once = {name.split(".")[0] for name in imported_names(parsed(path), everywhere=False)}
        assert "ray" not in names and not at_once & HEAVY, path


def test_the_pure_files_know_no_files_and_no_configuration() -> None:
    allowed = {"__future__", "collections", "dataclasses", "functools", "math", "typing", "torch", "numpy", "raysts"}
    for path in (ROOT / "ops").glob("*.py"):
        assert {name.split(".")[0] for name in imported_names(parsed(path))} <= allowed, path.name


def test_what_is_imported_when(tmp_path: Path, tiny_backbone: Path) -> None:
    """No torch to show, list or refuse a recipe, nor to check data and model, estimate and ask what is done: torch and
    transformers take longer to import than all of it. What training imports: tests/commands/test_follow.py."""
    storage = ["--storage", str(tmp_path)]
    model = ["--set", f"backbone={tiny_backbone}"]
    statements = (
        "import sys, raysts",
        "from raysts.cli import execute\nfrom raysts.commands import look\nlook.show('quickstart'), look.recipes()\n"
        "assert execute(['plan', 'nli-cst']) == execute(['run', 'nli', '--set', 'a.b=1']) == 2",
        f"assert execute({['plan', 'quickstart', *storage]}) == execute({['plan', 'nli-ct-sed', *model, *storage]}) == 0",
    )
    program = "".join(f"{each}\nprint('modules:', *sys.modules)\n" for each in statements)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("modules:")]
    at_first, for_recipes, for_plans = map(set, lines)
    assert not {"torch", "ray", "transformers", "pyarrow"} & at_first
    assert "raysts.recipes.names" in for_recipes and "raysts.pipeline.validate" in for_plans
    assert not {"torch", "transformers", "ray"} & for_plans
