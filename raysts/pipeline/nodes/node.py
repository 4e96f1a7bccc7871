"""A node: one unit of a pipeline's work, which reads files, writes files and knows whether they are there.

A new kind of node is a class in a file of its own here, and the line of ``Plan.nodes`` that makes one.
"""

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from raysts.pipeline.local import Executor, Say
from raysts.storage.store import Store


@dataclass(frozen=True, kw_only=True)
class Node(abc.ABC):
    """One unit of work.

    Attributes:
        id: hash of what goes in.
        needs: ids of the nodes before it.
        resources: workers, cpus, gpus; of training also memory, in GB per worker.
    """

    kind: ClassVar[str]
    together: ClassVar[bool] = False
    """Whether nodes of this kind that are ready at once, or after each other, are run by one :meth:`run_all`."""

    id: str
    title: str
    needs: tuple[str, ...]
    resources: dict[str, float | None]
    sentences: int

    @abc.abstractmethod
    def is_done(self, store: Store) -> bool:
        """Whether what it writes is complete in the storage, as the storage is now."""

    def written(self, store: Store) -> list[Path]:
        """The files and folders that it made and others read; what is damaged of them is made again."""
        return []

    def is_sound(self, store: Store, deep: bool = False) -> bool:
        """Whether all of them are there, by their sizes, or ``deep``, as they were written; otherwise it is not done."""
        found = [store.whole(path, deep) for path in self.written(store)]
        return all(found)

    def leftovers(self) -> list[Path]:
        """Files and folders that are of no use once it is done; it removes them, but a kill may come before."""
        return []

    @abc.abstractmethod
    def run(self, executor: Executor, store: Store, say: Say) -> None:
        """Do what is left of the work; killed anywhere and run again, it goes on.

        Raises:
            RunFailed: it cannot be done; what is finished of it stays.
        """

    @classmethod
    def run_all(cls, nodes: Sequence[Any], executor: Executor, store: Store, say: Say) -> list[str]:
        """Run several nodes of this kind, of which one may need another; why some failed."""
        for node in nodes:
            node.run(executor, store, say)
        return []

    def status(self, store: Store) -> str:
        return "done" if self.is_done(store) else "waiting"

    def describe(self, store: Store) -> dict[str, Any]:
        return {
            "id": self.id,
            "kind": self.kind,
            "title": self.title,
            "status": self.status(store),
            "resources": self.resources,
            "sentences": self.sentences,
            "needs": list(self.needs),
        }
