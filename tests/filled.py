"""Folders of small text files, and objects that somebody else writes."""

from __future__ import annotations

from pathlib import Path

from raysts.storage.bucket import Bucket


def fill(folder: Path, **files: str) -> None:
    """Write files; two underscores in a name stand for a slash."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def below(folder: Path | None) -> dict[str, str]:
    """The texts of all files below a folder."""
    assert folder is not None
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def overwrite(bucket: Bucket, path: str, content: bytes) -> None:
    """Write an object, whatever there is."""
    there = bucket.read(path)
    bucket.replace(path, content, there[1] if there else None)
