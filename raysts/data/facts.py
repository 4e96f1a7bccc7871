"""Facts about files and tables on this machine, so that raysts does not read an unchanged file again."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from raysts.ids import content_id
from raysts.storage.atomic import cache_folder
from raysts.storage.checksums import read_record, write_record

MOST = 4096
"""Files of facts; each fact takes two. The oldest half is removed above that."""


class Facts:
    """Facts about one subject.

    Args:
        subject: JSON values that the facts depend on; other values are another subject.
        files: sources of the facts. A file with another size, time or inode is another subject.
        stable: False: keep no facts, because the files may change unseen. Without one of the files none are kept either.
    """

    def __init__(self, *subject: Any, files: Sequence[Path] = (), stable: bool = True):
        self._path: Path | None = None
        if stable and all(path.is_file() for path in files):
            stats = {str(path.absolute()): path.stat() for path in files}
            states = [[path, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino] for path, s in stats.items()]
            self._path = cache_folder() / "known" / f"{content_id([*subject, states])}.json"

    def read(self) -> dict[str, Any]:
        """Return the facts, or an empty dictionary if they are absent or cannot be read."""
        with contextlib.suppress(OSError):
            return (read_record(self._path) if self._path else None) or {}
        return {}

    def get(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return one fact, which is computed and kept unless it is known."""
        value = self.read().get(name)
        if value is None:
            value = compute()
            self.add(**{name: value})
        return value

    def add(self, **facts: Any) -> None:
        """Keep more facts, unless the cache cannot be written: then raysts reads the files again."""
        if self._path is None:
            return
        with contextlib.suppress(OSError, UnicodeError):  # half a surrogate cannot be written
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # facts about a text hold some of it
            write_record(self._path, self.read() | facts)
            files = list(self._path.parent.iterdir())
            if len(files) > MOST:
                for path in sorted(files, key=lambda path: path.stat().st_mtime)[: -MOST // 2]:
                    path.unlink(missing_ok=True)
