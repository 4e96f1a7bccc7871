"""What is lost when files of a finished run are damaged: every kind of file in every way, and the same command again.

``python benchmarks/faults.py`` prints a table; a cell is ``same`` (everything is as it was, bit for bit), ``without`` (as it
was but for that file, of which nothing is made), ``exit N`` or ``DIFFERENT``.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parents[1] / "tests" / "pipeline")]

from run_commands import raysts  # noqa: E402
from test_damage import DAMAGE, FILES, NOT_MADE_AGAIN, READERS, Reference, content, damaged  # noqa: E402


def main() -> None:
    logging.getLogger("raysts").setLevel(logging.ERROR)
    ways = [*DAMAGE, "missing"]
    print("| damaged file | " + " | ".join(ways) + " |\n" + "|---" * (1 + len(ways)) + "|")
    with tempfile.TemporaryDirectory() as folder:
        reference = Reference(Path(folder) / "reference")
        for kind in FILES:
            print(
                f"| {kind} | " + " | ".join(lost(reference, kind, how, Path(folder)) for how in ways) + " |", flush=True
            )


def lost(reference: Reference, kind: str, how: str, folder: Path) -> str:
    """What one damaged file costs."""
    storage = reference.copy(folder / "storage")
    try:
        path = reference.files(storage, FILES[kind])[0]
        damaged(path, how)
        for reader in READERS.get(kind, ()):
            shutil.rmtree(reference.files(storage, reader)[0])
        outcome = raysts(*reference.command(storage))
        if outcome.code:
            return f"exit {outcome.code}"
        now, own = content(storage), path.relative_to(storage).as_posix()
        differing = {name for name in {*now, *reference.content} if now.get(name) != reference.content.get(name)}
        if kind in NOT_MADE_AGAIN and differing == {own}:
            return "without"
        return "DIFFERENT" if differing else "same"
    finally:
        shutil.rmtree(storage)


if __name__ == "__main__":
    main()
