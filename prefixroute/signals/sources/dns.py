"""``DnsSource``: the addresses of a name, or the targets of a service, as endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, Literal

from prefixroute.core.checks import check_number, need, refusal
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.urls import normalise_url
from prefixroute.errors import ConfigurationError, SourceUnavailable
from prefixroute.signals.sources.listing import (
    EndpointSettings,
    Listing,
    Reader,
    Source,
    check_address,
    check_settings,
    url_of,
)

if TYPE_CHECKING:
    from dns.resolver import Answer, Resolver

__all__ = ["DnsSource"]

_RECORDS: Final = ("A", "AAAA", "SRV")
_AT_ONCE: Final = 16
"""Targets of a service that are looked up at the same time, where the answer lacks addresses."""
_LONGEST_MESSAGE: Final = 200


@dataclass(frozen=True, slots=True)
class DnsSource(Source):
    """What a name stands for in DNS: each address an endpoint.

    A headless Kubernetes service is exactly this. With ``A`` and ``AAAA`` an endpoint's URL, which
    is also its id, has the address. With ``SRV`` its id has the *name* of the target, which for a
    StatefulSet outlives the pod: a pod that comes back with another address keeps its place on the
    ring. A target's priority becomes its tier; its weight counts relative to the smallest of them.

    The answer is asked for again when its TTL is over, within bounds. Truncated answers are fetched
    over TCP, CNAMEs followed, the resolver's search path used.

    Args:
        name: Such as ``gpu.default.svc.cluster.local``; for ``SRV`` it may start with
            ``_http._tcp.`` A trailing dot spares the search path.
        port: Of every endpoint; for ``SRV`` in place of the record's.
        record: ``"A"``, ``"AAAA"`` or ``"SRV"``.
        scheme: ``"http"`` or ``"https"``. With ``https`` the URLs of ``SRV`` targets have the name
            rather than the address, for that is what a certificate has.
        path: Of every URL.
        settings: Of every endpoint, such as ``{"api_key": key}``.
        resolver: Of dnspython; ``None``: as ``/etc/resolv.conf`` has it now.
        timeout_s: For one lookup with all its tries, seconds.
        min_ttl_s: An answer is believed for at least so long, seconds.
        max_ttl_s: And for at most so long.

    Raises:
        ConfigurationError: A value that cannot work, or the extra ``dns`` is missing.
    """

    name: str
    _: KW_ONLY
    port: int | None = field(default=None, repr=False)
    record: Literal["A", "AAAA", "SRV"] = "A"
    scheme: str = field(default="http", repr=False)
    path: str = field(default="/v1", repr=False)
    settings: EndpointSettings = field(default_factory=EndpointSettings, repr=False, hash=False)
    resolver: Resolver | None = field(default=None, repr=False, hash=False)
    timeout_s: float = field(default=5.0, repr=False)
    min_ttl_s: float = field(default=1.0, repr=False)
    max_ttl_s: float = field(default=60.0, repr=False)

    def __post_init__(self) -> None:
        """Check every field."""
        owner = "DnsSource"
        name: object = self.name
        if not isinstance(name, str) or not name or "/" in name or ":" in name:
            raise refusal(owner, "name", name, "a name in DNS, without scheme and port")
        if self.record not in _RECORDS:
            raise refusal(owner, "record", self.record, f"one of {', '.join(_RECORDS)}")
        check_address(owner, scheme=self.scheme, port=self.port, path=self.path)
        check_settings(owner, self.settings, scheme=self.scheme)
        check_number(owner, "timeout_s", self.timeout_s, above=True)
        check_number(owner, "min_ttl_s", self.min_ttl_s, above=True)
        check_number(owner, "max_ttl_s", self.max_ttl_s, at_least=self.min_ttl_s)
        if self.resolver is not None and not callable(getattr(self.resolver, "resolve", None)):
            raise refusal(owner, "resolver", self.resolver, "a dns.resolver.Resolver, or None")
        need(f"DnsSource({name!r})", "dns", "dnspython", "dns")

    def open(self) -> Reader:
        """Return what looks the name up."""
        return _Lookups(self)


class _Lookups(Reader):
    def __init__(self, source: DnsSource) -> None:
        self._source = source

    def read(self) -> Listing:
        source = self._source
        answer = self._ask(source.name, source.record)
        if answer is None:
            return Listing(endpoints=(), note="there is no such name (NXDOMAIN)")
        if answer.rrset is None:
            note = f"the name has no {source.record} record"
            return Listing(endpoints=(), note=note, again_in_s=self._within(_ttl(answer)))
        if source.record == "SRV":
            endpoints, ttl_s = self._targets(answer)
        else:
            endpoints = [self._at(address) for address in _addresses(answer.rrset)]
            ttl_s = _ttl(answer)
        return Listing(
            endpoints=tuple(endpoints),
            again_in_s=self._within(ttl_s),
            note="" if endpoints else "none of its targets has an address",
        )

    def _within(self, ttl_s: float) -> float:
        return min(max(ttl_s, self._source.min_ttl_s), self._source.max_ttl_s)

    def _ask(self, name: object, record: str) -> Answer | None:
        """Return the answer, of which the ``rrset`` may be ``None``; ``None``: no such name."""
        import dns.exception  # noqa: PLC0415 - an extra
        import dns.resolver  # noqa: PLC0415 - as above

        try:
            resolver = self._source.resolver or dns.resolver.Resolver()
            return resolver.resolve(
                name,  # type: ignore[arg-type]
                record,
                search=True,
                lifetime=self._source.timeout_s,
                raise_on_no_answer=False,
            )
        except dns.resolver.NXDOMAIN:
            return None
        except (dns.exception.DNSException, OSError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"[:_LONGEST_MESSAGE]
            raise SourceUnavailable(f"{record} of {name}: {why}") from None

    def _at(self, address: str) -> Endpoint:
        source = self._source
        url = url_of(source.scheme, address, source.port, source.path)
        return Endpoint(url, **source.settings)

    # -- services --------------------------------------------------------------

    def _targets(self, answer: Answer) -> tuple[list[Endpoint], float]:
        """Return an endpoint for each target that has an address, and the shortest TTL."""
        records = [record for record in answer.rrset or () if record.target.to_text() != "."]
        ttls = [_ttl(answer)]
        addresses: dict[Any, str | None] = dict.fromkeys(record.target for record in records)
        if self._source.scheme == "http":
            for rrset in answer.response.additional:
                if rrset.name in addresses and (found := list(_addresses(rrset))):
                    addresses[rrset.name] = min(found, key=_family_first)
                    ttls.append(rrset.ttl)
            missing = [target for target, address in addresses.items() if address is None]
            with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(missing)))) as threads:
                for target, (address, ttl_s) in zip(
                    missing, threads.map(self._address, missing), strict=True
                ):
                    addresses[target] = address
                    ttls.append(ttl_s)
            records = [record for record in records if addresses[record.target] is not None]
        unit = min((record.weight for record in records if record.weight > 0), default=1)
        made: dict[str, Endpoint] = {}
        for record in sorted(records, key=lambda r: (r.priority, -r.weight)):
            weight = record.weight / unit if any(r.weight for r in records) else 1.0
            endpoint = self._target(record, addresses[record.target], weight)
            made.setdefault(endpoint.id, endpoint)
        return list(made.values()), min(ttls)

    def _address(self, target: object) -> tuple[str | None, float]:
        """Return the address of a target, of several always the same, and its TTL."""
        for record in ("A", "AAAA"):
            answer = self._ask(target, record)
            if answer is not None and answer.rrset is not None:
                return min(_addresses(answer.rrset), key=_family_first), _ttl(answer)
        return None, self._source.max_ttl_s

    def _target(self, record: Any, address: str | None, weight: float) -> Endpoint:
        source = self._source
        name = record.target.to_text(omit_final_dot=True).lower()
        port = record.port if source.port is None else source.port
        known = normalise_url(url_of(source.scheme, name, port, source.path))
        url = known if address is None else url_of(source.scheme, address, port, source.path)
        settings: EndpointSettings = {"tier": record.priority, **source.settings}
        settings["weight"] = weight * source.settings.get("weight", 1.0)
        try:
            return Endpoint(url, id=known, **settings)
        except ConfigurationError as error:  # port 0, say
            raise SourceUnavailable(f"SRV of {source.name}: {error}") from None


def _ttl(answer: Answer) -> float:
    """Return how long all of an answer holds, with the CNAMEs that led to it."""
    return float(answer.chaining_result.minimum_ttl)


def _addresses(rrset: Iterable[Any]) -> Iterator[str]:
    """Yield the addresses among the records of a set, each once."""
    seen = set()
    for record in rrset:
        address = getattr(record, "address", None)
        if isinstance(address, str) and address not in seen:
            seen.add(address)
            yield address


def _family_first(address: str) -> tuple[int, int]:
    parsed = ip_address(address)
    return parsed.version, int(parsed)
