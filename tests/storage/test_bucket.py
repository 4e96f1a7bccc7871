import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import azure_server
import pytest
import s3_faults
import s3_server
from filled import overwrite
from obstore.exceptions import GenericError, PermissionDeniedError

from raysts.commands.context import store_of
from raysts.commands.run import run as run_recipe
from raysts.errors import InputError, StoreFailed
from raysts.storage import bucket as object_store
from raysts.storage import client
from raysts.storage.bucket import Bucket, Conflict
from raysts.storage.client import canonical
from raysts.storage.store import Store


def test_every_node_writes_a_uri_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    assert canonical("s3://b/a/prefix/") == "s3://b/a/prefix"
    assert canonical("gcs://b") == "gs://b" and canonical("gs://anonymous@b/x") == "gs://anonymous@b/x"
    with_options = canonical("s3://b/x?scheme=http&endpoint_override=host:9000")
    assert with_options == canonical("s3://b/x?endpoint_override=http://host:9000")
    assert with_options == canonical(with_options)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://host:9000")
    assert canonical("s3://b/x") == with_options and canonical("az://box/x?account=a") == "az://box/x?account=a"
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "b")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://host:9000/b")
    with_options = canonical("az://box/x")
    assert with_options == canonical("az://box/x?account=b&scheme=http&endpoint_override=host:9000/b")
    assert with_options == canonical(with_options)


@pytest.mark.parametrize(("text", "why"), [
    ("s3://AKIAEXAMPLE:sec/ret@bucket/x", "credentials come from the environment"),
    ("s3://AKIAEXAMPLE@bucket/x", "credentials come from the environment"),
    ("gs://me:secret@bucket/x", "credentials come from the environment"),
    ("abfs://box@account/x", "begin with one of s3://, gs://, az://"),
    ("az://box/x", "names no storage account; add .account=NAME"),
    ("az://key@box/x?account=a", "credentials come from the environment .AZURE_STORAGE_ACCOUNT_KEY"),
    ("s3://bucket/x?secret_key=secret", "no options but"),
    ("s3://bucket/x?endpoint_override=http://me:secret@host", "holds credentials"),
    ("ftp://bucket/x", "begin with one of s3://, gs://"),
    ("s3:///x", "must name a bucket"),
    ("s3://bucket/a/../../b", "without empty parts"),
    ("s3://bucket/a//b", "without empty parts"),
    (f"s3://bucket/{'x' * 300}", "too long"),
])  # fmt: skip
def test_a_uri_that_makes_no_sense_is_refused_and_no_secret_repeated(text: str, why: str) -> None:
    with pytest.raises(InputError, match=f"^--data.*{why}") as error:
        Store.open(text, "--data")
    assert "ret" not in str(error.value).replace("secret_key", "") and "AKIAEXAMPLE" not in str(error.value)


def test_a_path_says_which_store_it_belongs_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAYSTS_MIRROR", str(tmp_path / "with+plus"))
    store = Store.open("s3://bucket/a+b/100%?endpoint_override=h:1")
    assert store.root.parent == tmp_path / "with+plus"
    found = Store.of(store.root / "runs" / "x")
    assert found.remote and found == store and found.key(store.root / "runs" / "x") == "runs/x"
    assert (found.bucket.bucket, found.bucket.prefix) == ("bucket", "a+b/100%")
    assert Store.of(tmp_path / "runs") == Store(tmp_path / "runs")
    with pytest.raises(InputError, match="must stay in its folder"):
        Store.of(store.root / "runs" / ".." / ".." / "other")


@pytest.mark.parametrize(("uri", "config"), [
    ("s3://anonymous@b/x?region=r&endpoint_override=h", {"bucket": "b", "region": "r", "endpoint": "https://h"}),
    ("gs://anonymous@b/x?endpoint_override=h:1&scheme=http", {"bucket": "b", "base_url": "http://h:1"}),
    ("az://b/x?account=a&endpoint_override=h:1/a&scheme=http", {"container_name": "b", "endpoint": "http://h:1/a"}),
])  # fmt: skip
def test_a_client_is_that_of_its_uri(uri: str, config: dict[str, str]) -> None:
    """Without encryption only where the URI says so; it waits no longer for a connection than for an answer."""
    for seconds, most in ((2.0, "2s"), (10.0, "3s")):
        made = client.client(uri, seconds)
        assert config.items() <= made.config.items() and ("skip_signature" in made.config) == ("anonymous" in uri)
        options = {"allow_http": str("scheme=http" in uri).lower(), "timeout": f"{seconds:g}s", "connect_timeout": most}
        assert made.client_options == options


@pytest.mark.parametrize(("bucket", "endpoint", "why"), [
    ("no-such-bucket", None, "there is no bucket 'no-such-bucket'"),
    ("bucket", "127.0.0.1:1", "the store at 127.0.0.1:1 does not answer"),
    ("bucket", "no-such-host.invalid", "the store at no-such-host.invalid does"),
])  # fmt: skip
def test_a_store_that_is_not_there_is_said_before_anything_starts(
    bucket: str, endpoint: str | None, why: str, s3: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small_world: Path
) -> None:  # fmt: skip
    if endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{endpoint}")
    monkeypatch.setattr(object_store.time, "sleep", lambda seconds: pytest.fail("no patience before a run has begun"))
    with pytest.raises(InputError, match=why) as error:
        run_recipe("quickstart", data=small_world, storage=f"s3://{bucket}/x", address="none")
    assert "testing" not in str(error.value) and not (tmp_path / "mirrors").exists()


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


