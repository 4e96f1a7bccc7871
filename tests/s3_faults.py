"""A proxy before an S3 server that answers badly when it is told to, and writes down what got through."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

FAULTS = ("unavailable", "slow", "lost", "cut", "refused")
"""503 and nothing done; done after SLOW; done and no answer; done and half of the answer; no answer and nothing done."""

SLOW = 0.5
"""Seconds."""

BUSY = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Request(NamedTuple):
    """What somebody asked for: when it was done (monotonic), what, how it was answered there and what was made of it."""

    at: float
    method: str
    path: str
    status: int
    fault: str | None


class Proxy:
    """``fault`` says what becomes of a request (method, path); ``log`` has those that reached the server.

    ``dropped`` are headers that it takes away, in lower case.
    """

    def __init__(self, target: str, fault: Callable[[str, str], str | None] = lambda method, path: None) -> None:
        self.target, self.fault = target, fault
        self.dropped: set[str] = set()
        self.log: list[Request] = []
        self.spoiled = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # an answer is one packet

            def do(self) -> None:
                with contextlib.suppress(OSError):
                    outer.answer(self)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do  # noqa: N815

            def handle_expect_100(self) -> bool:
                super().handle_expect_100()
                self.wfile.flush()
                return True

            def log_message(self, *rest: object) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *rest: object) -> None: ...

        self.server = Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"127.0.0.1:{self.server.server_address[1]}"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        method, path = handler.command, handler.path
        body = _body(handler)
        fault = self.fault(method, path)
        self.spoiled += fault is not None
        if fault == "refused":
            _close(handler)
            return
        if fault == "unavailable":
            handler.send_response(503)
            handler.send_header("Content-Length", str(len(BUSY)))
            handler.end_headers()
            handler.wfile.write(b"" if method == "HEAD" else BUSY)
            return
        if fault == "slow":
            time.sleep(SLOW)
        server = http.client.HTTPConnection(self.target, timeout=300)
        try:
            gone = {*HOPS, *self.dropped}
            headers = {name: value for name, value in handler.headers.items() if name.lower() not in gone}
            server.request(method, path, body=body, headers=headers)
            found = server.getresponse()
            content = found.read()
        finally:
            server.close()
        self.log.append(Request(time.monotonic(), method, path, found.status, fault))
        if fault == "lost":
            _close(handler)
            return
        handler.send_response_only(found.status)
        for name, value in found.getheaders():
            if name.lower() not in (*HOPS, "content-length"):
                handler.send_header(name, value)
        length = found.getheader("Content-Length") if method == "HEAD" else str(len(content))
        handler.send_header("Content-Length", length or "0")
        handler.end_headers()
        handler.wfile.write(content[: len(content) // 2] if fault == "cut" else content)
        if fault == "cut":
            handler.wfile.flush()
            _close(handler)


HOPS = ("connection", "transfer-encoding", "keep-alive", "expect")


def _body(handler: BaseHTTPRequestHandler) -> bytes:
    if handler.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    found = b""
    while size := int(handler.rfile.readline().split(b";")[0], 16):
        found += handler.rfile.read(size)
        handler.rfile.readline()
    while handler.rfile.readline().strip():
        pass
    return found


def _close(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    with contextlib.suppress(OSError):
        handler.connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxy(target: str, fault: Callable[[str, str], str | None] = lambda method, path: None) -> Iterator[Proxy]:
    """A proxy before the server at ``target`` (``host:port``); its address is ``endpoint``."""
    found = Proxy(target, fault)
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.server.shutdown()
        found.server.server_close()
