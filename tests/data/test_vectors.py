import hashlib
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from run_commands import listening

from raysts.cli import execute
from raysts.data.fetch import fetch
from raysts.data.vectors import ALONE, VECTORS
from raysts.errors import InputError

WORDS = {dimensions: f"the {'0.5 ' * dimensions}\nof {'1.5 ' * dimensions}\n" for dimensions in (50, 100, 200, 300)}


class Server:
    """A web server with one file, which knows ranges, and may break off."""

    def __init__(self, content: bytes) -> None:
        self.content, self.asked, self.sends, self.ranges = content, [], len(content), True  # type: ignore[var-annotated]
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                wanted = self.headers.get("Range") if owner.ranges else None
                owner.asked.append(wanted)
                first = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
                if self.path != "/glove.6B.zip" or first >= len(owner.content):
                    self.send_error(404 if self.path != "/glove.6B.zip" else 416)
                    return
                self.send_response(206 if wanted else 200)
                self.send_header("Content-Length", str(len(owner.content) - first))
                self.end_headers()
                self.wfile.write(owner.content[first : first + owner.sends])

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/glove.6B.zip"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "copy/glove.6B.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as files:
        for dimensions, text in WORDS.items():
            files.writestr(f"glove.6B.{dimensions}d.txt", text)
    return path


@pytest.fixture
def server(archive: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server(archive.read_bytes())
    digest = hashlib.sha256(server.content).hexdigest()
    for name, known in VECTORS.items():
        monkeypatch.setitem(VECTORS, name, replace(known, url=server.url, sha256=digest))
    yield server
    server.http.shutdown()
    server.http.server_close()


def test_vectors_are_downloaded_once_unpacked_and_the_archive_removed(server: Server, tmp_path: Path) -> None:
    lines: list[str] = []
    with listening(lines.append):
        found = fetch(tmp_path / "data", ["words"])["tables"]
    small = [name for name in VECTORS if name != ALONE]  # nobody asked for 2 GB more
    assert {name: entry["status"] for name, entry in found.items()} == dict.fromkeys(small, "fetched")
    for dimensions, text in WORDS.items():
        assert Path(found[f"words/glove.6B.{dimensions}d"]["file"]).read_text() == text
    assert server.asked == [None]
    left = {path.name for path in (tmp_path / "data/words").iterdir()}
    assert left == {f"glove.6B.{dimensions}d.txt" for dimensions in WORDS}
    assert any("of " in line and server.url in line for line in lines)
    again = fetch(tmp_path / "data", ["words/glove.6B.50d"])["tables"]
    assert again["words/glove.6B.50d"]["status"] == "present" and len(server.asked) == 1


def test_a_download_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.sends = 300
    name = "words/glove.6B.300d"
    with pytest.raises(RuntimeError, match=r"ended after 300 of .*goes on where it stopped.*--source"):
        fetch(tmp_path, [name])
    assert [path.name for path in (tmp_path / "words").iterdir()] == ["glove.6B.zip.part"]
    server.sends = len(server.content)
    assert Path(fetch(tmp_path, [name])["tables"][name]["file"]).read_text() == WORDS[300]
    assert server.asked == [None, "bytes=300-"]


def test_a_server_without_ranges_and_a_part_that_is_whole(server: Server, tmp_path: Path) -> None:
    name, part = "words/glove.6B.50d", tmp_path / "words/glove.6B.zip.part"
    part.parent.mkdir()
    part.write_bytes(b"from another time")
    server.ranges = False
    assert fetch(tmp_path, [name])["tables"][name]["status"] == "fetched"
    (tmp_path / f"{name}.txt").unlink()
    part.write_bytes(server.content)
    server.ranges = True
    assert fetch(tmp_path, [name])["tables"][name]["status"] == "fetched"


def test_another_file_than_expected_is_refused(server: Server, tmp_path: Path) -> None:
    server.content = server.content[:-1] + b"x"
    with pytest.raises(RuntimeError, match=r"SHA-256 [0-9a-f]{64}, expected [0-9a-f]{64}"):
        fetch(tmp_path, ["words/glove.6B.50d"])
    assert not list((tmp_path / "words").iterdir()), "the next run starts afresh"


def test_without_a_network_the_exit_code_is_3(server: Server, tmp_path: Path, capsys: Any) -> None:
    server.http.shutdown()
    server.http.server_close()
    code = execute(["data", "fetch", "--data", str(tmp_path / "data"), "--tables", "words/glove.6B.50d"])
    said = capsys.readouterr().err
    assert code == 3 and "check the network" in said and "--source FOLDER" in said and "Traceback" not in said


def test_a_local_copy(server: Server, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest by its own name."""
    largest = archive.with_name("glove.840B.300d.zip")
    with zipfile.ZipFile(largest, "w") as files:
        files.writestr("glove.840B.300d.txt", WORDS[300])
    url, digest = server.url.replace("6B", "840B.300d"), hashlib.sha256(largest.read_bytes()).hexdigest()
    monkeypatch.setitem(VECTORS, ALONE, replace(VECTORS[ALONE], url=url, sha256=digest))
    for name, dimensions in (("words/glove.6B.100d", 100), (ALONE, 300)):
        found = fetch(tmp_path / "data", [name], source=archive.parent)["tables"]
        assert [*found] == [name] and Path(found[name]["file"]).read_text() == WORDS[dimensions]
    assert not server.asked and archive.is_file()
    with pytest.raises(InputError, match=r"does not hold glove.6B.zip"):
        fetch(tmp_path / "other", ["words/glove.6B.100d"], source=tmp_path)
    assert not (tmp_path / "other").exists()