def test_transient_errors_are_tried_again_and_final_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(object_store.time, "sleep", waits.append)
    bucket = Bucket("s3://bucket")

    def failing(times: int, error: Exception) -> Any:
        return Mock(side_effect=[*[error] * times, "done"])

    busy = GenericError("S3 error: GET in 1 s - Server returned non-2xx status code: 503 Slow Down: <x>\n\nDebug")
    assert bucket._try("read", "x", failing(3, busy)) == "done" and len(waits) == 3 and waits[2] > waits[0] / 3
    waits.clear()
    with pytest.raises(StoreFailed, match=r"does not answer.*code: 503 Slow Down\).*goes on from what was uploaded"):
        bucket._try("read", "x", failing(99, busy))
    assert len(waits) == object_store.TRIES - 1
    waits.clear()
    with pytest.raises(StoreFailed, match="access is denied"):
        bucket._try("write", "x", failing(99, PermissionDeniedError("PUT - 403 Forbidden: <Code>AccessDenied</Code>")))
    signed = "Error performing GET https://a.blob.core.windows.net/b?sig=SECRET in 1 s - HTTP error: sending"
    with pytest.raises(StoreFailed, match=r"\(HTTP error: sending\)"):  # without the signature of its address
        bucket._try("write", "x", failing(99, GenericError(signed)))
    assert len(waits) == object_store.TRIES - 1
    waits.clear()
    with pytest.raises(StoreFailed, match=r"in another region; set AWS_REGION"):
        bucket._try("write", "x", failing(99, GenericError("GET - Received redirect without LOCATION, this")))
    assert not waits
    with pytest.raises(OSError, match="full"):  # of this machine, not of the store
        bucket._try("read", "x", failing(1, OSError(28, "full")))
    now = [0.0]  # a store that takes long to say no is not asked as often
    monkeypatch.setattr(object_store.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(object_store.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + 45))
    with pytest.raises(StoreFailed, match="does not answer"):
        bucket._try("read", "x", failing(99, busy))
    assert now[0] == 135, "the last attempt begins after 90 s and not later"


# -- a proxy between us and the store ------------------------------------------------------------------------------------
@pytest.fixture(params=["s3", "azure"])
def between(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[s3_faults.Proxy, str]]:
    """A proxy before a server of each kind, and the URI of a storage behind it."""
    uri = request.getfixturevalue(request.param)
    server: Any = s3_server if request.param == "s3" else azure_server
    with s3_faults.proxy(request.getfixturevalue(f"{request.param}_endpoint")) as proxy:
        server.environment(proxy.endpoint, tmp_path / "mirrors", monkeypatch.setenv)
        monkeypatch.setattr(object_store.time, "sleep", lambda seconds: None)
        yield proxy, canonical(uri)


def test_a_write_whose_answer_is_lost_is_known_as_ours(between: tuple[s3_faults.Proxy, str]) -> None:
    """The client sends it again, and the store refuses the second one."""
    proxy, uri = between
    bucket = Bucket(uri)

    def lose_one(method: str, path: str) -> str | None:
        return next(faults, None) if method == "PUT" else None

    tag = None
    for content in (b"1", b"2", b"2", b"3"):
        faults = iter(["lost"])
        proxy.fault = lose_one
        tag = bucket.replace("a/record", content, tag)
        assert bucket.read("a/record") == (content, tag)
    proxy.fault = lambda method, path: None
    with pytest.raises(Conflict):
        bucket.replace("a/record", b"3", None)
    assert proxy.spoiled == 4


@pytest.mark.parametrize("between", ["s3"], indirect=True)  # Azure's signature holds these headers
def test_a_store_that_ignores_conditions_is_refused(between: tuple[s3_faults.Proxy, str]) -> None:
    proxy, uri = between
    Store.open(uri).check(writes=True)
    for dropped in ({"if-none-match"}, {"if-match"}):
        proxy.dropped = dropped
        with pytest.raises(InputError, match="ignores or refuses conditional writes"):
            Store.open(uri).check(writes=True)
        Store.open(uri).check()
    proxy.dropped = set()
    assert not Bucket(uri).list_objects("", recursive=True)


