"""The check that nodes see what the driver sees and have the same versions."""

import contextlib
import hashlib
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import ray

import raysts
from raysts.cluster.capacity import affinity, nodes
from raysts.data.world import is_world, world_path
from raysts.errors import InputError
from raysts.ids import sources
from raysts.storage.proof import Proof, proof_in
from raysts.storage.store import Store

NODE_SECONDS = 60.0  # a node may take so long to answer: it starts a process for it
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


def node_problem(requirements: Requirements | None) -> str | None:
    """Return why the node of this process cannot take part, with its name, or None."""
    problem = requirements.misfit() if requirements is not None else None
    name = f"{ray.util.get_node_ip_address()} ({platform.node()}, {ray.get_runtime_context().get_node_id()[:8]})"
    return f"node {name}: {problem}" if problem else None


@contextlib.contextmanager
def check_nodes(storage: Path, folders: Sequence[tuple[str, Path]]) -> Iterator[Requirements]:
    """Refuse nodes that cannot take part. Those that join later check themselves.

    Within the block the storage holds a proof of it. ``folders``: what the command reads beside the storage, each with the
    option that named it.
    """
    store = Store.of(storage)
    outside = [
        (WORLD, str(path), "") if is_world(path) else (option, str(path), digest_of(path))
        for option, path in dict.fromkeys(folders)
        if not path.is_relative_to(store.root) and not Store.of(path).remote
    ]
    with proof_in(store) as proof:
        requirements = Requirements(proof, tuple(outside), current_versions())
        if problems := _ask_nodes(requirements):
            raise InputError(sorted(problems))
        yield requirements


def _ask_nodes(requirements: Requirements) -> list[str]:
    """Return why nodes cannot take part."""
    tasks, problems = {}, []
    for node in nodes():
        options = {"name": "preflight", "num_cpus": 0, "max_retries": 0, "scheduling_strategy": affinity(node.id)}
        tasks[node.id] = ray.remote(Requirements.misfit).options(**options).remote(requirements, node.id)
    answered, _ = ray.wait([*tasks.values()], num_returns=len(tasks), timeout=NODE_SECONDS)
    for node in nodes():  # one that has gone says nothing of the others
        if (answer := tasks.get(node.id)) is None:
            continue
        try:
            problem = ray.get(answer) if answer in answered else f"it has not answered for {NODE_SECONDS:g} s"
        except Exception as error:
            problem = f"raysts cannot be run there: {str(error).strip().splitlines()[-1]}"
        if not problem and not requirements.proof.has_answer(node.id):
            problem = f"what it writes to --storage {requirements.proof.uri} does not arrive; give a folder that all nodes see"
        if problem:
            problems.append(f"node {node.address} ({node.host}, {node.id[:8]}): {problem}")
    return problems


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
