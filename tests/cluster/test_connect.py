from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys

import pytest
import ray

from raysts.cluster import connect
from raysts.cluster.connect import connection
from raysts.errors import InputError


def test_a_home_that_cannot_be_written_to_is_said(own_nodes: None) -> None:
    """This Ray keeps the token of a private cluster there, unless this process has it already: so in another one."""
    if tuple(map(int, ray.__version__.split(".")[:2])) < (2, 60):
        pytest.skip("this Ray has no tokens")
    code = "from raysts.cluster.connect import connection\nwith connection('local'): pass"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    asked = subprocess.run(
        [sys.executable, "-c", code], env={**environment, "HOME": "/proc"}, capture_output=True, text=True, check=False
    )
    assert re.search(r"RunFailed: .*cannot be started .*/proc/\.ray.*HOME.*--address none", asked.stderr), asked.stderr


@pytest.mark.parametrize(("installed", "said"), [
    (None, "^Ray is not installed here; install"),
    ("2.46.0", "^Ray 2.46.0 is installed here; raysts needs 2.51 or newer"),
])  # fmt: skip
def test_why_ray_cannot_be_used_is_said(installed: str | None, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if installed is None:
        monkeypatch.setattr(connect, "version", lambda name: importlib.metadata.version("no-such-package"))
    else:
        monkeypatch.setattr(connect, "version", lambda name: installed)
    with pytest.raises(InputError, match=said), connection("local"):
        pass


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (
            "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.51.2\n    Python: 3.11.7\n"
            "This process on node 192.0.2.2 was started with:\n    Ray: 2.60.0\n    Python: 3.11.7\n",
            "runs Ray 2.51.2 with Python 3.11.7, and this process has Ray 2.60.0 .*==2.51.2",
        ),
        ("raysts: asks for no token", "asks for no token, and .* RAY_AUTH_MODE=token.*unset RAY_AUTH_MODE"),
    ],
)
def test_why_a_cluster_is_not_joined_is_said(printed: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words are Ray's and the probe's; docs/cluster.md says what was tried for real."""
    monkeypatch.setattr(connect, "_answers", lambda address: True)
    monkeypatch.setattr(connect, "PROBE", f"raise SystemExit({printed!r})")
    with pytest.raises(InputError, match=said):
        connect.find_cluster("192.0.2.2:6379")


def test_a_process_that_has_had_a_private_cluster_joins_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a cluster could not reach this process: its members' queue would be said to have died."""
    monkeypatch.setattr(connect, "_joined", {"local"})
    with pytest.raises(InputError, match="had a private cluster.* 192.0.2.2:6379; join it from a new process"):
        connect._init("192.0.2.2:6379")
