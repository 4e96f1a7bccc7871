"""The check that nodes see what the driver sees and have the same versions."""

import contextlib
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

import ray

from raysts.cluster.capacity import affinity, nodes
from raysts.errors import InputError
from raysts.pipeline.requirements import Requirements, requirements_of

NODE_SECONDS = 60.0  # a node may take so long to answer: it starts a process for it


def node_problem(requirements: Requirements | None) -> str | None:
    """Return why the node of this process cannot take part, with its name, or None."""
    problem = requirements.misfit() if requirements is not None else None
    name = f"{ray.util.get_node_ip_address()} ({platform.node()}, {ray.get_runtime_context().get_node_id()[:8]})"
    return f"node {name}: {problem}" if problem else None


@contextlib.contextmanager
def check_nodes(storage: Path, folders: Sequence[tuple[str, Path]]) -> Iterator[Requirements]:
    """Refuse nodes that cannot take part. Those that join later check themselves."""
    with requirements_of(storage, folders) as requirements:
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
