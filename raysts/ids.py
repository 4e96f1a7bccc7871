"""Named seeds and content ids: everything random or cached in raysts is a function of what went in."""

import dataclasses
import functools
import hashlib
import json
from pathlib import Path
from typing import Any

LATER = "later"
"""Metadata of a field that :func:`later` made."""


def later(default: Any) -> Any:
    """A dataclass field that came when recipes had been stored already: ids know of it where it is not ``default``."""
    return dataclasses.field(default=default, metadata={LATER: True})


def derive_seed(root: int, *names: object) -> int:
    """A seed in [0, 2**63) for the stream called ``names`` below the root seed; the same on every machine."""
    return int.from_bytes(hashlib.sha256(json.dumps([root, *names]).encode()).digest()[:8], "big") >> 1


def content_id(value: Any) -> str:
    """16 hex digits that name a JSON value by its content."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def folder_id(folder: Path, ignore: tuple[str, ...] = ("README.md", ".gitattributes", "data_config.json")) -> str:
    """16 hex digits over the files of a model folder (names and bytes; the card, checksums and what is hidden do not count: what
    git and the hub's library keep there changes while the model does not)."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        hidden = path.name.endswith(".checksum") or any(part.startswith(".") for part in name.parts)
        if path.is_file() and path.name not in ignore and not hidden:
            with path.open("rb") as file:
                digest.update(str(name).encode() + b"\0")
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


@functools.cache
def sources() -> str:
    """12 hex digits that name raysts' own code: they say what ran where there is no repository to name a commit."""
    root, digest = Path(__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