def test_an_upload_that_is_killed_leaves_no_object(between: tuple[s3_faults.Proxy, str], tmp_path: Path) -> None:
    proxy, uri = between
    big = tmp_path / "big"
    big.write_bytes(os.urandom(20 << 20))  # three parts
    program = "import sys; from raysts.storage.store import *\nBucket(sys.argv[1]).upload(Path(sys.argv[2]), 'big')"
    process = subprocess.Popen([sys.executable, "-c", program, uri, str(big)])
    seen: list[str] = []

    def kill_at_the_second_part(method: str, path: str) -> None:
        if method == "PUT":
            seen.append(path)
            if len(seen) == 2:
                process.send_signal(signal.SIGKILL)

    proxy.fault = kill_at_the_second_part
    assert process.wait() == -9
    bucket = Bucket(uri)
    assert not bucket.entry("big") and not bucket.list_objects("")
    proxy.fault = lambda method, path: None
    bucket.upload(big, "big")
    bucket.download("big", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == big.read_bytes() and bucket.entry("big")
    for _ in range(2):
        bucket.delete("big")
    assert bucket.read("big") is None


def test_a_bucket_that_goes_while_it_is_written_to_is_said(between: tuple[s3_faults.Proxy, str]) -> None:
    _, uri = between
    gone = Bucket(re.sub("//[^/]*", "//no-such-bucket", uri))
    for write in (lambda: overwrite(gone, "a", b"1"), lambda: gone.replace("a", b"1", None)):
        with pytest.raises(StoreFailed, match="there is no bucket 'no-such-bucket'"):
            write()
    assert gone.read("a") is None


def test_an_interruption_ends_a_request_that_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        for name, value in s3_server.CREDENTIALS.items():
            monkeypatch.setenv(name, value)
        program = (
            "import sys; from raysts.storage.store import *\n"
            "try:\n    Bucket(canonical('s3://bucket/x'), seconds=900).read('a')\n"
            "except KeyboardInterrupt:\n    print('interrupted')"
        )
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        silent.accept()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=300)[0] == "interrupted\n" and process.returncode == 0


# -- credentials ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """The address of a store without objects, and who signed the requests to it."""
    signers: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            signed = re.search("Credential=([^/]*)/[^/]*/([^/]*)", self.headers.get("Authorization", ""))
            signers.append(" in ".join(signed.groups()) if signed else "nobody")
            content = b"<ListBucketResult></ListBucketResult>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_HEAD(self) -> None:
            self.send_response(403)
            self.send_header("x-amz-bucket-region", "eu-north-1")
            self.end_headers()

        def log_message(self, *rest: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}", signers
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("uri", "settings", "signer"), [
    ("s3://bucket/a", {"AWS_ACCESS_KEY_ID": "KEY", "AWS_SECRET_ACCESS_KEY": "x"}, "KEY in us-east-1"),
    ("s3://bucket/b", {"AWS_PROFILE": "work"}, "FROMPROFILE in us-east-1"),
    ("s3://bucket/c", {}, "FROMDEFAULT in us-east-1"),
    ("s3://bucket/d", {"AWS_PROFILE": "work", "AWS_ACCESS_KEY_ID": "KEY", "AWS_SECRET_ACCESS_KEY": "x"}, "KEY in us-east-1"),
    ("s3://bucket/e?region=eu-west-1", {"AWS_REGION": "us-west-2"}, "FROMDEFAULT in eu-west-1"),
    ("s3://bucket/f", {"AWS_DEFAULT_REGION": "us-west-2"}, "FROMDEFAULT in us-west-2"),
    ("s3://anonymous@bucket/g", {}, "nobody"),
])  # fmt: skip
def test_who_signs(
    uri: str, settings: dict[str, str], signer: str, asked: tuple[str, list[str]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The profile of single sign-on comes by the same way."""
    endpoint, signers = asked
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    keys = "[{}]\naws_access_key_id = {}\naws_secret_access_key = secret\n"
    (tmp_path / "credentials").write_text(keys.format("default", "FROMDEFAULT") + keys.format("work", "FROMPROFILE"))
    shared = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"), "AWS_CONFIG_FILE": str(tmp_path / "none")}
    for name, value in {**shared, **settings, "AWS_ENDPOINT_URL": f"http://{endpoint}"}.items():
        monkeypatch.setenv(name, value)
    Store.open(uri).check()
    assert signers == [signer]


def test_a_profile_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(InputError, match=r"AWS_PROFILE 'nobody': .*could not be found.*check ~/.aws/config"):
        Store.open("s3://bucket/x?region=us-east-1").check()


FEDERATED = {
    "type": "external_account", "audience": "a", "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
    "token_url": "http://127.0.0.1:1/token", "credential_source": {"file": "/dev/null"},
}  # fmt: skip


@pytest.mark.parametrize(("content", "why"), [
    ("", "GOOGLE_APPLICATION_CREDENTIALS: File .* was not found"),
    ("{", "GOOGLE_APPLICATION_CREDENTIALS: .*not a valid json file"),
    (json.dumps(FEDERATED), "there are no valid credentials; check GOOGLE_APPLICATION_CREDENTIALS"),
])  # fmt: skip
def test_google_takes_no_such_key(content: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if content:
        (tmp_path / "key.json").write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    with pytest.raises(InputError, match=why):
        Store.open(f"gs://{tmp_path.name[:60]}/x?endpoint_override=http://127.0.0.1:1").check()


def test_the_region_of_a_bucket_is_asked_for(asked: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "AMAZON", f"http://{asked[0]}")
    assert client._region("bucket") == "eu-north-1"
    monkeypatch.setattr(client, "AMAZON", "http://127.0.0.1:1")
    assert client._region("bucket") == "us-east-1"
