"""The files that describe clusters, against what reads them: Ray's own loader and schema, and KubeRay's fields."""

from __future__ import annotations

import re
import shlex
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from raysts.commands import parser
from raysts.recipes.names import pipeline

# The loader and the checks of ``ray up`` are private: nothing public says whether a cluster's file is right.
ROOT = Path(__file__).parent.parent
CLUSTERS = sorted(ROOT.glob("cluster*.yaml"))
pytestmark = pytest.mark.skipif(not CLUSTERS, reason="needs a checkout")


def spot(node: dict[str, Any]) -> bool:
    return (
        node.get("InstanceMarketOptions", {}).get("MarketType") == "spot"
        or node.get("scheduling", {}).get("provisioningModel") == "SPOT"
    )


@pytest.mark.parametrize("kind", ["aws", "gcp"])
def test_a_cluster_of_a_cloud(kind: str) -> None:
    """Its file as ``ray up`` has it before it talks to the cloud: with the provider's defaults, and checked."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    configs = map(yaml.safe_load, map(Path.read_text, CLUSTERS))
    (config,) = (config for config in configs if config["provider"]["type"] == kind)
    prepared = prepare_config(config)
    validate_config(prepared)

    kinds = dict(prepared["available_node_types"])
    head = kinds.pop(prepared["head_node_type"])
    # A head that works as well dies of what it works on, and takes the cluster with it.
    assert head["resources"] == {"CPU": 0, "GPU": 0} and head["max_workers"] == 0 and not spot(head["node_config"])
    assert {name: each["resources"]["GPU"] for name, each in kinds.items()} == {"cpu": 0, "gpu-1": 1, "gpu-4": 4}
    for each in kinds.values():
        assert each["min_workers"] == 0 < each["max_workers"] <= prepared["max_workers"]
        assert each["resources"]["CPU"] >= max(1, each["resources"]["GPU"]) and each["resources"]["memory"] > 1e9
        assert spot(each["node_config"])
    assert 0 < prepared["idle_timeout_minutes"] <= 15 and prepared["provider"]["cache_stopped_nodes"] is False

    # Nobody gets in without the token, and every node gets raysts with the same Python.
    assert any("export" in command and "RAY_AUTH_MODE=token" in command for command in prepared["setup_commands"])
    for which in ("head", "worker"):
        starts, commands = prepared[f"{which}_start_ray_commands"], prepared[f"{which}_setup_commands"]
        (start,) = (command for command in starts if "ray start" in command)
        assert re.search(r"RAY_AUTH_MODE=token \S*ray start", start)
        installs = [command for command in commands if "pip install" in command]
        assert installs and all("-c ~/raysts/requirements.lock -e ~/raysts" in command for command in installs)
        for command in (*commands, *starts):
            words = shlex.split(command)
            assert all(word.startswith("~/env/bin/") for word in words if Path(word).name in ("pip", "ray")), command
        assert ("download.pytorch.org/whl/cpu" in " ".join(commands)) == (which == "head")
    last = prepared["head_start_ray_commands"][-1]
    assert "--dashboard-host=127.0.0.1" in last and "--autoscaling-config=~/ray_bootstrap_config.yaml" in last
    mounts = {"~/.ray/auth_token": "~/.ray/auth_token", "~/raysts": "."}
    assert mounts.items() <= prepared["file_mounts"].items() and "**/.git" in prepared["rsync_exclude"]
    assert not re.search(r"0\.0\.0\.0|AKIA|aws_secret|BEGIN .*KEY", yaml.safe_dump(prepared))


def test_the_lock_names_one_version_of_all_that_raysts_asks_for() -> None:
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    locked = dict(line.split("==") for line in lines)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for asked in map(Requirement, project["dependencies"]):
        assert asked.specifier.contains(locked[canonicalize_name(asked.name)]), asked.name
    assert "boto3" in locked and len(locked) == len(lines)


def test_the_image_holds_what_the_kubernetes_job_runs(job: dict[str, Any]) -> None:
    text = (ROOT / "Dockerfile").read_text()
    folder = re.search(r"^WORKDIR (\S+)", text, re.MULTILINE)[1]  # type: ignore[index]
    copied = [word for words in re.findall(r"^COPY (?:--\S+ )?(.*) \S+$", text, re.MULTILINE) for word in words.split()]
    assert all((ROOT / name).exists() for name in copied) and {"raysts", "jobs", "requirements.lock"} <= {*copied}
    script = Path(shlex.split(job["spec"]["entrypoint"])[1])
    assert script.is_relative_to(folder) and script.relative_to(folder).parts[0] in copied


def test_the_head_may_start_workers_and_the_workers_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own provider with the rights of docs/aws-roles.json, against a cloud that checks which actions they allow."""
    import boto3
    import botocore.exceptions
    import botocore.loaders
    import botocore.session
    from moto import mock_aws
    from moto.core.authorization import enable_iam_authentication
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
    from ray.autoscaler._private.aws.utils import client_cache, resource_cache
    from ray.autoscaler.node_launch_exception import NodeLaunchException

    config = yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))
    provider, kinds = config["provider"], config["available_node_types"]
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)

    loader = botocore.loaders.create_loader()  # what it reads of AWS takes a second

    def become(AccessKeyId: str, SecretAccessKey: str, SessionToken: str = "", **rest: Any) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", AccessKeyId)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SecretAccessKey)
        if SessionToken:
            monkeypatch.setenv("AWS_SESSION_TOKEN", SessionToken)
        session = botocore.session.get_session()  # the one before keeps its credentials
        session.register_component("data_loader", loader)
        boto3.setup_default_session(botocore_session=session)
        resource_cache.cache_clear()
        client_cache.cache_clear()

    def client(service: str) -> Any:
        return boto3.client(service, region_name=provider["region"])

    def start(kind: str) -> dict[str, Any]:
        node = {**kinds[kind]["node_config"], "ImageId": image, "SubnetIds": [subnet]}
        return AWSNodeProvider(provider, "raysts").create_node(node, {"ray-node-kind": "worker"}, 1)

    with mock_aws():
        become("administrator", "secret")
        client("cloudformation").create_stack(
            StackName="raysts",
            TemplateBody=(ROOT / "docs" / "aws-roles.json").read_text(encoding="utf-8"),
            Parameters=[{"ParameterKey": "Bucket", "ParameterValue": "texts"}],
            Capabilities=["CAPABILITY_NAMED_IAM"],
        )
        client("s3").create_bucket(Bucket="texts", CreateBucketConfiguration={"LocationConstraint": provider["region"]})
        keys = {}
        for kind in ("head", "gpu-1"):
            profile = kinds[kind]["node_config"]["IamInstanceProfile"]["Name"]
            (role,) = client("iam").get_instance_profile(InstanceProfileName=profile)["InstanceProfile"]["Roles"]
            keys[kind] = client("sts").assume_role(RoleArn=role["Arn"], RoleSessionName=kind)["Credentials"]
        workers = {kinds[kind]["node_config"]["IamInstanceProfile"]["Name"] for kind in kinds if kind != "head"}
        assert workers == {profile}
        image = client("ec2").register_image(Name="raysts")["ImageId"]
        subnet = client("ec2").describe_subnets()["Subnets"][0]["SubnetId"]
        with enable_iam_authentication():
            for kind in ("gpu-1", "head"):
                become(**keys[kind])
                client("s3").put_object(Bucket="texts", Key="raysts/runs/a/run.json", Body=b"{}")
                with pytest.raises(botocore.exceptions.ClientError, match="not authorized"):
                    client("iam").create_user(UserName="somebody")
                if kind == "gpu-1":
                    with pytest.raises(NodeLaunchException, match="not authorized to perform: ec2:RunInstances"):
                        start("gpu-1")
            (name,) = start("gpu-1")
            AWSNodeProvider(provider, "raysts").terminate_node(name)


