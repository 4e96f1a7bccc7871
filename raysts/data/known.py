"""What was found out about files and tables, kept on this machine, so that what is the same is not read again."""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from raysts.ids import content_id
from raysts.storage.atomic import cache_folder
from raysts.storage.checksums import read_record, write_record

MOST = 4096
"""Files that are kept, two a fact: those of files that are gone would stay for ever."""


class Known:
    """Facts about one thing.

    Args:
        of: what the facts are about and what they depend on, as JSON values: another list is another thing.
        files: which the facts were read from. One of another size, time or inode is another file, of which nothing is known.
    """

    def __init__(self, *of: Any, files: Iterable[Path] = ()):
        stats = {str(path.absolute()): path.stat() for path in files}
        states = [[path, at.st_size, at.st_mtime_ns, at.st_ctime_ns, at.st_ino] for path, at in stats.items()]
        self._path = cache_folder() / "known" / f"{content_id([*of, states])}.json"

    def facts(self) -> dict[str, Any]:
        """What is known; empty where nothing is, or what was written cannot be read."""
        with contextlib.suppress(OSError):
            return read_record(self._path) or {}
        return {}

    def add(self, **facts: Any) -> None:
        """Keep more facts. Where nothing can be written nothing is kept, and what was asked for is read again."""
        with contextlib.suppress(OSError, UnicodeError):  # half a surrogate cannot be written
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # facts of a text hold some of it
            write_record(self._path, self.facts() | facts)
            kept = list(self._path.parent.iterdir())
            if len(kept) > MOST:
                for path in sorted(kept, key=lambda path: path.stat().st_mtime)[: -MOST // 2]:
                    path.unlink(missing_ok=True)
