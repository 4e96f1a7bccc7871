"""Wrong input, drawn: values of options, YAML recipes, tables, models and records, each from a number alone."""

import csv
import decimal
import gzip
import io
import itertools
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from cyclopts.argument import Argument
from run_commands import options_of

from raysts.commands import parser
from raysts.recipes.names import RECIPES, pipeline
from raysts.recipes.overrides import dump

TEXTS = (
    "", " ", "0", "-1", "1", "2", "1.5", "1e309", "-1e309", "nan", "inf", "true", "null", "~", "[]", "{}", "[1", "{a: [",
    "x" * 5000, "9" * 400, "1_000", "0x10", "1,2,,3", ",", "=", "a=b", "a=b=c", "..", "../..", "a/b", "/", "/dev/null",
    "/dev/zero", "/dev/tty", "/proc/self/mem", "/proc/1/root", ".hidden", "-", "--", "-x", "%s%n", "{0}", "$HOME", "\n",
    "a\nb", "\t", "\x7f", "é", "🙂" * 40, "e\u0301", "\u202eabc", "\udcff", "*", "?", "~root", "file:///etc/passwd",
    "s3://", "s3:///x", "s3://b/../x", "s3://a:b@c/d", "http://a:secret@b/c", "hf://", "hf://a b", "ftp://x", "none", "None",
    "1e9", "1000000000", "-0", "00", "+1", "١", "!!python/object:os.system x", "&a [*a]", "first_last", "all", "[1, [2, [3]]]",
)  # fmt: skip
"""What people and programs put where something else should be."""

PLAIN: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 10**6, 10**12, 10**400, 1.5, -0.5, 1e308, float("nan"), float("inf"), "", " ", "x",
    "x" * 5000, "../../etc", "/etc/passwd", "\x00", "\ud800", "tiny", [], {}, [[]], [None], {"": None}, {"a": {"b": [1]}},
    [1, "a", None], ["x"] * 100,
)  # fmt: skip
"""The same among the values of JSON and of YAML."""


class Ground(NamedTuple):
    """What is right, to be made wrong: tables, a model, a storage in which something has run, and a folder to work in."""

    world: Path
    model: Path
    storage: Path | None
    place: Path


class Case(NamedTuple):
    """A command, what is wrong with it in a few words, and whether the storage may hold something already."""

    arguments: list[str]
    what: str


Draw = Callable[[random.Random, Ground], Case]


# -- values of options ----------------------------------------------------------------------------------------------------
LEFT_ALONE = {"--help", "--json", "--storage", "--address", "--push", "--track", "--source", "--version"}
"""What the check itself sets, and what talks to the network."""


def leaves(tree: Any, path: str = "") -> list[str]:
    """The dotted names of a tree."""
    if not isinstance(tree, dict):
        return [path]
    return [leaf for key, value in tree.items() for leaf in leaves(value, f"{path}.{key}".lstrip("."))]


COMMANDS = {name: options_of(name) for name in parser.COMMANDS}
EVERY_STAGE = ("nli-ct-sed-flow", "gausscse-ent+con+rev", "latte")
SETTINGS = sorted({leaf for name in EVERY_STAGE for leaf in leaves(yaml.safe_load(dump(pipeline(name))))})
"""What ``--set`` takes, of recipes that have every stage."""


def right(argument: Argument, ground: Ground, drawn: random.Random) -> str:
    """A value of an argument that is not to be wrong."""
    options = {
        "recipe": drawn.choice(["nli", "nli-ct-sed", "quickstart", "simcse-unsup"]), "model": str(ground.model),
        "models": str(ground.model), "a": str(ground.model), "b": str(ground.model), "data": str(ground.world),
        "input": str(ground.world / "sts/stsb_dev.parquet"), "column": "sentence1", "output": str(ground.place / "vectors"),
        "to": str(ground.place / "exported"), "tasks": "sts12", "overrides": "members=2", "resamples": "0", "name": "mine",
        "dev": f"mine={ground.world}/sts/stsb_dev.parquet", "test": f"mine={ground.world}/sts/stsb_dev.parquet",
        "pairs": str(ground.world / "sts/stsb_dev.parquet"), "text": str(ground.world / "wikipedia/sentences.parquet"),
        "search": "lower-bound", "file": str(ground.world / "sts/stsb_dev.parquet"), "tables": "sts/stsb_dev",
        "corpus": "wikipedia", "kind": "pairs",
    }  # fmt: skip
    if choices := argument.get_choices():
        return str(drawn.choice(sorted(choices)))
    return options.get(argument.field_info.name, drawn.choice(["1", "x"]))


