"""The files and versions that another machine must have to do work of a command."""

import contextlib
import hashlib
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import raysts
from raysts.data.world import is_world, world_path
from raysts.ids import sources
from raysts.storage.proof import Proof, proof_in
from raysts.storage.store import Store

# Others give other numbers, or cannot read what they get.
PACKAGES = ("ray", "torch", "transformers", "numpy", "pyarrow")
WORLD = "the embedded world"


@dataclass(frozen=True)
class Requirements:
    """The files and versions that a machine must have: those of the driver."""

    proof: Proof
    folders: tuple[tuple[str, str, str], ...]
    """Folders outside the storage: option, path, digest."""
    versions: dict[str, str]

    def misfit(self, answer: str = "") -> str | None:
        """Return why this machine cannot take part, or None. The file ``answer`` shows that it writes."""
        versions = current_versions()
        for name, version_ in self.versions.items():
            if version_ != versions[name]:
                return f"{name} is {versions[name]} there and {version_} where the command runs; install the same on all nodes"
        if problem := self.proof.problem(answer):
            return problem
        for option, path, digest in self.folders:
            if option == WORLD:
                try:
                    world_path(Path(path).parent)  # any node can make it
                except OSError as error:
                    return f"it cannot write {WORLD} to {path} ({error.strerror}); give data that all nodes see with --data"
            elif digest_of(Path(path)) != digest:
                remedy = "give a URI, or a folder of a file system that is mounted on all nodes"
                return f"it does not see the same files in {option} {path}; {remedy}"
        return None


@contextlib.contextmanager
def requirements_of(storage: Path, folders: Sequence[tuple[str, Path]]) -> Iterator[Requirements]:
    """Yield the requirements of a command, while the storage holds a proof of it.

    ``folders``: what the command reads beside the storage, each with the option that named it.
    """
    store = Store.of(storage)
    outside = [
        (WORLD, str(path), "") if is_world(path) else (option, str(path), digest_of(path))
        for option, path in dict.fromkeys(folders)
        if not path.is_relative_to(store.root) and not Store.of(path).remote
    ]
    with proof_in(store) as proof:
        yield Requirements(proof, tuple(outside), current_versions())


def current_versions() -> dict[str, str]:
    """Return the versions that must be the same on all nodes, builds aside."""
    packages = {name: version(name).partition("+")[0] for name in PACKAGES}
    return {"Python": platform.python_version(), "raysts": f"{raysts.__version__} (sources {sources()})", **packages}


def digest_of(folder: Path) -> str:
    """Return a digest of names and sizes of a folder's files, or nothing for a missing folder."""
    if not folder.is_dir():
        return ""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    lines = sorted(f"{path.relative_to(folder).as_posix()} {path.stat().st_size}" for path in files)
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()
