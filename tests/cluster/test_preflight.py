from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from heads import running_head
from processes import Command, wait_until

from raysts.cluster.connect import LOOPBACK
from raysts.commands.options import RunOptions
from raysts.errors import InputError
from raysts.recipes.names import pipeline_of
from raysts.storage.atomic import remove_drafts
from raysts.storage.proof import Proof


@pytest.fixture
def seen(tmp_path: Path) -> Any:
    """A storage and a data folder as their driver sees them."""
    from raysts.cluster.preflight import Requirements, current_versions, digest_of

    (tmp_path / "storage/.preflight-1").mkdir(parents=True)
    (tmp_path / "data/sts").mkdir(parents=True)
    (tmp_path / "data/sts/stsb_dev.parquet").write_text("x")
    data = tmp_path / "data"
    return Requirements(
        Proof(str(tmp_path / "storage"), ".preflight-1"), (("--data", str(data), digest_of(data)),), current_versions()
    )


def test_what_a_killed_driver_leaves_of_its_check_goes_with_the_next_run(tmp_path: Path) -> None:
    """The nodes' answers too, which were files beside the driver's own: drafts of nobody, for a day."""
    code = "import os, sys; from pathlib import Path; from raysts.storage import proof, store\n"
    code += "with proof.proof_in(store.Store.of(Path(sys.argv[1]))) as left: left.problem('n'); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 9
    (left,) = tmp_path.iterdir()
    assert [path.name for path in left.iterdir()] == ["n"]
    remove_drafts(tmp_path, "*")
    assert not list(tmp_path.iterdir())


def test_a_node_that_sees_the_same_is_fit_and_why_another_is_not(seen: Any, tmp_path: Path) -> None:
    from raysts.cluster import preflight

    assert seen.misfit("n") is None and (tmp_path / "storage/.preflight-1/n").exists()
    world = tmp_path / "cache" / "world"
    assert replace(seen, folders=((preflight.WORLD, str(world), ""),)).misfit() is None
    assert next((tmp_path / "cache").iterdir()).is_dir(), "the embedded world is made where it is missing"

    def said(**other: Any) -> str:
        return replace(seen, **other).misfit() or ""

    here = seen.versions
    assert said(versions={**here, "torch": "1.0"}).startswith(f"torch is {here['torch']} there and 1.0 where")
    assert "raysts is" in said(versions={**here, "raysts": "0.1.0 (sources 0123)"})
    assert f"does not see --storage {tmp_path}/storage" in said(proof=replace(seen.proof, name=".preflight-2"))
    (tmp_path / "data/sts/stsb_dev.parquet").write_text("more")
    assert f"same files in --data {tmp_path}/data" in said()
    shutil.rmtree(tmp_path / "data")
    assert f"same files in --data {tmp_path}/data" in said()


def test_jobs_without_storage_on_many_nodes(small_world: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from raysts.cluster import capacity
    from raysts.commands import context, options

    job = tmp_path / options.JOB_COPIES / "copy"
    job.mkdir(parents=True)
    monkeypatch.chdir(job)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(capacity, "nodes", lambda: [{}, {}])
    context._home_storage.cache_clear()
    try:
        plan = context.plan_of(pipeline_of("quickstart", {}), RunOptions(data=small_world))
        with (
            pytest.raises(InputError, match=r"--storage is missing.*is that of one node.*has 2.*s3://"),
            context.preflight(False, plan),
        ):
            pass
    finally:
        context._home_storage.cache_clear()


def test_an_address_where_no_head_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    from raysts.cluster import connect

    for address, said in (
        ("ray://127.0.0.1:10001", "run the command on the head"),
        ("127.0.0.1:1", "no Ray cluster answers"),
    ):
        with pytest.raises(InputError, match=said):
            connect.find_cluster(address)
    monkeypatch.setattr(connect, "HEAD_SECONDS", 0.1)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(InputError, match="something listens there, but no Ray head"),
    ):
        connect.find_cluster(f"127.0.0.1:{server.getsockname()[1]}")