def value(drawn: random.Random, ground: Ground) -> Case:
    """A command with one value that is (most likely) wrong."""
    words = drawn.choice(sorted(COMMANDS))
    taken = [argument for argument in COMMANDS[words] if not LEFT_ALONE & set(argument.names)]
    positional = [argument for argument in taken if not argument.name.startswith("-")]
    optional = [argument for argument in taken if argument.name.startswith("-") and argument.hint is not bool]
    bad, arguments = drawn.choice(TEXTS), words.split()
    if not positional + optional:
        return Case([*arguments, bad], f"{words}: {bad!r:.60}")
    wrong = drawn.choice(positional + 3 * optional)
    given: list[str] = []
    for argument in taken:
        name = argument.field_info.name
        if argument is wrong:
            if name == "overrides" and drawn.random() < 0.9:
                bad = f"{drawn.choice(SETTINGS)}={bad}"
            elif name in ("dev", "test") and drawn.random() < 0.5:
                bad = f"mine={bad}"
            given += [bad] if argument in positional else [f"{argument.name}={bad}"]
        elif argument in positional:
            given += [right(argument, ground, drawn)] if argument.required else []
        elif argument.required or name in ("data", "tasks", "resamples"):
            given += [argument.name, right(argument, ground, drawn)]
    if wrong.field_info.name == "overrides" and "recipe" in {argument.field_info.name for argument in positional}:
        given[0] = drawn.choice(sorted(RECIPES)) if drawn.random() < 0.3 else given[0]
    return Case([*arguments, *given], f"{words}: {wrong.field_info.name}={bad!r:.60}")


BOMB = ["a: &a [x, x]", *(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in itertools.pairwise("abcdefghij"))]
"""Lists of lists: a kilobyte that stands for a billion words."""


# -- YAML -----------------------------------------------------------------------------------------------------------------
def recipe(drawn: random.Random, ground: Ground) -> Case:
    """A recipe in YAML with something else in it."""
    text = dump(pipeline(drawn.choice(["nli-ct-sed", "simcse-unsup", "gausscse-ent", "sts-sed"])))
    lines = text.splitlines()
    at = drawn.randrange(len(lines))
    key = lines[at].partition(":")[0]
    written: bytes | None = None
    ways: dict[str, Callable[[], list[str]]] = {
        "gone": lambda: lines[:at] + lines[at + 1 :],
        "twice": lambda: lines[: at + 1] + lines[at:],
        "another value": lambda: [*lines[:at], f"{key}: {drawn.choice(TEXTS)}", *lines[at + 1 :]],
        "another plain value": lambda: [*lines[:at], f"{key}: {json.dumps(drawn.choice(PLAIN))}", *lines[at + 1 :]],
        "another key": lambda: [*lines[:at], lines[at].replace(key.strip(), drawn.choice(TEXTS) or "x", 1), *lines[at + 1 :]],
        "indented": lambda: [*lines[:at], drawn.choice([" ", "\t", "      "]) + lines[at], *lines[at + 1 :]],
        "cut": lambda: [*lines[:at], lines[at][: drawn.randrange(len(lines[at]) + 1)]],
        "aliases": lambda: [*BOMB, f"{key.strip()}: *j"],
        "itself": lambda: [*lines[:at], f"{key}: &a [*a]", *lines[at + 1 :]],
        "deep": lambda: [*lines[:at], f"{key}: " + "[" * 5000 + "]" * drawn.choice([0, 5000]), *lines[at + 1 :]],
        "tag": lambda: [*lines[:at], f"{key}: !!python/object/apply:os.system ['false']", *lines[at + 1 :]],
        "several": lambda: [*lines, "---", *lines],
        "list": lambda: [f"- {line}" for line in lines],
        "other plain": lambda: [json.dumps(drawn.choice(PLAIN))],
    }  # fmt: skip
    way = drawn.choice([*ways, "bytes"])
    if way == "bytes":
        content = bytearray(text.encode())
        for _ in range(drawn.choice([1, 20])):
            content[drawn.randrange(len(content))] = drawn.randrange(256)
        written = bytes(content)
    file = ground.place / f"recipe{drawn.choice(['.yaml', '.yml'])}"
    file.write_bytes(written if written is not None else "\n".join(ways[way]()).encode("utf-8", "surrogateescape"))
    command = drawn.choice(["show", "plan", "run", "plan"])
    data = [] if command == "show" else ["--data", str(ground.world)]
    return Case([command, str(file), *data], f"{command} of a recipe: {way} at {key.strip()!r:.40}")


