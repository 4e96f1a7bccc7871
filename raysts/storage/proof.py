"""Proof that another machine sees a storage: it finds a file there, and writes an answer."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from raysts.errors import InputError
from raysts.storage.atomic import draft_name, no_empty_folders
from raysts.storage.store import Store

ROOM = 1 << 30
"""Bytes that must be free where a storage, or its mirror, lies."""


@dataclass(frozen=True)
class Proof:
    """A folder that was made in a storage to be seen elsewhere, for answers. In a bucket it has no name."""

    uri: str
    name: str

    def problem(self, answer: str = "") -> str | None:
        """Return why this machine cannot work with the storage, or write ``answer`` into it and return None."""
        store = Store.open(self.uri)
        try:
            store.check()
        except InputError as error:
            return f"it does not reach the storage: {error}"
        if self.name and not (store.root / self.name).is_dir():
            return (
                f"it does not see --storage {self.uri}: what was just written there is not to be found; give a bucket "
                f"(s3://..., gs://...), or a folder of a file system that is mounted on all nodes"
            )
        if self.name and answer:
            try:
                (store.root / self.name / answer).touch()
            except OSError as error:
                return f"it cannot write to --storage {self.uri}: {error.strerror}; give it the right to"
        existing = next(path for path in (store.root, *store.root.parents) if path.exists())
        free = shutil.disk_usage(existing).free
        if free < ROOM:
            return f"its disk has {free / 1e9:.1f} GB left at {existing}; at least {ROOM / 1e9:.1f} GB are needed"
        return None

    def has_answer(self, answer: str) -> bool:
        return not self.name or (Store.open(self.uri).root / self.name / answer).exists()


@contextlib.contextmanager
def proof_in(store: Store) -> Iterator[Proof]:
    """Make a folder in a storage for the length of the block. A later run removes leftovers."""
    if store.remote:
        yield Proof(store.uri, "")
        return
    name = draft_name("preflight")
    with no_empty_folders(store.root):
        (store.root / name).mkdir(parents=True)
        try:
            yield Proof(store.uri, name)
        finally:  # what ended the block may be that nothing can be written there any more
            shutil.rmtree(store.root / name, ignore_errors=True)
