"""An object store that answers badly: every kind of request is made again, and what cannot be done is said."""

import itertools
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import s3_faults
import s3_server
from filled import overwrite
from run_commands import overrides, raysts, result

from raysts.storage import bucket as object_store
from raysts.storage.bucket import Bucket
from raysts.storage.checksums import MANIFEST
from raysts.storage.client import canonical
from raysts.storage.store import Store

SHORT = {
    "backbone": "tiny", "members": 2, "train.max_steps": 4, "train.checkpoint_every": 2, "train.max_length": 24,
    "sed.data.sample": 100, "evaluation.tasks": "[stsb]", "evaluation.resamples": 4,
}  # fmt: skip
SEARCH = {
    "backbone": "tiny", "train.max_steps": 2, "train.max_length": 24, "sts.data.sample": 64,
    "space.lower_bound": "0,0.5", "seeds": 1, "keep": 2,
}  # fmt: skip


def often(seed: int, shares: dict[str, float]) -> Callable[[str, str], str | None]:
    """Faults drawn by their shares."""
    drawn, names = random.Random(seed), [*shares, None]
    weights = [*shares.values(), 1 - sum(shares.values())]
    return lambda method, path: drawn.choices(names, weights)[0]


@pytest.fixture
def between(s3: str, s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3_faults.Proxy]:
    """A proxy before the server; the environment says that it is the server."""
    with s3_faults.proxy(s3_endpoint) as found:
        s3_server.environment(found.endpoint, tmp_path / "mirrors", monkeypatch.setenv)
        yield found


def test_what_is_written_is_read_however_badly_the_store_answers(
    s3: str, between: s3_faults.Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store.time, "sleep", lambda seconds: None)
    between.fault = often(0, {"unavailable": 0.25, "lost": 0.15, "cut": 0.1, "refused": 0.05})
    bucket, there, drawn = Bucket(canonical(s3)), dict[str, bytes](), random.Random(1)
    for number in range(12):
        name = f"folder/{drawn.randrange(6)}"
        if name in there and drawn.random() < 0.4:
            bucket.delete(name)
            del there[name]
        else:
            there[name] = drawn.randbytes(drawn.choice([1, 1000, 300_000]))
            (tmp_path / "file").write_bytes(there[name])
            bucket.upload(tmp_path / "file", name) if number % 2 else overwrite(bucket, name, there[name])
        sizes = {f"folder/{name}": entry.size for name, entry in bucket.list_objects("folder").items()}
        assert sizes == {name: len(content) for name, content in there.items()}
        content, _ = bucket.read(name) or (None, None)
        assert content == there.get(name) and (bucket.entry(name) is not None) is (name in there)
        if name in there:
            bucket.download(name, tmp_path / "back")
            assert (tmp_path / "back").read_bytes() == there[name]
    assert between.spoiled > 25


def test_an_object_that_is_written_while_it_is_read_is_read_whole(
    s3: str, s3_endpoint: str, between: s3_faults.Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store.time, "sleep", lambda seconds: None)
    bucket, elsewhere = Bucket(canonical(s3)), boto3.client("s3", endpoint_url=f"http://{s3_endpoint}")
    for read in (lambda: (bucket.read("record") or b"")[0], lambda: downloaded(bucket, tmp_path / "record")):
        overwrite(bucket, "record", b"short")
        longer = iter([b"longer than it was"])

        def written_first(method: str, path: str, contents: Iterator[bytes] = longer) -> None:
            if method == "GET" and path.endswith("/record") and (content := next(contents, None)):
                _, name, key = path.split("/", 2)
                elsewhere.put_object(Bucket=name, Key=key, Body=content)

        between.fault = written_first
        assert read() == b"longer than it was"
        between.fault = lambda method, path: None


def downloaded(bucket: Bucket, target: Path) -> bytes:
    bucket.download("record", target)
    return target.read_bytes()


def test_the_first_request_is_made_again_too(s3: str, between: s3_faults.Proxy) -> None:
    left = iter(["unavailable"] * 5 + ["lost"])
    between.fault = lambda method, path: next(left, None)
    Store.open(s3).check(writes=True)
    assert between.spoiled == 6 and between.log


def test_a_store_that_goes_on_failing_ends_the_run_with_the_reason(
    s3: str, between: s3_faults.Proxy, small_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After thirty objects nothing is written any more, in the middle of a folder."""
    monkeypatch.setattr(Bucket.__init__, "__defaults__", (2, *Bucket.__init__.__defaults__[1:]))
    counted = itertools.count()
    between.fault = lambda method, path: "unavailable" if method == "PUT" and next(counted) > 30 else None
    command = ["run", "nli-sed", "--data", small_world, "--address", "none", *overrides(SHORT), "--storage", s3]
    failed = raysts(*command)
    assert failed.code == 3 and "the store at" in failed.err and "does not answer" in failed.err, failed.err
    assert "SlowDown" in failed.err and "run the same command again" in failed.err
    shutil.rmtree(tmp_path / "mirrors")
    store, held = Store.open(s3), Bucket(canonical(s3)).list_objects("", recursive=True)
    manifests = [name for name in held if name.endswith(MANIFEST)]
    assert manifests and all(store.get_dir(name.removesuffix(MANIFEST)) for name in manifests)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", "tune"])
def test_under_faults_the_models_are_those_of_a_calm_store(
    kind: str, s3: str, between: s3_faults.Proxy, small_world: Path, tmp_path: Path
) -> None:
    name = ["nli-sed", *overrides(SHORT)] if kind == "run" else ["lower-bound", *overrides(SEARCH)]
    command = [kind, *name, "--data", small_world, "--address", "none"]
    between.fault = often(2, {"unavailable": 0.2, "lost": 0.1})
    under = result(*command, "--storage", s3)
    between.fault = lambda method, path: None
    calm = result(*command, "--storage", tmp_path / "calm")
    assert between.spoiled > 50 and models(s3, under) == models(tmp_path / "calm", calm)
    assert under.get("points") == calm.get("points")


def models(storage: Any, ended: dict[str, Any]) -> dict[str, bytes]:
    """The weights of every run of a storage that is done."""
    assert ended["status"] == "done"
    store = Store.open(storage)
    runs = [path.parent for path in store.get_all("runs", "run.json")]
    folders = {run.name: store.get_dir(run / "model", fresh=True) for run in runs}
    return {name: (folder / "model.safetensors").read_bytes() for name, folder in folders.items() if folder}
