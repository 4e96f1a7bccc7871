"""The check that a node sees what the driver sees and has the same versions, before work starts and as a node joins."""

import contextlib
import hashlib
import platform
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


@dataclass(frozen=True)
class Requirements:
    """What a node must have: the same as the driver.

    Attributes:
        proof: a file that it has left in the storage.
        folders: folders outside the storage (option, path, digest of the names and sizes in it).
        versions: of Python and packages.
    """

    proof: Proof
    folders: tuple[tuple[str, str, str], ...]
    versions: dict[str, str]

    def misfit(self, answer: str = "") -> str | None:
        """Return why this node cannot take part, or None. A file of the name ``answer`` shows the driver that it can write."""
        versions = current_versions()
        for name, theirs in self.versions.items():
            if theirs != versions[name]:
                return f"{name} is {versions[name]} there and {theirs} where the command runs; install the same on all nodes"
        if problem := self.proof.problem(answer):
            return problem
        for option, path, digest in self.folders:
            if option == WORLD:
                try:
                    world_path(Path(path).parent)  # any node can make it
                except OSError as error:
                    return f"it cannot write {WORLD} to {path} ({error.strerror}); give data that all nodes see with --data"
            elif digest_of(Path(path)) != digest:
                return (
                    f"it does not see the same files in {option} {path}; give a URI, or a folder of a file system that is "
                    f"mounted on all nodes"
                )
        return None


def node_problem(requirements: Requirements | None) -> str | None:
    """Return why the node of this process cannot take part, with its name, or None."""
    problem = requirements.misfit() if requirements is not None else None
    name = f"{ray.util.get_node_ip_address()} ({platform.node()}, {ray.get_runtime_context().get_node_id()[:8]})"
    return f"node {name}: {problem}" if problem else None


def current_versions() -> dict[str, str]:
    """Return the versions of this process that must be the same on all nodes."""
    versions = {"Python": platform.python_version(), "raysts": f"{raysts.__version__} (sources {sources()})"}
    for name in PACKAGES:
        try:
            versions[name] = version(name).partition("+")[0]  # a node with GPUs has another build of torch
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def digest_of(folder: Path) -> str:
    """Return a digest of the names and sizes of a folder's files, hidden ones aside; of a missing folder an empty one."""
    if not folder.is_dir():
        return ""
    lines = [
        f"{path.relative_to(folder).as_posix()} {path.stat().st_size}"
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    ]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


@contextlib.contextmanager
def checked(storage: Path, folders: Sequence[tuple[str, Path]]) -> Iterator[Requirements]:
    """Check every node; nodes that join during the block check themselves by the requirements.

    Args:
        storage: folder or mirror of the storage.
        folders: what else is read, with the option that named it. What lies in the storage or in a bucket is no folder.

    Raises:
        InputError: the nodes that cannot take part, each with its reason.
    """
    store = Store.of(storage)
    outside = [
        (WORLD, str(path), "") if path.name == f"world-{WORLD_VERSION}" else (option, str(path), digest_of(path))
        for option, path in dict.fromkeys(folders)
        if not path.is_relative_to(store.root) and not isinstance(Store.of(path), BucketStore)
    ]
    with proof_in(store) as proof:
        requirements = Requirements(proof, tuple(outside), current_versions())
        _ask_nodes(requirements)
        yield requirements


def _ask_nodes(requirements: Requirements) -> None:
    tasks = {}
    for node in ray.nodes():
        if node["Alive"]:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(Requirements.misfit).options(
                num_cpus=0, max_retries=0, name="preflight", scheduling_strategy=there
            )
            tasks[task.remote(requirements, node["NodeID"])] = node
    answered, _ = ray.wait(list(tasks), num_returns=len(tasks), timeout=NODE_SECONDS)
    problems = {}
    for reference, node in tasks.items():
        problem = None if reference in answered else f"it has not answered for {NODE_SECONDS:g} s"
        try:
            problem = problem or ray.get(reference)
        except Exception as error:
            problem = f"raysts cannot be run there: {str(error).strip().splitlines()[-1]}"
        if not problem and not requirements.proof.answered(node["NodeID"]):
            problem = f"what it writes to --storage {requirements.proof.uri} does not arrive; give a folder that all nodes see"
        if problem:
            name = f"{node['NodeManagerAddress']} ({node['NodeManagerHostname']}, {node['NodeID'][:8]})"
            problems[node["NodeID"]] = f"node {name}: {problem}"
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}  # a node that has gone says nothing of the others
    if problems := {name: problem for name, problem in problems.items() if name in alive}:
        raise InputError(sorted(problems.values()))
