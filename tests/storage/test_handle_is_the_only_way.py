"""What lies in a storage is asked of its handle: nobody else asks the file system about a storage path.

The syntax trees are read. A path is of a storage when it is made from one by ``/``, ``parent``, ``Path`` and the like, is
handed on under another name, or is an argument of a function of the same file; what ``get``, ``get_all``, ``get_dir``,
``put`` and ``put_dir`` give is on this machine and may be opened.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import raysts

ROOT = Path(raysts.__file__).parent
ROOMS = ("training", "pipeline", "search", "report", "cluster", "commands")

SOURCES = {"storage", "folder", "marker", "run_folder", "store_folder", "token_folder"}
"""Attributes, methods and, where they are no attributes, arguments that are paths of a storage."""
ARGUMENTS = {"storage", "run_folder", "marker"}
PLACES = {"path", "list"}
"""What a store says of where something lies, whether it is here or not."""
SAME = {"parent", "absolute", "resolve", "with_name", "with_suffix", "joinpath", "parents", "relative_to"}
THROUGH = {"Path", "sorted", "list", "tuple", "set", "max", "min", "next", "iter", "reversed", "enumerate", "zip"}

METHODS = {
    "exists", "is_dir", "is_file", "stat", "glob", "rglob", "iterdir", "walk", "open", "read_text", "read_bytes", "unlink",
    "rmdir", "rename",
}  # fmt: skip
FUNCTIONS = {"open", "rmtree", "read_json", "listdir", "scandir", "isfile", "isdir", "copytree", "copyfile", "move"}


class File:
    """The questions to the file system about storage paths in one source text."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self.functions = {
            node.name: node for node in ast.walk(self.tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        }
        self.arguments: dict[str, set[str]] = {name: set() for name in self.functions}
        self.attributes: set[str] = set()

    def offenders(self) -> list[str]:
        """Each as ``line: code``; functions are read until no other argument turns out to be a storage path."""
        while True:
            before = (sum(map(len, self.arguments.values())), len(self.attributes))
            found = sorted({offender for node in self.functions.values() for offender in self._read(node)})
            if before == (sum(map(len, self.arguments.values())), len(self.attributes)):
                return [f"{line}: {code}" for line, code in found]

    def _read(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[int, str]]:
        every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        names = {argument.arg for argument in every} & ARGUMENTS | self.arguments[function.name]
        for _ in range(4):  # names of names of names
            for node in ast.walk(function):
                for target, value in bindings(node):
                    if self._is_storage(value, names):
                        names |= {name.id for name in ast.walk(target) if isinstance(name, ast.Name)}
                        if isinstance(target, ast.Attribute):
                            self.attributes.add(ast.unparse(target))
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Attribute):
                called, of = node.func.attr, node.func.value
                if called in METHODS and not is_store(of) and self._is_storage(of, names):
                    yield node.lineno, ast.unparse(node)
            else:
                called, of = ast.unparse(node.func), None
            asks = called in FUNCTIONS and not (of is not None and is_store(of))
            if asks and any(self._is_storage(argument, names) for argument in node.args):
                yield node.lineno, ast.unparse(node)
            if called in self.functions:
                taken = [argument.arg for argument in self.functions[called].args.args if argument.arg != "self"]
                given = [*zip(taken, node.args, strict=False), *((k.arg, k.value) for k in node.keywords if k.arg)]
                self.arguments[called] |= {name for name, value in given if self._is_storage(value, names)}

    def _is_storage(self, node: ast.expr, names: set[str]) -> bool:
        match node:
            case ast.Name():
                return node.id in names
            case ast.Attribute():
                if node.attr in SAME:
                    return self._is_storage(node.value, names)
                return node.attr in SOURCES or ast.unparse(node) in self.attributes or (
                    node.attr == "root" and is_store(node.value)
                )  # fmt: skip
            case ast.BinOp(op=ast.Div()):
                return self._is_storage(node.left, names)
            case ast.Call(func=ast.Attribute() as method):
                if is_store(method.value):
                    return method.attr in PLACES
                return method.attr in SOURCES or (method.attr in SAME and self._is_storage(method.value, names))
            case ast.Call(func=ast.Name() as function):
                through = function.id in THROUGH and any(self._is_storage(value, names) for value in node.args)
                return through or function.id in SOURCES
            case ast.IfExp():
                return self._is_storage(node.body, names) or self._is_storage(node.orelse, names)
            case ast.BoolOp() | ast.List() | ast.Tuple() | ast.Set():
                values = node.values if isinstance(node, ast.BoolOp) else node.elts
                return any(self._is_storage(value, names) for value in values)
            case ast.NamedExpr() | ast.Subscript() | ast.Starred():
                return self._is_storage(node.value, names)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                inner = set(names)
                for loop in node.generators:
                    if self._is_storage(loop.iter, inner):
                        inner |= {name.id for name in ast.walk(loop.target) if isinstance(name, ast.Name)}
                return self._is_storage(node.elt, inner)
        return False


def bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, value) of what a statement or expression gives names to."""
    match node:
        case ast.Assign():
            for target in node.targets:
                several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                if several and len(target.elts) == len(node.value.elts):  # type: ignore[attr-defined]
                    yield from zip(target.elts, node.value.elts, strict=True)  # type: ignore[attr-defined]
                else:
                    yield target, node.value
        case ast.AnnAssign() if node.value is not None:
            yield node.target, node.value
        case ast.NamedExpr():
            yield node.target, node.value
        case ast.For() | ast.comprehension():
            yield node.target, node.iter
        case ast.withitem() if node.optional_vars is not None:
            yield node.optional_vars, node.context_expr


def is_store(node: ast.expr) -> bool:
    """Whether an expression is a handle: a name or attribute ``store``, or one that has just been made."""
    made = isinstance(node, ast.Call) and ast.unparse(node.func) in (
        "Store.of",
        "Store.open",
        "Store",
        "store_of",
    )
    return made or ast.unparse(node).rpartition(".")[2] == "store"


FILES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nobody_asks_the_file_system_about_a_storage(path: Path) -> None:
    assert File(path.read_text(encoding="utf-8")).offenders() == []


OFFENDERS = """
def a(storage): return (storage / "runs" / "x").is_dir()
def b(plan): return read_json(plan.storage / "pipelines" / "a.json")
def c(plan):
    folder = plan.storage / "runs"
    here, other = folder / "x", 1
    return [path for path in here.parent.glob("*")]
def d(store): return store.path("runs/x").exists()
def e(store): return [path for path in store.list("runs") if path.is_dir()]
def f(store):
    for path in sorted(store.list("runs")):
        path.unlink()
def g(node): return Path(node.marker).read_text()
def h(storage): return opened(storage / "x")
def opened(path): return path.open()
def i(self, plan):
    self.file = plan.storage / "x"
def j(self): return self.file.stat()
def k(job): shutil.rmtree(job.folder / "model")
def l(store): return (store.root / "runs").iterdir()
def m(plan): return any((path / "model").is_dir() for path in [plan.run_folder("x")])
def n(plan): return Store.of(plan.storage).path("a").read_bytes()
"""
RIGHT = """
def a(store): return store.exists("runs/x") and store.read_json("runs/x/run.json")
def b(store):
    path = store.get("a", fresh=True)
    return path.open() if path else None
def c(plan): return [read_json(path) for path in Store.of(plan.storage).get_all(plan.storage / "runs", "run.json")]
def d(store):
    with store.put("x") as draft:
        draft.open("wb")
def e(store): return [path.name for path in store.list("runs") if store.exists(path)]
def f(output): return Path(output).exists()
def g(plan): return Store.of(plan.storage).get_dir(plan.storage / "m").is_dir()
"""


def test_the_test_finds_offenders_and_nothing_else() -> None:
    lines = [offender.partition(":")[0] for offender in File(OFFENDERS).offenders()]
    functions = [node.name for node in ast.parse(OFFENDERS).body if isinstance(node, ast.FunctionDef)]
    within = {
        node.name
        for node in ast.parse(OFFENDERS).body
        if isinstance(node, ast.FunctionDef)
        and any(node.lineno <= int(line) <= (node.end_lineno or 0) for line in lines)
    }
    assert within == set(functions) - {"h", "i"}, "those two only hand the path on"
    assert File(RIGHT).offenders() == []
