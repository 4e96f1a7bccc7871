"""The numbers of quickstart: of a short one in every run of the tests, and of the whole one.

The whole one is a run that `.ci/run` has made before the tests, or one that is made here (slow).
"""

from __future__ import annotations

import json
import os
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import run_commands
from golden.golden import Golden
from run_commands import result

WRITTEN = "RAYSTS_QUICKSTART"
"""Names the file that holds the JSON line of a quickstart."""


COLUMNS = (
    "role", "member", "layers", "dataset", "subset", "aggregation", "pooling", "similarity", "metric",
)  # fmt: skip
"""What tells the results rows of a short quickstart from each other."""


def test_a_short_quickstart(finished: run_commands.Finished, golden: Golden) -> None:
    """Compare every value of a few steps in float32.

    Processors with and without AVX2 differ by 2e-6; two pairs that change places in a rank of 20 may cost 2e-3.
    """
    outcome = finished.results["quickstart"]
    values = {" ".join(str(row[name]) for name in COLUMNS): round(row["value"], 4) for row in outcome["results"]}
    assert len(values) == len(outcome["results"])
    golden.check("quickstart-short", {"delivered": outcome["delivered"], "values": values}, tolerance=2e-3)


def check(found: dict[str, Any], golden: Golden) -> None:
    """Compare what is delivered, and the mean over the test sets of every role.

    The numbers of one set are not compared: a set has 20 rows, and some processors train in bf16. Hundreds of steps later, one
    value of one member differs by .13 between two processors that are both right. The short quickstart above is exact.
    """
    values = defaultdict(list)
    for row in found["results"]:
        if (row["metric"], row["aggregation"], row["rows"]) == ("spearman", "all", "all"):
            values[row["role"]].append(row["value"])
    scores = {role: statistics.fmean(of_role) for role, of_role in values.items()}
    delivered = {name: found["delivered"][name] for name in ("what", "layers", "by", "beats_input", "difference")}
    golden.check("quickstart", {"scores": scores, "delivered": delivered}, tolerance=0.1)


@pytest.mark.skipif(WRITTEN not in os.environ, reason=f"{WRITTEN} names no JSON line of a quickstart")
def test_the_quickstart_that_was_run(golden: Golden) -> None:
    check(json.loads(Path(os.environ[WRITTEN]).read_text(encoding="utf-8").splitlines()[-1]), golden)


@pytest.mark.slow
def test_a_quickstart(tmp_path: Path, golden: Golden) -> None:
    check(result("run", "quickstart", "--storage", tmp_path / "storage", "--address", "none"), golden)