# -- tables ---------------------------------------------------------------------------------------------------------------
TABLES = {
    "nli/train": ("premise", "hypothesis", "label"), "sts/stsb_dev": ("sentence1", "sentence2", "score"),
    "sts/sts12": ("sentence1", "sentence2", "score"), "wikipedia/sentences": ("sentence",),
}  # fmt: skip


IMPORTS = ("pairs", "sentences", "nli", "triplets", "retrieval")


def spoiled(table: pa.Table, drawn: random.Random) -> tuple[pa.Table, str]:
    """A table with a column or some values that are others."""
    at = drawn.randrange(table.num_columns)
    name, rows = table.column_names[at], table.num_rows
    some = sorted(drawn.sample(range(rows), min(rows, drawn.choice([1, 3, rows]))))
    numbers = (float("nan"), float("inf"), -1, 7, 1e308)
    odd = drawn.choice((None, "", " ", "\u00a0", "\x00", "x" * 100_000, "NaN", *numbers, "high"))
    columns = {
        "other type": lambda: pa.array([1] * rows, drawn.choice([pa.int8(), pa.uint64(), pa.float16(), pa.float64()])),
        "bool": lambda: pa.array([bool(i % 2) for i in range(rows)]),
        "null type": lambda: pa.nulls(rows),
        "binary": lambda: pa.array([b"\xff\xfe"] * rows),
        "list": lambda: pa.array([["a", None]] * rows),
        "struct": lambda: pa.array([{"a": 1}] * rows),
        "time": lambda: pa.array([1] * rows, pa.timestamp("us")),
        "dictionary": lambda: pa.array(["a"] * rows).dictionary_encode(),
        "decimal": lambda: pa.array([decimal.Decimal(1)] * rows),
        "constant": lambda: pa.array([table[name][0].as_py()] * rows, table[name].type),
    }  # fmt: skip
    more = ["no column", "other name", "twice", "no rows", "one row", "no columns"]
    way = drawn.choice([*columns, *["values"] * 4, *more])
    if way in columns:
        return table.set_column(at, name, columns[way]()), f"{name}: {way}"
    if way == "values":
        plain = table[name].to_pylist()
        for row in some:
            plain[row] = odd
        try:
            column = pa.array(plain, table[name].type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError):
            column = pa.array([None if item is None else str(item) for item in plain])
        return table.set_column(at, name, column), f"{name}: {odd!r:.20} in {len(some)} rows"
    if way == "no column":
        return table.drop_columns([name]), f"no {name}"
    if way == "other name":
        return table.rename_columns([f" {each}" if each == name else each for each in table.column_names]), f"' {name}'"
    if way == "twice":
        return table.append_column(name, table[name]), f"{name} twice"
    if way == "no columns":
        return table.select([]), way
    return table.slice(0, 0 if way == "no rows" else 1), way


