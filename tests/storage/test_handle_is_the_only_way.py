"""What lies in a storage is asked of its handle, because a mirror may be removed between two commands.

Every call by which these rooms ask the file system is a row of ``ASKED``. A new one is either about a storage path, then the
handle answers it (:mod:`raysts.storage.store`), or it is about a file that is on this machine, then it is a new row.
"""

import ast
from pathlib import Path

import raysts

ROOT = Path(raysts.__file__).parent
ROOMS = ("training", "pipeline", "search", "report", "cluster", "commands")
CALLS = {
    "exists", "is_dir", "is_file", "stat", "glob", "rglob", "iterdir", "walk", "open", "read_text", "read_bytes", "unlink",
    "rmdir", "rename", "rmtree", "read_json", "listdir", "scandir", "isfile", "isdir", "copytree", "copyfile", "move",
}  # fmt: skip
HANDLES = ("store", "Store", "study")

ASKED = {
    # the folder of a run while its process trains it
    "training/checkpoint.py": "folder.glob folder.iterdir old.is_file old.unlink",
    "training/metrics.py": "path.open path.read_bytes path.stat shutil.copyfile",
    # drafts, and what get and get_dir gave
    "pipeline/steps/scores.py": "draft.open",
    "pipeline/steps/vectors.py": "draft.open",
    "pipeline/inputs.py": "folder.is_dir folder/name.is_file copy.rglob named.is_dir named.is_file path.is_file shutil.copytree",
    "pipeline/verdict.py": "member.output.exists",
    "pipeline/deliver.py": "Path(name).exists path.is_file",
    # files of the user and of the machine
    "pipeline/price.py": "GPUS.glob Path(text).is_file Path(text).read_text path.read_text",
    "pipeline/embed.py": "output.exists output.glob output.is_dir output.iterdir",
    "search/exports.py": "old.unlink path.parent.glob",
    "search/search.py": "Path(__file__).with_name('searches.yaml').read_text",
    "cluster/connect.py": "file.is_file file.read_text",
    "cluster/tune.py": "errors.is_file errors.read_text",  # what Tune writes on this machine
    "cluster/preflight.py": "folder.is_dir folder.rglob path.is_file path.stat",
    "commands/data.py": "local_path(input,'--input').exists",
    "commands/distill.py": "folder.is_dir",
    "commands/use.py": "card.is_file card.read_text target.exists target.is_dir target.iterdir",
    "commands/models.py": "Path(name)/'config.json'.is_file Path(text,'config.json').is_file",
    "commands/run.py": "path.is_dir path.is_file path.iterdir place.is_dir place.iterdir target.exists",
}


def calls(text: str) -> set[str]:
    """Return the calls in a source text that ask the file system."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            of = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
            if name in CALLS and of.rpartition(".")[2].partition("(")[0] not in HANDLES and "Store." not in of:
                found.add(ast.unparse(node.func).replace(" ", "").replace("(folder/name)", "folder/name"))
    return {call.replace("(Path(name)/'config.json')", "Path(name)/'config.json'") for call in found}


def test_nobody_asks_the_file_system_about_a_storage() -> None:
    files = {path.relative_to(ROOT).as_posix(): path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))}
    asked = {name: calls(path.read_text(encoding="utf-8")) for name, path in files.items()}
    new = {name: found - set(ASKED.get(name, "").split()) for name, found in asked.items()}
    assert not {name: found for name, found in new.items() if found}, "ask the handle of the storage"


def test_what_is_asked_is_seen() -> None:
    text = "(storage / 'x').is_dir(); store.exists(k); Store.of(p).list(); rmtree(f); plan.store.get(k).open(); open(x)"
    assert calls(text) == {"(storage/'x').is_dir", "rmtree", "open"} | {"plan.store.get(k).open"}
