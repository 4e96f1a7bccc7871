"""An S3 server of a test session's own, and the environment in which raysts finds it."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from ports import free_ports, listening

SERVE = """
import io, logging, sys, threading
from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

logging.getLogger("werkzeug").setLevel("ERROR")  # it writes a line for each request
api = create_backend_app("moto_api")
one = threading.Lock()  # moto looks at the condition of a write, then writes: in a store that is one step

class Handler(MotoRequestHandler):
    # werkzeug's own makes a connection and a thread for each request
    protocol_version, wbufsize = "HTTP/1.1", -1

    def run_wsgi(self):
        if self.headers.get("Expect"):
            self.wfile.write(b"HTTP/1.1 100 Continue\\r\\n\\r\\n")
            self.wfile.flush()
        environ = self.make_environ()
        size = -1 if "wsgi.input_terminated" in environ else int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(size))

        def start_response(status, headers, exc_info=None):
            self.send_response(int(status[:3]), status[4:])
            for name, value in headers:
                self.send_header(name, value)
            self.sized = any(name.lower() == "content-length" for name, _ in headers)

        with one:
            parts = (api if self.path.startswith("/moto-api/") else self.server.app)(environ, start_response)
            body = b"".join(parts)
            parts.close()
        if not self.sized:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

run_simple("127.0.0.1", int(sys.argv[1]), create_backend_app("s3"), threaded=True, request_handler=Handler)
"""
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing-secret", "AWS_REGION": "us-east-1"}


@contextlib.contextmanager
def server(log: Path) -> Iterator[str]:
    """A moto server in a process of its own; its ``host:port``."""
    (port,) = free_ports(1)
    with listening([sys.executable, "-c", SERVE, str(port)], port, log) as endpoint:
        yield endpoint


def environment(endpoint: str, mirrors: Path, setenv: Callable[[str, str], None]) -> None:
    """Say in the environment where the server is and how to get in."""
    found = {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://{endpoint}", "RAYSTS_MIRROR": str(mirrors)}
    for name, value in found.items():
        setenv(name, value)


def new_bucket() -> str:
    """A bucket that nobody else uses; the environment says where."""
    name = f"bucket-{secrets.token_hex(4)}"
    urllib.request.urlopen(urllib.request.Request(f"{os.environ['AWS_ENDPOINT_URL']}/{name}", method="PUT")).close()
    return name
