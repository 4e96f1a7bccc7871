"""Before work starts, and on each node that joins: a node sees what the driver sees, and runs the same versions."""

import contextlib
import hashlib
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import raysts
from raysts.data.world import WORLD_VERSION, world_path
from raysts.errors import InputError
from raysts.ids import sources
from raysts.storage.proof import Proof, proof_in
from raysts.storage.store import BucketStore, Store

PACKAGES = ("ray", "torch", "transformers", "numpy", "pyarrow")
"""What must be the same on all nodes: other versions give other numbers, or cannot read what they get."""

WORLD = "the embedded world"

NODE_SECONDS = 60.0
"""How long a node may take to answer: it starts a process for it."""

ENOUGH_SECONDS = 5.0
"""How long the others may take once a node is known to be unfit."""


@dataclass(frozen=True)
class Seen:
    """What the driver sees, and what it left to be found.

    Attributes:
        folders: folders outside the storage that are read (option, path), each with the names and sizes in it.
    """

    proof: Proof
    folders: tuple[tuple[str, str, str], ...]
    versions: dict[str, str]


def unfit(seen: Seen, node: str = "") -> str | None:
    """On a node: why it cannot take part, or None; ``node`` names the file that shows the driver that it can write."""
    here = versions()
    for name, theirs in seen.versions.items():
        if theirs != here[name]:
            return f"{name} is {here[name]} there and {theirs} where the command runs; install the same on all nodes"
    if problem := seen.proof.problem(node):
        return problem
    for option, path, listing in seen.folders:
        if option == WORLD:
            try:
                world_path(Path(path).parent)  # any node can make it
            except OSError as error:
                return f"it cannot write {WORLD} to {path} ({error.strerror}); give data that all nodes see with --data"
        elif listed(Path(path)) != listing:
            return (
                f"it does not see the same files in {option} {path}; give a URI, or a folder of a file system that is "
                f"mounted on all nodes"
            )
    return None


def versions() -> dict[str, str]:
    """What must be the same on all nodes."""
    found = {"Python": platform.python_version(), "raysts": f"{raysts.__version__} (sources {sources()})"}
    for name in PACKAGES:
        try:
            found[name] = version(name).partition("+")[0]  # a node with GPUs has another build of torch
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def listed(folder: Path) -> str:
    """Digest of the names and sizes of the files below a folder, hidden ones aside; empty where it is not there."""
    if not folder.is_dir():
        return ""
    found = [
        f"{path.relative_to(folder).as_posix()} {path.stat().st_size}"
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    ]
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()


@contextlib.contextmanager
def checked(storage: Path, folders: Sequence[tuple[str, Path]]) -> Iterator[Seen]:
    """Check every node that is there; nodes that join during the block can check themselves by what this gives.

    Args:
        folders: what else is read, with the option that named it; what lies in the storage or in a bucket is left out.

    Raises:
        InputError: a node is unfit; the message names it.
    """
    store = Store.of(storage)
    outside = [
        (WORLD, str(path), "") if path.name == f"world-{WORLD_VERSION}" else (option, str(path), listed(path))
        for option, path in dict.fromkeys(folders)
        if not path.is_relative_to(store.root) and not isinstance(Store.of(path), BucketStore)
    ]
    with proof_in(store) as proof:
        seen = Seen(proof, tuple(outside), versions())
        _ask_nodes(seen)
        yield seen


def _ask_nodes(seen: Seen) -> None:
    task = ray.remote(unfit)
    asked = {}
    for node in ray.nodes():
        if node["Alive"]:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            options = {"num_cpus": 0, "max_retries": 0, "name": "preflight", "scheduling_strategy": there}
            asked[task.options(**options).remote(seen, node["NodeID"])] = node
    problems: list[str] = []
    deadline = time.monotonic() + NODE_SECONDS
    while asked and (left := deadline - time.monotonic()) > 0:
        for reference in ray.wait(list(asked), timeout=left)[0]:
            node = asked.pop(reference)
            try:
                problem = ray.get(reference)
            except Exception as error:
                if not _is_there(node):
                    continue
                problem = f"raysts cannot be run there: {str(error).strip().splitlines()[-1]}"
            if not problem and not seen.proof.answered(node["NodeID"]):
                problem = (
                    f"what it writes to --storage {seen.proof.uri} does not arrive; give a folder that all nodes see"
                )
            if problem:
                problems.append(f"node {_name(node)}: {problem}")
                deadline = min(deadline, time.monotonic() + ENOUGH_SECONDS)
    if not problems:
        problems = [
            f"node {_name(node)}: it has not answered for {NODE_SECONDS:g} s"
            for node in asked.values()
            if _is_there(node)
        ]
    if problems:
        raise InputError(sorted(problems))


def _is_there(asked: dict[str, object]) -> bool:
    """Whether a node that was there still is: one that was taken away has shown nothing of the others."""
    return any(node["Alive"] for node in ray.nodes() if node["NodeID"] == asked["NodeID"])


def here() -> str:
    """What messages call the node that this runs on."""
    own = ray.get_runtime_context().get_node_id()
    return next((_name(node) for node in ray.nodes() if node["NodeID"] == own), own)


def _name(node: dict[str, object]) -> str:
    return f"{node['NodeManagerAddress']} ({node['NodeManagerHostname']}, {str(node['NodeID'])[:8]})"
