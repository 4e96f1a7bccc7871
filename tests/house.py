"""What is counted of the house: lines, rooms, arrows between rooms, private names of Ray, language rules; of tests/ lines.

``python tests/house.py`` writes `tests/golden/ceilings.json`. A number may fall and never rises: the command refuses to write a
larger one unless it is called with ``--raise NAME``, once for each number that is raised on purpose.
"""

from __future__ import annotations

import ast
import collections
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import raysts

ROOT = Path(raysts.__file__).parent
CEILINGS = Path(__file__).parent / "golden" / "ceilings.json"
LOOSE = "loose files"

# -- imports -------------------------------------------------------------------------------------------------------------


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Return all nodes of a file's syntax tree: to walk through it takes longer than to parse it."""
    return [*ast.walk(parsed(path))]


@cache
def python_files() -> list[Path]:
    """Return the files of the package."""
    return sorted(ROOT.rglob("*.py"))


def room(path: Path) -> str:
    """Return the top-level folder that a file lies in; all loose files are one room."""
    first, *others = path.relative_to(ROOT).parts
    return first if others else LOOSE


def imported_names(tree: ast.AST, *, everywhere: bool = True, types: bool = True) -> Iterator[str]:
    """Yield the dotted names that a module imports.

    Args:
        everywhere: inside functions too, and not only what runs when the module is imported.
        types: with what only a type checker reads.
    """
    for node in ast.iter_child_nodes(tree):
        checker = isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.expr):
            continue
        elif (everywhere or not (isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or checker)) and (
            types or not checker
        ):
            yield from imported_names(node, everywhere=everywhere, types=types)


def module_of(path: Path) -> str:
    """Return the dotted name of a file."""
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


@cache
def modules() -> dict[str, Path]:
    """Return the files by dotted name."""
    return {module_of(path): path for path in python_files()}


@cache
def edges() -> list[tuple[Path, Path]]:
    """Return (file, file that it imports) of the package, imports inside functions and for type checkers too."""
    pairs = []
    for path in python_files():
        for name in imported_names(parsed(path)):
            while name and name not in modules():
                name = name.rpartition(".")[0]
            if name and modules()[name] != path:
                pairs.append((path, modules()[name]))
    return pairs


def arrows() -> set[tuple[str, str]]:
    """Return (room, room that it imports)."""
    return {(room(path), room(other)) for path, other in edges() if room(path) != room(other)}


PRIVATE_PART = re.compile(r"^_(?!_)")


def private_ray(name: str) -> bool:
    """Return True if a dotted name is not a public part of Ray."""
    first, *parts = name.split(".")
    return first == "ray" and any(PRIVATE_PART.match(part) or part == "gcs_utils" for part in parts)


def private_ray_names() -> set[str]:
    """Return the private names of Ray that the package imports or reads as ``ray....``."""
    names = {name for path in python_files() for name in imported_names(parsed(path))}
    for path in python_files():
        if "ray." in path.read_text(encoding="utf-8"):  # to unparse all takes seconds
            names |= {ast.unparse(node) for node in nodes(path) if isinstance(node, ast.Attribute)}
    return {name for name in names if private_ray(name)}


# -- language ------------------------------------------------------------------------------------------------------------

PREPOSITIONS = "of|at|by|in|on|under|beside|behind|with|without"
NO_CONTENT = (
    "found|known|own|kept|given|asked|said|told|held|each|every|several|others|more|there|here|now|mine|theirs|ours|wanted|left|"
    "made|what|who|which|how|whole|beside|alike|at|by|of|one|some|both|where|few|such"
)

RULES = {
    "N1": (
        "functions",
        rf"^_?({PREPOSITIONS})(_|$)",
        {"on_trial_result", "on_trial_complete", "on_trial_error", "on_step_end", "on_start", "on_shutdown", "of"},
    ),
    "N2": ("functions", r"^_?[a-z]+(ed|own|elt|earnt|ilt|aid|ept|eft)$", {"embed", "seed", "added", "sed"}),
    "N3": (
        "functions",
        r"^_?(here|there|now|such|alike|apart|together|instead|aside|same|whole|beside|over|missing|absent)$",
        set(),
    ),
    "N4": ("classes", r"(ed|ing)$", {"RunFailed", "StoreFailed", "Preempted", "Meaning", "Standing", "Delivered"}),
    "N5": ("classes", r"^_?(Own|Of|Several|No|Un)[A-Z]|^_?Un[a-z]+$", {"Unit"}),
    "N6": ("variables", rf"^({NO_CONTENT})$", {"left", "what", "by"}),
    "N7": ("modules", r"^(own|known|named|composed|smaller|foreign|local|derived)$", {"local", "foreign"}),
    "D1": ("summaries", r"^(What|Whether|Which|Where|How|Why|When|Who)\b", set()),
    "D2": ("summaries", r"^(As|Of|Those|That|These|It|They|One|None|Nothing|So|Beside|Behind|By)\b", set()),
    "D3": ("summaries", r"^.{101,}$", set()),
    "D4": ("summaries", r";", set()),
    "D5": ("docstrings", r"\bwhere (there|nobody|no|it|they|that)\b", set()),
    "D6": ("docstrings", r"\b(whoever|whatever|whichever|nobody|somebody)\b", set()),
    "D7": ("docstrings", r"\b(is|are|was|were) (not )?there\b", set()),
    "D8": ("docstrings", r"\b(is|are) (none|no)\b", set()),
    "D9": ("docstrings", r"\b(of which|of whom|whose)\b", set()),
    "D10": ("docstrings", r"\bof (its|their|our|the user's) own\b|\bby (itself|themselves)\b", set()),
    "D11": ("docstrings", r"\b(is|are|was) said\b|\bsays? (of|what|so)\b", set()),
    "D12": (
        "docstrings",
        r"\b(goes|go|gets|get|comes|came) (on|in|up|out|back)\b|\b(handed|taken|given|put) (over|up|back|aside)\b|\bset aside\b",
        set(),
    ),
    "M1": ("messages", r"\bleave\b[^;.]*\bout\b", set()),
    "M2": ("messages", r"\b(is|are) (no|none)\b", set()),
    "C1": ("lines", r"\*\(\[|\*\(\(", set()),
}
"""By rule: where it looks, what it looks for, and names that are exempt. CONTRIBUTING.md says each rule in words.

Exempt are names that a library calls, a noun that looks like a participle (``Standing``), a stage's name (``sed``), the
side of a pair (``left``), the constructor ``of`` (``Store.of(path)``), fields of a record that users read (``what`` and ``by``
of ``delivered``, and its class), and two modules (the ``local`` executor, files that ``foreign`` programs wrote).
"""


