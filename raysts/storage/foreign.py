"""Files that others wrote: ordinary files of a possible size and kind of content."""

import json
import os
import stat
from pathlib import Path
from typing import Any

from raysts.errors import InputError

MOST_JSON = 256 << 20
"""Bytes: the largest tokenizers take a tenth of it."""


def check_ordinary(path: Path, most: int | None = None) -> None:
    """Refuse a pipe, device, folder, or file of more than ``most`` bytes. An absent file passes."""
    forbidden = InputError(
        f"{path}: you have no permission to read it; ask its owner for it, or take a copy that you may read"
    )
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except PermissionError:  # of a folder that it lies in
        raise forbidden from None
    except (OSError, ValueError) as error:  # a name with a zero byte, or too long
        raise InputError(f"{str(path)!r:.200}: cannot be read ({error})") from None
    if not os.access(path, os.R_OK):
        raise forbidden
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path}: is a folder, a pipe or a device; it must be an ordinary file")
    if most is not None and status.st_size > most:
        raise InputError(f"{path}: has {status.st_size:,} bytes; a file of its kind has at most {most:,}")


def read_json(path: Path, kind: type[Any] = dict) -> Any:
    """Return the JSON object (or other ``kind`` of value) in a file, or None if it is absent."""
    check_ordinary(path, MOST_JSON)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(f"{path}: not JSON ({reason}); get it again") from None
    if not isinstance(value, kind):
        expected = "an object {...}" if kind is dict else "a list [...]"
        raise InputError(f"{path}: holds {value!r:.40}; it must hold {expected}: get it again")
    return value
