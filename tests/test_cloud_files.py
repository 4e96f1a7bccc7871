"""The files that describe clusters, against what reads them: Ray's own loader and schema, and KubeRay's fields."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from raysts import cli
from raysts.recipes.names import pipeline

ROOT = Path(__file__).parent.parent
CLUSTERS = sorted(ROOT.glob("cluster*.yaml"))
pytestmark = pytest.mark.skipif(not CLUSTERS, reason="needs a checkout")


@pytest.fixture(params=CLUSTERS, ids=lambda path: path.name)
def prepared(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A cluster's file as ``ray up`` has it before it talks to the cloud: with the provider's defaults, and checked."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(yaml.safe_load(request.param.read_text(encoding="utf-8")))
    validate_config(config)
    return config


def test_there_is_one_for_each_cloud() -> None:
    kinds = {path.name: yaml.safe_load(path.read_text())["provider"]["type"] for path in CLUSTERS}
    assert kinds == {"cluster.yaml": "aws", "cluster-gcp.yaml": "gcp"}


def test_ray_refuses_what_it_does_not_know() -> None:
    """That the check of the other tests is one."""
    import jsonschema
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))
    with pytest.raises(jsonschema.ValidationError):
        validate_config(prepare_config({**config, "idle_timeout": 5}))


def spot(node: dict[str, Any]) -> bool:
    return (
        node.get("InstanceMarketOptions", {}).get("MarketType") == "spot"
        or node.get("scheduling", {}).get("provisioningModel") == "SPOT"
    )


def test_the_head_stays_and_gpu_nodes_come_and_go(prepared: dict[str, Any]) -> None:
    kinds = dict(prepared["available_node_types"])
    head = kinds.pop(prepared["head_node_type"])
    # A head that works as well dies of what it works on, and takes the cluster with it.
    assert head["resources"] == {"CPU": 0, "GPU": 0} and head["max_workers"] == 0 and not spot(head["node_config"])
    assert {name: kind["resources"]["GPU"] for name, kind in kinds.items()} == {"cpu": 0, "gpu-1": 1, "gpu-4": 4}
    for kind in kinds.values():
        assert kind["min_workers"] == 0 < kind["max_workers"] <= prepared["max_workers"]
        assert kind["resources"]["CPU"] >= max(1, kind["resources"]["GPU"]) and kind["resources"]["memory"] > 1e9
        assert spot(kind["node_config"])
    assert 0 < prepared["idle_timeout_minutes"] <= 15 and prepared["provider"]["cache_stopped_nodes"] is False


def test_nobody_gets_in_without_the_token(prepared: dict[str, Any]) -> None:
    for which in ("head", "worker"):
        starts = [command for command in prepared[f"{which}_start_ray_commands"] if "ray start" in command]
        assert len(starts) == 1 and re.search(r"RAY_AUTH_MODE=token \S*ray start", starts[0])
        assert any("export" in command and "RAY_AUTH_MODE=token" in command for command in prepared["setup_commands"])
    assert "--dashboard-host=127.0.0.1" in prepared["head_start_ray_commands"][-1]
    assert "--autoscaling-config=~/ray_bootstrap_config.yaml" in prepared["head_start_ray_commands"][-1]
    assert prepared["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    text = yaml.safe_dump(prepared)
    assert not re.search(r"0\.0\.0\.0|AKIA|aws_secret|BEGIN .*KEY", text)


def test_every_node_gets_raysts_with_the_same_python(prepared: dict[str, Any]) -> None:
    assert prepared["file_mounts"]["~/raysts"] == "." and "**/.git" in prepared["rsync_exclude"]
    for which in ("head", "worker"):
        commands = prepared[f"{which}_setup_commands"]
        assert any("pip install" in command and "-e ~/raysts" in command for command in commands), commands
        for command in (*commands, *prepared[f"{which}_start_ray_commands"]):
            words = shlex.split(command)
            assert all(word.startswith("~/env/bin/") for word in words if Path(word).name in ("pip", "ray")), command
    assert "download.pytorch.org/whl/cpu" in " ".join(prepared["head_setup_commands"])
    assert "whl/cpu" not in " ".join(prepared["worker_setup_commands"])


def test_what_the_autoscaler_may_start_is_read_from_the_file(
    prepared: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a job on the head finds it in ``ray_bootstrap_config.yaml``."""
    from types import SimpleNamespace

    import ray

    from raysts.cluster import capacity

    (tmp_path / "bootstrap.yaml").write_text(yaml.safe_dump(prepared))
    monkeypatch.setattr(capacity, "autoscaler_config", lambda address: tmp_path / "bootstrap.yaml")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address=""))
    assert [(kind.name, kind.has, kind.most) for kind in capacity.node_types()] == [
        ("cpu", {"CPU": 8, "GPU": 0, "memory": 24e9}, 4),
        ("gpu-1", {"CPU": 4, "GPU": 1, "memory": 12e9}, 8),
        ("gpu-4", {"CPU": 48, "GPU": 4, "memory": 140e9}, 2),
    ]


# -- Kubernetes ----------------------------------------------------------------------------------------------------------