@cache
def texts() -> dict[str, list[str]]:
    """Return what the rules read: names, summaries, docstrings, messages and lines of the package."""
    read: dict[str, list[str]] = collections.defaultdict(list)
    for path in python_files():
        read["modules"].append(path.stem)
        read["lines"] += path.read_text(encoding="utf-8").splitlines()
        for node in nodes(path):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                read["summaries"].append(text.split("\n")[0])
                read["docstrings"].append(text)
            if isinstance(node, ast.ClassDef):
                read["classes"].append(node.name)
            elif isinstance(node, ast.FunctionDef):
                read["functions"].append(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                read["variables"].append(node.id)
            elif isinstance(node, ast.arg):
                read["variables"].append(node.arg)
            elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                parts = [part.value for part in ast.walk(node.exc.args[0]) if isinstance(part, ast.Constant)]
                read["messages"].append("".join(part for part in parts if isinstance(part, str)))
    return read


def matches(rule: str) -> list[str]:
    """Return the texts that break a language rule, if a pattern finds them."""
    where, pattern, exempt = RULES.get(rule, ("", "", set()))
    return [text for text in texts()[where] if text.strip("_") not in exempt and re.search(pattern, text)]


def language() -> dict[str, int]:
    """Return the number of texts that break each language rule, and of code that breaks one on its form."""
    hits = {rule: len(matches(rule)) for rule in RULES}
    hits["N8"] = sum(count > 1 for count in collections.Counter(texts()["classes"]).values())
    every = [node for path in python_files() for node in nodes(path)]
    choices = [node for node in every if isinstance(node, ast.IfExp)]
    hits["C2"] = sum(any(isinstance(inner, ast.IfExp) for inner in [*ast.walk(node)][1:]) for node in choices)
    setters = [node for node in every if isinstance(node, ast.Attribute) and node.attr == "__setattr__"]
    hits["C3"] = sum(ast.unparse(node) == "object.__setattr__" for node in setters)
    functions = [node.args for node in every if isinstance(node, ast.FunctionDef)]
    hits["C4"] = sum("say" in {argument.arg for argument in (*each.args, *each.kwonlyargs)} for each in functions)
    return hits


# -- ceilings ------------------------------------------------------------------------------------------------------------


def counts() -> dict[str, dict[str, int]]:
    """Return everything that has a ceiling, by kind and name."""
    lines: dict[str, int] = collections.Counter()
    for path in python_files():
        size = len(path.read_text(encoding="utf-8").splitlines())
        lines[room(path)] += size
        lines["raysts"] += size
    for path in Path(__file__).parent.rglob("*.py"):
        lines["tests"] += len(path.read_text(encoding="utf-8").splitlines())
    return {
        "lines": dict(sorted(lines.items())),
        "rooms": {"rooms": len({room(path) for path in python_files()}), "arrows": len(arrows())},
        "Ray": {"private names": len(private_ray_names())},
        "language": dict(sorted(language().items())),
    }


def above(ceilings: dict[str, dict[str, int]], now: dict[str, dict[str, int]]) -> dict[str, str]:
    """Return the numbers that are above their ceilings, with both. What has no ceiling may not exist."""
    return {
        f"{kind}: {name}": f"{number:,} (at most {ceilings.get(kind, {}).get(name, 0):,})"
        for kind, numbers in now.items()
        for name, number in numbers.items()
        if number > ceilings.get(kind, {}).get(name, 0)
    }


def main(arguments: list[str]) -> None:
    """Write the ceilings, and say which fell."""
    raised = {arguments[index + 1] for index, word in enumerate(arguments) if word == "--raise"}
    now, before = counts(), json.loads(CEILINGS.read_text(encoding="utf-8")) if CEILINGS.exists() else None
    if before is not None and (more := {name: text for name, text in above(before, now).items() if name not in raised}):
        lines = [f"{name} is {text}; make it less, or add: --raise '{name}'" for name, text in more.items()]
        sys.exit("\n".join(lines))
    CEILINGS.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
    for kind, numbers in now.items():
        for name, number in numbers.items():
            old = number if before is None else before.get(kind, {}).get(name, 0)
            if old != number:
                print(f"{kind}: {name} {old:,} -> {number:,}")


if __name__ == "__main__":
    main(sys.argv[1:])