def damaged(path: Path, drawn: random.Random) -> str:
    """What becomes of a file as such."""
    content = path.read_bytes() or b" "
    ways = ["empty", "torn", "bytes", "zeros", "folder", "pipe", "loop", "device", "junk"]
    way = drawn.choice([*["as it is"] * 3, *ways])
    if way == "as it is":
        return way
    path.unlink()
    if way in ("empty", "torn", "zeros", "junk"):
        half, junk = content[: len(content) // 2], drawn.randbytes(999)
        path.write_bytes({"empty": b"", "torn": half, "zeros": bytes(len(content)), "junk": junk}[way])
    elif way == "bytes":
        changed = bytearray(content)
        for _ in range(drawn.choice([1, 8, 64])):
            changed[drawn.randrange(len(changed))] ^= drawn.randrange(1, 256)
        path.write_bytes(changed)
    elif way == "folder":
        path.mkdir()
    elif way == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path if way == "loop" else "/dev/zero")
    return way


def written(table: pa.Table, path: Path) -> None:
    """A table in the format of a name."""
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return
    if table.num_columns != len(set(table.column_names)):
        table = table.select(range(table.num_columns - 1))
    rows = [
        {key: item.decode("latin-1") if isinstance(item, bytes) else item for key, item in row.items()}
        for row in table.to_pylist()
    ]
    text = io.StringIO(newline="")
    if path.suffix == ".jsonl" or ".jsonl" in path.name:
        text.writelines(json.dumps(row, default=str) + "\n" for row in rows)
    else:
        writer = csv.writer(text, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerows([table.column_names, *(row.values() for row in rows)])
    content = text.getvalue().encode("utf-8", "surrogateescape")
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def table(drawn: random.Random, ground: Ground) -> Case:
    """A table of the canonical layout, or a file of one's own, that is not what it should be."""
    name = drawn.choice(sorted(TABLES))
    rows = pq.read_table(ground.world / f"{name}.parquet").slice(0, drawn.choice([40, 400]))
    rows, what = spoiled(rows, drawn)
    model = str(ground.model)
    if drawn.random() < 0.5:
        data = Path(shutil.copytree(ground.world, ground.place / "data"))
        file = data / f"{name}.parquet"
        written(rows, file)
        what += f", {damaged(file, drawn)}"
        more = drawn.choice([
            ["data", "check"], ["plan", "nli-ct-sed"], ["run", "nli"], ["tune", "lower-bound"],
            ["evaluate", model, "--tasks", "sts12,stsb", "--resamples", "0"],
        ])  # fmt: skip
        return Case([*more, "--data", str(data)], f"{' '.join(more[:2])}: {name}: {what}"[:150])
    suffix = drawn.choice([".parquet", ".csv", ".tsv", ".jsonl", ".txt", ".jsonl.gz", ".xyz"])
    file = ground.place / f"own{suffix}"
    written(rows, file)
    what += f", {damaged(file, drawn)}"
    vectors = str(ground.place / "vectors")
    column = drawn.choice(["sentence1", "premise", "sentence", "score"])
    more = drawn.choice([
        ["evaluate", model, "--test", f"mine={file}", "--tasks", "mine", "--resamples", "0"],
        ["plan", "ct-sed", "--text", str(file), *(["--column", column] if drawn.random() < 0.5 else [])],
        ["plan", "nli", "--data", str(ground.world), "--dev", f"mine={file}"],
        ["plan", "nli", "--data", str(ground.world), "--test", f"mine={file}"],
        ["embed", model, "--input", str(file), "--column", column, "--output", vectors],
        ["data", "import", str(file), "--as", drawn.choice(IMPORTS), "--data", str(ground.place / "imported")],
        ["distill", model, model, "--text", str(file), "--set", f"backbone={model}"],
    ])  # fmt: skip
    return Case(more, f"{more[0]}: a file {suffix}: {what}"[:150])


# -- models ---------------------------------------------------------------------------------------------------------------
def changed(tree: Any, drawn: random.Random) -> Any:
    """A JSON value in which one value is another, one is gone, or one is there too often."""
    if isinstance(tree, dict) and tree and drawn.random() < 0.85:
        key = drawn.choice(sorted(tree))
        if drawn.random() < 0.9:
            return {**tree, key: changed(tree[key], drawn)}
        return {name: value for name, value in tree.items() if name != key}
    if isinstance(tree, list) and tree and drawn.random() < 0.7:
        at = drawn.randrange(len(tree))
        return [*tree[:at], changed(tree[at], drawn), *tree[at + 1 :]] if drawn.random() < 0.8 else [*tree, tree[at]]
    return drawn.choice(PLAIN)


def changed_file(path: Path, drawn: random.Random) -> str:
    """Change a file of JSON inside, or as a file."""
    if drawn.random() < 0.25:
        return damaged(path, drawn)
    if path.suffix == ".safetensors":
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        header = json.dumps(changed(json.loads(content[8 : 8 + size]), drawn)).encode("utf-8", "surrogatepass")
        size_said = drawn.choice([len(header), 0, 2**62, size])
        path.write_bytes(size_said.to_bytes(8, "little") + header + content[8 + size :])
        return "other header"
    if path.suffix != ".json":
        return damaged(path, drawn)
    if drawn.random() < 0.1:
        path.write_text("[" * 100_000)
        return "deep"
    tree = json.loads(path.read_bytes())
    for _ in range(drawn.choice([1, 1, 3])):
        tree = changed(tree, drawn)
    path.write_text(json.dumps(tree), encoding="utf-8", errors="surrogatepass")
    return "other values"


def model(drawn: random.Random, ground: Ground) -> Case:
    """A model directory with a file that is not what it should be."""
    folder = Path(shutil.copytree(ground.model, ground.place / "model"))
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".json", ".safetensors", ".txt"))
    small = [path for path in files if path.stat().st_size < 100_000] or files
    file = drawn.choice(small + files)
    what, pairs = changed_file(file, drawn), str(ground.world / "sts/stsb_dev.parquet")
    more = drawn.choice([
        ["export", str(folder), "--to", str(ground.place / "exported")],
        ["evaluate", str(folder), "--tasks", "sts12", "--resamples", "0", "--data", str(ground.world)],
        ["plan", "nli-ct-sed", "--set", f"backbone={folder}", "--data", str(ground.world)],
        ["embed", str(folder), "--input", pairs, "--column", "sentence1", "--output", str(ground.place / "vectors")],
        ["distill", str(folder), str(ground.model), "--set", f"backbone={ground.model}", "--data", str(ground.world)],
        ["compare", str(folder), str(ground.model), "--tasks", "sts12", "--resamples", "4", "--data", str(ground.world)],
    ])  # fmt: skip
    return Case(more, f"{more[0]} of a model: {file.relative_to(folder)}: {what}")


