"""A real name server on loopback, UDP and TCP, whose records a test changes as it goes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import dns.resolver
from dnslib import QTYPE, RCODE, RR, DNSError, DNSRecord
from dnslib.server import BaseResolver, DNSHandler, DNSLogger, DNSServer

__all__ = ["SILENT", "NameServer", "serving_names"]

SILENT: Final = "SILENT"
"""In place of an rcode: no answer at all."""
_LONGEST_UDP: Final = 512  # as without EDNS


class _Handler(DNSHandler):  # type: ignore[misc] # the library has no types
    def get_reply(self, data: bytes) -> bytes:
        """Truncate what is too long for UDP; the library's own way gets no answer out."""
        request = DNSRecord.parse(data)
        whole = bytes(self.server.resolver.resolve(request, self).pack())
        if self.protocol == "tcp" or len(whole) <= _LONGEST_UDP:
            return whole
        short = request.reply()
        short.header.tc = 1
        return bytes(short.pack())


class NameServer(BaseResolver):  # type: ignore[misc] # as above
    """Answers from its records; remembers what it was asked.

    ``records`` maps a name and a type to lines: ``"10.0.0.1"``, ``"0 10 8000 gpu-0.test."``.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.records: dict[tuple[str, str], list[str]] = {}
        self.extra: dict[tuple[str, str], list[str]] = {}  # sent along with every answer
        self.ttl = 1
        self.ttls: dict[str, int] = {}  # by type, where it is another
        self.failure: str | None = None  # an rcode for everything, or SILENT
        self.asked: list[tuple[str, str, str]] = []  # name, type, protocol
        self.port = 0

    def set(self, name: str, kind: str, *lines: str) -> None:
        with self.lock:
            self.records[name, kind] = list(lines)

    def delete(self, name: str) -> None:
        with self.lock:
            for key in [key for key in self.records if key[0] == name]:
                del self.records[key]

    @property
    def resolver(self) -> dns.resolver.Resolver:
        """One that asks this server, and has a search path."""
        made = dns.resolver.Resolver(configure=False)
        made.nameservers = ["127.0.0.1"]
        made.port = self.port
        made.search = [dns.name.from_text("default.svc.test.")]
        made.ndots = 5
        return made

    def resolve(self, request: Any, handler: Any) -> Any:
        name, kind = str(request.q.qname).rstrip(".").lower(), QTYPE[request.q.qtype]
        with self.lock:
            self.asked.append((name, kind, handler.protocol))
            if self.failure == SILENT:
                raise DNSError("no answer")
            reply = request.reply()
            if self.failure is not None:
                reply.header.rcode = getattr(RCODE, self.failure)
                return reply
            if not any(known == name for known, _ in self.records):
                reply.header.rcode = RCODE.NXDOMAIN
                return reply
            while ("CNAME", target := self.records.get((name, "CNAME"), [""])[0])[1]:
                reply.add_answer(*self._lines(name, "CNAME", [target]))
                name = target.rstrip(".")
            reply.add_answer(*self._lines(name, kind, self.records.get((name, kind), [])))
            for (known, what), lines in self.extra.items():
                reply.add_ar(*self._lines(known, what, lines))
            return reply

    def _lines(self, name: str, kind: str, lines: list[str]) -> list[RR]:
        text = "\n".join(
            f"{name}. {self.ttls.get(kind, self.ttl)} IN {kind} {line}" for line in lines
        )
        return list(RR.fromZone(text)) if text else []


@contextmanager
def serving_names() -> Iterator[NameServer]:
    made = NameServer()
    quiet = DNSLogger(logf=lambda _: None)
    servers = []
    for _ in range(20):  # the TCP port of that number may be somebody's
        udp = DNSServer(made, "127.0.0.1", 0, logger=quiet, handler=_Handler)
        made.port = udp.server.server_address[1]
        try:
            tcp = DNSServer(made, "127.0.0.1", made.port, tcp=True, logger=quiet, handler=_Handler)
        except OSError:
            udp.server.server_close()
            continue
        servers = [udp, tcp]
        break
    for server in servers:
        server.start_thread()
    try:
        yield made
    finally:
        for server in servers:
            server.stop()
            server.server.server_close()
            server.thread.join()
