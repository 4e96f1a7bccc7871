"""Folders of a storage that are complete or absent, by their paths."""

from __future__ import annotations

from pathlib import Path

from raysts.storage.store import BucketStore, Store


def push_folder(folder: Path) -> None:
    """Send a folder."""
    store = Store.of(folder)
    if isinstance(store, BucketStore) and folder.is_dir():
        store.upload_dir(folder)


def pull_folder(folder: Path) -> bool:
    """Make a folder what it is in the store; whether it is complete there."""
    return Store.of(folder).get_dir(folder, fresh=True) is not None


def need_folder(folder: Path) -> Path:
    """Bring a folder whose content never changes, unless it is here, and return it."""
    Store.of(folder).get_dir(folder)
    return folder


def has_folder(folder: Path) -> bool:
    """Whether a folder is complete, in the store where there is one."""
    return Store.of(folder).exists(folder)


def remove(folder: Path) -> None:
    """Remove a folder, here and in the store."""
    Store.of(folder).delete(folder)