# Of the field names of ray.io/v1 those that jobs/rayjob.yaml has, from ray-operator/apis/ray/v1/{rayjob,raycluster}_types.go of
# ray-project/kuberay and the page "KubeRay CRD API reference" of Ray's documentation (authOptions since KubeRay 1.5.1).
FIELDS: dict[str, set[str]] = {
    "job": {"backoffLimit", "rayClusterSpec", "entrypoint", "ttlSecondsAfterFinished", "shutdownAfterJobFinishes"},
    "cluster": {
        "headGroupSpec", "workerGroupSpecs", "rayVersion", "enableInTreeAutoscaling", "autoscalerOptions", "authOptions",
    },
    "auth": {"mode", "secretName", "enableK8sTokenAuth"},
    "autoscaler": {"resources", "image", "env", "idleTimeoutSeconds", "upscalingMode", "version"},
    "head": {"rayStartParams", "template", "resources"},
    "workers": {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template", "resources"},
    "pod": {"containers", "volumes", "serviceAccountName", "nodeSelector", "tolerations", "imagePullSecrets"},
    "container": {"name", "image", "resources", "volumeMounts", "env", "envFrom", "command", "args"},
}  # fmt: skip


@pytest.fixture
def job() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "jobs" / "rayjob.yaml").read_text(encoding="utf-8"))


def test_the_kubernetes_job_has_fields_that_exist(job: dict[str, Any]) -> None:
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert set(job) == {"apiVersion", "kind", "metadata", "spec"}
    spec, cluster = job["spec"], job["spec"]["rayClusterSpec"]
    head, groups = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    parts = [
        ("job", spec), ("cluster", cluster), ("auth", cluster["authOptions"]), ("head", head),
        ("autoscaler", cluster["autoscalerOptions"]), *(("workers", group) for group in groups),
    ]  # fmt: skip
    for group in (head, *groups):
        pod = group["template"]["spec"]
        parts += [("pod", pod), *(("container", container) for container in pod["containers"])]
        volumes = {volume["name"] for volume in pod["volumes"]}
        # Quantities and start parameters are strings.
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert container["resources"]["requests"] == container["resources"]["limits"]
            assert all(isinstance(value, str) for value in container["resources"]["limits"].values())
    for name, part in parts:
        assert set(part) <= FIELDS[name], (name, set(part) - FIELDS[name])


def test_the_kubernetes_job_grows_from_nothing_and_runs_a_command_that_parses(job: dict[str, Any]) -> None:
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["authOptions"]["mode"] == "token" and cluster["enableInTreeAutoscaling"] is True
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] == group["replicas"] == 0 < group["maxReplicas"]
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0", "num-gpus": "0"}
    python, script, *arguments = shlex.split(job["spec"]["entrypoint"])
    assert python == "python" and (ROOT / "jobs" / Path(script).name).exists()
    _, options, _ = parser.parse(["run", *arguments])
    assert pipeline(options["recipe"], options["overrides"]).resources.gpus == 1
    mounts = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert options["storage"] in {mount["mountPath"] for mount in mounts}


def test_a_working_directory_leaves_history_and_storage_at_home(tmp_path: Path) -> None:
    """``ray job submit --working-dir .`` in a clone: Ray heeds .gitignore and leaves .git and virtual environments out."""
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