# Field names of ray.io/v1, from ray-operator/apis/ray/v1/{rayjob,raycluster}_types.go of ray-project/kuberay and the page
# "KubeRay CRD API reference" of Ray's documentation (authOptions since KubeRay 1.5.1).
FIELDS: dict[str, set[str]] = {
    "job": {
        "activeDeadlineSeconds", "backoffLimit", "rayClusterSpec", "submitterPodTemplate", "metadata", "clusterSelector",
        "submitterConfig", "managedBy", "deletionStrategy", "entrypoint", "runtimeEnvYAML", "jobId", "submissionMode",
        "entrypointResources", "entrypointNumCpus", "entrypointNumGpus", "ttlSecondsAfterFinished",
        "shutdownAfterJobFinishes", "suspend",
    },
    "cluster": {
        "headGroupSpec", "workerGroupSpecs", "rayVersion", "enableInTreeAutoscaling", "autoscalerOptions", "authOptions",
        "headServiceAnnotations", "suspend",
    },
    "auth": {"mode", "secretName", "enableK8sTokenAuth"},
    "autoscaler": {
        "resources", "image", "imagePullPolicy", "env", "envFrom", "volumeMounts", "securityContext",
        "idleTimeoutSeconds", "upscalingMode", "version",
    },
    "head": {"serviceType", "headService", "enableIngress", "rayStartParams", "template", "labels", "resources"},
    "workers": {
        "groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts", "rayStartParams", "template",
        "scaleStrategy", "idleTimeoutSeconds", "suspend", "labels", "resources",
    },
    "pod": {"containers", "volumes", "serviceAccountName", "nodeSelector", "tolerations", "imagePullSecrets"},
    "container": {"name", "image", "resources", "volumeMounts", "env", "envFrom", "command", "args", "lifecycle"},
}  # fmt: skip


@pytest.fixture
def job() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "jobs" / "rayjob.yaml").read_text(encoding="utf-8"))


def test_the_kubernetes_job_has_fields_that_exist(job: dict[str, Any]) -> None:
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob") and set(job) == {
        "apiVersion", "kind", "metadata", "spec"
    }  # fmt: skip
    spec, cluster = job["spec"], job["spec"]["rayClusterSpec"]
    groups = cluster["workerGroupSpecs"]
    parts = [
        ("job", spec), ("cluster", cluster), ("auth", cluster["authOptions"]), ("head", cluster["headGroupSpec"]),
        ("autoscaler", cluster["autoscalerOptions"]), *(("workers", group) for group in groups),
    ]  # fmt: skip
    for group in (cluster["headGroupSpec"], *groups):
        pod = group["template"]["spec"]
        parts += [("pod", pod), *(("container", container) for container in pod["containers"])]
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]} <= volumes
        # Quantities and start parameters are strings.
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        for container in pod["containers"]:
            assert container["resources"]["requests"] == container["resources"]["limits"]
            assert all(isinstance(value, str) for value in container["resources"]["limits"].values())
    for name, part in parts:
        assert set(part) <= FIELDS[name], (name, set(part) - FIELDS[name])


def test_the_kubernetes_job_grows_from_nothing_and_asks_for_the_token(job: dict[str, Any]) -> None:
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["authOptions"]["mode"] == "token" and cluster["enableInTreeAutoscaling"] is True
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] == group["replicas"] == 0 < group["maxReplicas"]
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0", "num-gpus": "0"}


def test_the_kubernetes_job_runs_a_command_that_parses(job: dict[str, Any]) -> None:
    python, script, *arguments = shlex.split(job["spec"]["entrypoint"])
    assert python == "python" and (ROOT / "jobs" / Path(script).name).exists()
    options = cli.parser().parse_args(["run", *arguments])
    from raysts.recipes.overrides import parse_overrides

    assert pipeline(options.recipe, parse_overrides(options.set)).resources.gpus == 1
    mounts = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert options.storage in {mount["mountPath"] for mount in mounts}


# -- what a job takes along ----------------------------------------------------------------------------------------------


def test_a_working_directory_leaves_history_and_storage_at_home(tmp_path: Path) -> None:
    """``ray job submit --working-dir .`` in a clone: Ray heeds .gitignore and leaves .git and virtual environments out."""
    import zipfile

    from ray._private.ray_constants import get_runtime_env_default_excludes
    from ray._private.runtime_env.packaging import create_package

    clone, package = tmp_path / "clone", tmp_path / "package.zip"
    for name in (
        "raysts/cli.py", "jobs/run.py", ".git/objects/pack/pack-1.pack", ".venv/bin/python", "raysts-storage/runs/a/run.json",
        "raysts/__pycache__/cli.pyc", "build/lib/x.py",
    ):  # fmt: skip
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text("x")
    (clone / ".gitignore").write_text((ROOT / ".gitignore").read_text())
    create_package(str(clone), package, include_gitignore=True, excludes=get_runtime_env_default_excludes())
    with zipfile.ZipFile(package) as archive:
        files = {name for name in archive.namelist() if not name.endswith("/")}
    assert files == {"raysts/cli.py", "jobs/run.py", ".gitignore"}
