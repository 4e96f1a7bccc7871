"""Text of the hub (``hf://OWNER/NAME``), from a server that stands in for it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytestmark = pytest.mark.whole


TEXTS = ["A first, text", "", 'He said "no"', "Über uns"]
CONTENT = "".join(json.dumps({"id": i, "body": text}) + "\n" for i, text in enumerate(TEXTS)).encode()
FILE, SHA = "train.jsonl", "0123456789abcdef0123456789abcdef01234567"

READ = """
import sys
from raysts.data.user import UserData, open_text
from raysts.errors import InputError
own = UserData.of(text="hf://owner/docs", column="body")
text = own.open()["wikipedia/sentences"]
print(text.title, text.rows, text.scan.empty)
print([t for batch in text.batches() for t in batch.column(0).to_pylist()])
print(text.fingerprint == open_text(sys.argv[1], "body").fingerprint)
for where, column in (("hf://owner/nothing", "body"), ("hf://owner/docs", "bodi")):
    try:
        open_text(where, column)
    except InputError as error:
        print(str(error).replace("\\n", " "))
"""


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as a data set of one file asks of it."""

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._json([self._file()] if "/api/datasets/owner/docs/paths-info/" in self.path else [])

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/datasets/owner/docs/tree/"):
            self._json([self._file()])
        elif path.startswith("/api/datasets/owner/docs"):
            dates = dict.fromkeys(("lastModified", "createdAt"), "2026-01-01T00:00:00.000Z")
            known = {"id": "owner/docs", "_id": "1", "sha": SHA, "private": False, "gated": False, "disabled": False}
            self._json({**known, **dates, "tags": [], "siblings": [{"rfilename": FILE}], "downloads": 0, "likes": 0})
        elif path == f"/datasets/owner/docs/resolve/{SHA}/{FILE}":
            self._answer(CONTENT, {"ETag": f'"{self._file()["oid"]}"', "X-Repo-Commit": SHA})
        else:
            missing = "EntryNotFound" if "/owner/docs/" in path else "RepoNotFound"
            self._answer(b"{}", {"X-Error-Code": missing, "X-Error-Message": "not there"}, 404)

    def _file(self) -> dict[str, object]:
        return {"type": "file", "path": FILE, "size": len(CONTENT), "oid": hashlib.sha1(CONTENT).hexdigest()}

    def _json(self, found: object) -> None:
        self._answer(json.dumps(found).encode(), {"Content-Type": "application/json"})

    def _answer(self, body: bytes, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def test_text_of_the_hub(tmp_path: Path) -> None:
    """It is what the same rows in a file are; what is not there is said."""
    pytest.importorskip("datasets")
    (tmp_path / "here.jsonl").write_bytes(CONTENT)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {
        **os.environ,
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",  # read when the libraries are imported
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "0",
        "HF_DATASETS_OFFLINE": "0",
    }
    try:
        command = [sys.executable, "-c", READ, str(tmp_path / "here.jsonl")]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    finally:
        server.shutdown()
    assert ended.returncode == 0, ended.stderr
    counts, texts, same, absent, column = ended.stdout.splitlines()
    assert counts == "docs 3 1" and texts == str([text for text in TEXTS if text]) and same == "True"
    assert "hf://owner/nothing: the data set cannot be read" in absent and "check its name" in absent
    assert "hf://owner/docs: column 'bodi' is missing" in column and "did you mean 'body'" in column