@pytest.mark.slow  # a head of its own; test_connect has the message
def test_a_head_without_token_gets_none(own_nodes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers of such a cluster would be refused, and its actors die of it without a word."""
    from raysts.cluster import connect

    monkeypatch.setenv(LOOPBACK, "1")
    with running_head(tmp_path, 0, {"RAY_AUTH_MODE": "disabled"}) as head:
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        with pytest.raises(InputError, match="asks for no token, and .* RAY_AUTH_MODE=token.*unset RAY_AUTH_MODE"):
            connect.find_cluster(head.gcs)
        monkeypatch.delenv("RAY_AUTH_MODE")
        assert connect.find_cluster(head.gcs) == head.gcs


@pytest.fixture
def apart(own_nodes: None, tmp_path: Path) -> Iterator[Path]:
    """A folder of which the second node of a cluster sees another one, empty; Ray is connected to the cluster."""
    import ray
    from ray.cluster_utils import Cluster

    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces are not permitted here")
    folder = tmp_path / "apart"
    folder.mkdir()
    small = {"object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small})
    start = (
        f"mount -t tmpfs tmpfs {shlex.quote(str(folder))} && exec {shlex.quote(sys.executable)} -m ray.scripts.scripts "
        f"start --address {cluster.address} --num-cpus 1 --object-store-memory {100 << 20} --disable-usage-stats --block"
    )
    apart = "import os, sys; os.execvp('unshare', ['unshare', '-m', 'bash', '-c', sys.argv[1]])"
    second = Command(["-c", apart, start], tmp_path / "second.log")
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        wait_until(lambda: sum(node["Alive"] for node in ray.nodes()) == 2 or second.ended())
        yield folder
    finally:
        ray.shutdown()
        second.sweep()
        cluster.shutdown()


@pytest.mark.slow  # two nodes, in a process of their own; test_members has a node of other versions, and one that goes
def test_a_node_with_another_file_system_is_named(
    request: pytest.FixtureRequest, own_nodes: None, small_world: Path, tiny_backbone: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if os.environ[LOOPBACK] == "0":  # nodes of several commands find each other where Ray was imported without it
        command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "slow", f"{__file__}::{request.node.name}"]
        again = subprocess.run(
            command,
            env={**os.environ, LOOPBACK: "1"},
            capture_output=True,
            text=True,
            check=False,
            cwd=request.config.rootpath,
        )
        assert again.returncode == 0, again.stdout
        return
    apart: Path = request.getfixturevalue("apart")
    from run_commands import plan_of as plan

    from raysts.cluster import capacity, members, preflight
    from raysts.commands.run import run
    from raysts.recipes.recipe import Resources

    given = {"backbone": str(tiny_backbone), "members": 1, "train.max_steps": 2}
    with pytest.raises(InputError, match=rf"node .*\): it does not see --storage {apart}/s"):
        run("nli", given, small_world, apart / "s")
    assert not list(apart.iterdir()), "nothing is left behind"

    shared, inside = tmp_path / "shared", apart / "inside"
    for folder in (small_world, tiny_backbone):
        shutil.copytree(folder, inside / folder.name)
    for option, folder in (("--data", inside / small_world.name), ("backbone", inside / tiny_backbone.name)):
        said = rf"node .*same files in {option} {folder}"
        with pytest.raises(InputError, match=said), preflight.check_nodes(shared, [(option, folder)]):
            pass
    with monkeypatch.context() as patch:
        other = {**preflight.current_versions(), "transformers": "4.0"}
        patch.setattr(preflight, "current_versions", lambda: other)
        said = r"node .*transformers is .* there and 4.0 where the command runs"
        with pytest.raises(InputError, match=said), preflight.check_nodes(shared, []):
            pass

    with preflight.check_nodes(shared, [("--data", small_world), ("backbone", tiny_backbone)]) as seen:
        assert list(shared.iterdir())
        # A node that had not been there: whoever trains on it looks first.
        made = plan("nli", given, small_world, shared)
        chains = [[node.job for node in chain] for chain in made.chains]
        unseen = replace(seen, folders=(("--data", str(inside), "as the driver sees it"),))
        with pytest.raises(InputError, match=r"node .*same files in --data"):
            members.train_members(chains, Resources(gpus=0), unseen)
    assert not list(shared.glob(".preflight*"))
    wait_until(lambda: not capacity.may_grow())  # no autoscaler looks after it, as Ray's monitor says now and then
