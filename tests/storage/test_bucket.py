from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from raysts.commands.context import store_of
from raysts.commands.run import run as run_recipe
from raysts.errors import InputError, StoreFailed
from raysts.storage import bucket as object_store
from raysts.storage.bucket import Bucket, canonical
from raysts.storage.store import BucketStore, FolderStore, Store


def test_every_node_writes_a_uri_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    assert canonical("s3://b/a/prefix/") == "s3://b/a/prefix"
    assert canonical("gcs://b") == "gs://b" and canonical("gs://anonymous@b/x") == "gs://anonymous@b/x"
    with_options = canonical("s3://b/x?scheme=http&endpoint_override=host:9000")
    assert with_options == canonical("s3://b/x?endpoint_override=http://host:9000")
    assert with_options == canonical(with_options)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://host:9000")
    assert canonical("s3://b/x") == with_options


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("s3://AKIAEXAMPLE:sec/ret@bucket/x", "credentials come from the environment"),
        ("s3://AKIAEXAMPLE@bucket/x", "credentials come from the environment"),
        ("gs://me:secret@bucket/x", "credentials come from the environment"),
        ("abfs://box@account/x", "begin with one of s3://, gs://"),
        ("s3://bucket/x?secret_key=secret", "no options but"),
        ("s3://bucket/x?endpoint_override=http://me:secret@host", "holds credentials"),
        ("ftp://bucket/x", "begin with one of s3://, gs://"),
        ("s3:///x", "must name a bucket"),
        ("s3://bucket/a/../../b", "without empty parts"),
        ("s3://bucket/a//b", "without empty parts"),
        (f"s3://bucket/{'x' * 300}", "too long"),
    ],
)
def test_a_uri_that_makes_no_sense_is_refused_and_no_secret_repeated(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as error:
        Store.open(text)
    assert "ret" not in str(error.value).replace("secret_key", "") and "AKIAEXAMPLE" not in str(error.value)


def test_a_path_says_which_store_it_belongs_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAYSTS_MIRROR", str(tmp_path / "with+plus"))
    store = Store.open("s3://bucket/a+b/100%?endpoint_override=h:1")
    assert store.root.parent == tmp_path / "with+plus"
    found = Store.of(store.root / "runs" / "x")
    assert isinstance(found, BucketStore) and found == store and found.key(store.root / "runs" / "x") == "runs/x"
    assert found.bucket.prefix == "bucket/a+b/100%"
    assert Store.of(tmp_path / "runs") == FolderStore(tmp_path / "runs")
    with pytest.raises(InputError, match="must stay in its folder"):
        Store.of(store.root / "runs" / ".." / ".." / "other")


@pytest.mark.parametrize(
    ("uri", "settings", "why"),
    [
        ("s3://no-such-bucket/x", {}, "there is no bucket 'no-such-bucket'"),
        ("s3://bucket/x", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "the store at 127.0.0.1:1 does not answer"),
        (
            "s3://bucket/x",
            {"AWS_ENDPOINT_URL": "http://no-such-host.invalid"},
            "the store at no-such-host.invalid does",
        ),
    ],
)
def test_a_store_that_is_not_there_is_said_before_anything_starts(
    s3: str,
    uri: str,
    settings: dict[str, str],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    small_world: Path,
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(object_store.time, "sleep", lambda seconds: pytest.fail("no patience before a run has begun"))
    with pytest.raises(InputError, match=why) as error:
        run_recipe("quickstart", data=small_world, storage=uri, address="none")
    assert "testing" not in str(error.value)
    assert not (tmp_path / "mirrors").exists()


def test_wrong_credentials_are_said_without_repeating_them(s3: str, s3_endpoint: str) -> None:
    def ask_for_signatures_after(requests: str) -> None:
        plain = {"Content-Type": "text/plain"}
        wanted = urllib.request.Request(f"http://{s3_endpoint}/moto-api/reset-auth", requests.encode(), plain)
        urllib.request.urlopen(wanted).close()

    ask_for_signatures_after("0")
    try:
        with pytest.raises(InputError) as error:
            store_of(s3)
    finally:
        ask_for_signatures_after("inf")
    assert "credentials" in str(error.value) and "testing" not in str(error.value)
    store_of(s3)


def test_transient_errors_are_tried_again_and_final_ones_are_not(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(object_store.time, "sleep", waits.append)
    bucket = Bucket(canonical(s3))

    def failing(times: int, text: str) -> object:
        left = [OSError(text)] * times

        def action() -> str:
            if left:
                raise left.pop()
            return "done"

        return action

    assert bucket._tried("read", "x", failing(3, "AWS Error SLOW_DOWN")) == "done" and len(waits) == 3
    assert waits[2] > waits[0] / 3
    waits.clear()
    with pytest.raises(StoreFailed, match="does not answer.*goes on from what was uploaded"):
        bucket._tried("read", "x", failing(99, "AWS Error SLOW_DOWN"))
    assert len(waits) == object_store.TRIES - 1
    waits.clear()
    with pytest.raises(StoreFailed, match="access is denied"):
        bucket._tried("write", "x", failing(99, "AWS Error ACCESS_DENIED during PutObject operation"))
    assert not waits
    with pytest.raises(OSError, match="full"):  # of this machine, not of the store
        bucket._tried("read", "x", _full)


def _full() -> None:
    raise OSError(28, "full")


def test_objects_appear_whole_or_not_at_all(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(canonical(s3))
    big = tmp_path / "big"
    big.write_bytes(os.urandom(12 << 20))  # more than one part of a multipart upload
    program = (
        "import os, sys; from pathlib import Path; from raysts.storage import bucket as o\n"
        "o.CHUNK = 6 << 20\n"
        "bucket = o.Bucket(sys.argv[1])\n"
        "real = bucket._files.open_output_stream\n"
        "class Killed:\n"
        "    def __init__(self, stream): self.stream, self.writes = stream, 0\n"
        "    def write(self, chunk):\n"
        "        self.stream.write(chunk); self.stream.flush(); os.kill(os.getpid(), 9)\n"
        "class Files:\n"
        "    def open_output_stream(self, key): return Killed(real(key))\n"
        "o._filesystem = lambda uri: Files()\n"
        "bucket.upload(Path(sys.argv[2]), 'big')\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, canonical(s3), str(big)], check=False)
    assert killed.returncode == -9 and not bucket.has("big")

    monkeypatch.setattr(object_store, "CHUNK", 6 << 20)
    real, read = Path.open, 0

    class Torn:
        """A file that the user interrupts while it is read."""

        def __init__(self, file: object) -> None:
            self.file = file

        def __enter__(self) -> Torn:
            return self

        def __exit__(self, *rest: object) -> None: ...

        def read(self, size: int) -> bytes:
            nonlocal read
            read += 1
            if read == 2:
                raise KeyboardInterrupt
            return self.file.read(size)  # type: ignore[attr-defined]

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda path, mode: Torn(real(path, mode)))
        with pytest.raises(KeyboardInterrupt):
            bucket.upload(big, "big")
    assert not bucket.has("big")

    bucket.upload(big, "big")
    bucket.download("big", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == big.read_bytes()
    assert bucket.has("big")
    bucket.delete("big")
    bucket.delete("big")
    assert bucket.read("big") is None