# -- records --------------------------------------------------------------------------------------------------------------
def record(drawn: random.Random, ground: Ground) -> Case:
    """A storage in which a record holds something else, with no checksum that would tell."""
    assert ground.storage is not None
    storage = Path(shutil.copytree(ground.storage, ground.place / "storage"))
    for path in (*storage.rglob(".*.checksum"), *storage.rglob("*.manifest.json")):
        path.unlink()
    kinds: dict[str, list[Path]] = {}
    for path in sorted(storage.rglob("*")):
        if path.suffix in (".json", ".jsonl", ".parquet", ".db") and "model" not in path.parts:
            name = path.suffix if path.suffix == ".parquet" else path.name
            kinds.setdefault(f"{path.relative_to(storage).parts[0]} {name}", []).append(path)
    kind = drawn.choice(sorted(kinds))
    file = drawn.choice(kinds[kind])
    what = changed_file(file, drawn)
    name = next((storage / "pipelines").iterdir()).stem
    data = ["--data", str(ground.world)]
    more = drawn.choice([
        ["report"], ["report", "--name", name], ["report", "--paper", "sed"], ["plan", name, *data], ["run", name, *data],
        ["distill", "--from-run", name, *data], ["distill", "--from-study", "lower-bound", "--top", "1", *data],
        ["compare", f"{name}:student", f"{name}:ensemble", "--tasks", "sts12", "--resamples", "4", *data],
        ["tune", "lower-bound", *data],
    ])  # fmt: skip
    return Case([*more, "--storage", str(storage)], f"{' '.join(more[:3])}: {kind}: {what}")


KINDS: dict[str, Draw] = {"values": value, "recipes": recipe, "tables": table, "models": model, "records": record}
