"""Print the lowest release of each library that pyproject.toml allows, as a requirement a line.

With ``--installed`` it is an error instead if this Python does not have exactly these. torch is left out: of another one there
are no wheels for CPUs alone.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

from packaging.version import Version

PATCHES = {"ray": "2.51.2"}
"""Of these the last patch of the lowest release."""


def lowest() -> dict[str, str]:
    """Return the lowest release by library."""
    found = {}
    for line in tomllib.loads(Path("pyproject.toml").read_text())["project"]["dependencies"]:
        name, release = re.fullmatch(r"([\w-]+)(?:\[.*\])?>=([\d.]+)(?:,<[\d.]+)?", line).groups()  # type: ignore[union-attr]
        found[name] = PATCHES.get(name, release)
        assert found[name].startswith(release), f"{name}: {found[name]} is not {release}"
    del found["torch"]
    return found


if __name__ == "__main__":
    if sys.argv[1:] == ["--installed"]:
        others = [name for name, release in lowest().items() if Version(version(name)) != Version(release)]
        sys.exit(f"not the lowest: {[f'{name} {version(name)}' for name in others]}" if others else 0)
    print("\n".join(f"{name}=={release}" for name, release in lowest().items()))
