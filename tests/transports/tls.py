"""A TLS server on loopback that tells what it was asked, and the certificates for it."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import trustme

__all__ = ["Server", "serve_tls", "trusting"]

_BODY = b'{"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": []}'


class Server(ThreadingHTTPServer):
    """Keeps, for each request, the name on the client's certificate (``None``: it showed none)."""

    daemon_threads = True

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.context = context
        self.seen: list[str | None] = []
        self.refused = 0  # handshakes

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server_port}/v1"

    def finish_request(self, request: Any, client_address: Any) -> None:
        try:
            wrapped = self.context.wrap_socket(request, server_side=True)
        except OSError:
            self.refused += 1
            return
        super().finish_request(wrapped, client_address)
        wrapped.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that refuse a certificate are what the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        shown: Any = self.connection.getpeercert()
        names = [value for kind, value in shown["subjectAltName"]] if shown else [None]
        self.server.seen.append(names[0])
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(_BODY)))
        self.end_headers()
        self.wfile.write(_BODY)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serve_tls(ca: trustme.CA, *, clients_of: trustme.CA | None = None) -> Iterator[Server]:
    """Serve with a certificate of ``ca``; demand one of ``clients_of`` of each client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    if clients_of is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        clients_of.configure_trust(context)
    server = Server(context)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def trusting(ca: trustme.CA, shown: trustme.LeafCert | None = None) -> ssl.SSLContext:
    """Return a client's context that trusts only ``ca`` and shows a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ca.configure_trust(context)
    if shown is not None:
        shown.configure_cert(context)
    return context
