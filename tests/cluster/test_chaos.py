from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "chaos.py"


@pytest.mark.chaos
def test_quickstart_ends_well_on_a_cluster_that_is_killed_all_the_time(own_nodes: None, tmp_path: Path) -> None:
    """Ten minutes of kills, then the end: the bits of a calm run, nothing left behind, a bounded disk."""
    if not SCRIPT.is_file():
        pytest.skip("installed without the benchmarks folder")
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), "--storage", str(tmp_path), "--", "--set", "evaluation.resamples=20"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.stdout, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert ended.returncode == 0 and found["problems"] == [], found
    assert sum(found["kills"].values()) > 10
