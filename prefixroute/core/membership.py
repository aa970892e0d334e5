"""Who belongs to a router: an immutable snapshot, replaced whole when that changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from prefixroute.core.endpoint import Endpoint
from prefixroute.core.load import EndpointState
from prefixroute.core.ring import Ring
from prefixroute.core.urls import normalise_url, shown_url
from prefixroute.errors import ConfigurationError, UnknownEndpointError

__all__ = ["Group", "Members", "check_endpoints"]

_SHOWN: Final = 10


class Group:
    """The members that may serve a model, of one tier, with their ring.

    Args:
        label: Names the group's traffic; stays the same when members come and go.
        states: Members with a positive weight.
        ring: Members are named on it by their index in ``states``.
        endpoints: Their endpoints, which are the states' as soon as the router takes the group.

    Attributes:
        weight: The sum of the weights.
        even: All have the same weight.
        limited: Some have a ``max_in_flight``.
        everyone: The indices of all.
        takes: Of each, what tells whether it takes a request now.
    """

    __slots__ = ("even", "everyone", "label", "limited", "ring", "states", "takes", "weight")

    def __init__(
        self,
        label: tuple[int, str],
        states: Sequence[EndpointState],
        ring: Ring,
        endpoints: Sequence[Endpoint],
    ) -> None:
        self.label = label
        self.states = tuple(states)
        self.ring = ring
        weights = [endpoint.weight for endpoint in endpoints]
        self.weight = sum(weights)
        self.even = len(set(weights)) == 1
        self.limited = any(endpoint.max_in_flight is not None for endpoint in endpoints)
        self.everyone = range(len(weights))
        self.takes = tuple([state.health.takes for state in self.states])

    def __len__(self) -> int:
        return len(self.states)


class Members:
    """All endpoints of a router, and the groups in which they serve models.

    Made outside the router's lock, while requests go on with the members before: it does not look
    at ``state.endpoint``, which becomes the new endpoint when the router takes these members.

    Args:
        members: Each endpoint with its accounting, in the order given.
        virtual_nodes: Of each ring, per unit of weight.
        seed: Of each ring.
        before: Those that these follow: rings are made of theirs.
    """

    __slots__ = (
        "_by_id", "_by_url", "_earlier", "_groups", "_rings", "_seed", "_serving", "_virtual_nodes",
        "endpoints", "states",
    )  # fmt: skip

    def __init__(
        self,
        members: Iterable[tuple[EndpointState, Endpoint]],
        *,
        virtual_nodes: int,
        seed: int,
        before: Members | None = None,
    ) -> None:
        pairs = tuple(members)
        self.states = tuple(state for state, _ in pairs)
        self.endpoints = tuple(endpoint for _, endpoint in pairs)
        self._virtual_nodes, self._seed = virtual_nodes, seed
        self._by_id = {endpoint.id: state for state, endpoint in pairs}
        self._by_url = {endpoint.url: state for state, endpoint in pairs}
        self._groups: dict[frozenset[str], tuple[Group, ...]] = {}
        self._rings: dict[tuple[int, str], Ring] = {}  # by the group's label
        self._earlier = {} if before is None else dict(before._rings)  # noqa: SLF001 - same class
        self._serving: dict[str, frozenset[str]] = {"": self._serve("")}
        for endpoint in self.endpoints:
            for model in endpoint.models or ():
                if model not in self._serving:
                    self._serving[model] = self._serve(model)
        self.groups(None)

    def find(self, name: str) -> EndpointState:
        """Return the member with this id, or with any spelling of its URL.

        Raises:
            UnknownEndpointError: There is none.
        """
        state = self._by_id.get(name)
        if state is None:
            try:
                state = self._by_url.get(normalise_url(name))
            except ConfigurationError:
                state = None
        if state is None:
            known = ", ".join(repr(id_) for id_ in list(self._by_id)[:_SHOWN])
            raise UnknownEndpointError(
                f"no endpoint has the id or URL {_shown(name)!r}; there are: {known}"
            )
        return state

    def groups(self, model: str | None) -> tuple[Group, ...]:
        """Return the groups that may serve a model, lowest tier first; never empty.

        A model that no endpoint lists may be served by those that list none; if there are none of
        these either, by all: the engine knows better than a list how to refuse it.
        """
        names = self._serving.get(model or "") or self._serving[""]
        found = self._groups.get(names)
        if found is None:  # outside the lock: a racing thread at worst makes an equal one
            found = self._groups[names] = self._make(names)
        return found

    @property
    def labels(self) -> frozenset[tuple[int, str]]:
        """The names of all groups."""
        serving = set(self._serving)
        return frozenset(group.label for model in serving for group in self.groups(model))

    def _serve(self, model: str) -> frozenset[str]:
        """Return the ids of those that may serve a model ("": one that nobody lists)."""
        weighty = [endpoint for endpoint in self.endpoints if endpoint.weight > 0]
        serving = [e.id for e in weighty if e.models is None or model in e.models]
        return frozenset(serving or (e.id for e in weighty))

    def _make(self, names: frozenset[str]) -> tuple[Group, ...]:
        # Named by the smallest of its models, so that its traffic outlives a change of members.
        model = min(model for model, serving in self._serving.items() if serving == names)
        # Sorted by id, so that nothing can depend on the order of the list.
        serving = sorted((e for e in self.endpoints if e.id in names), key=lambda e: e.id)
        tiers = sorted({endpoint.tier for endpoint in serving})
        return tuple(
            self._group(model, tier, [e for e in serving if e.tier == tier]) for tier in tiers
        )

    def _group(self, model: str, tier: int, serving: Sequence[Endpoint]) -> Group:
        ring = Ring(
            [(endpoint.id, endpoint.weight) for endpoint in serving],
            virtual_nodes=self._virtual_nodes,
            seed=self._seed,
            before=self._earlier.pop((tier, model), None),
        )
        self._rings[tier, model] = ring
        states = [self._by_id[endpoint.id] for endpoint in serving]
        return Group((tier, model), states, ring, serving)


def _shown(name: object) -> object:
    return shown_url(name) if "://" in str(name) else name


@lru_cache(maxsize=2048)
def _of_url(url: str) -> Endpoint:
    """Return a URL's endpoint; remembered, for discovery hands in the same URLs again and again."""
    return Endpoint(url)


def _made_of(item: str) -> Endpoint:
    """Return the endpoint of what should be a URL; anything else is refused with its reason."""
    return _of_url(item) if type(item) is str else Endpoint(item)


def check_endpoints(endpoints: Iterable[Endpoint | str]) -> list[Endpoint]:
    """Return endpoints made of URLs and endpoints.

    Raises:
        ConfigurationError: None at all, two of the same id or URL, or none with a weight above 0.
    """
    if isinstance(endpoints, str | bytes | Endpoint | Mapping) or not isinstance(
        endpoints, Iterable
    ):
        shown = type(endpoints).__name__  # a URL may hold a password
        raise ConfigurationError(
            f"endpoints: a {shown} was given, it must be a list of URLs or Endpoints; "
            "put them into [...]"
        )
    made = [item if isinstance(item, Endpoint) else _made_of(item) for item in endpoints]
    if not made:
        raise ConfigurationError("endpoints=[] must name at least one endpoint")
    seen: dict[str, Endpoint] = {}
    for endpoint in made:
        for name in {endpoint.id, endpoint.url}:
            if name in seen:
                raise ConfigurationError(
                    f"endpoints {seen[name].id!r} and {endpoint.id!r} are the same "
                    f"({_shown(name)!r}): "
                    "each id and URL must be given once; remove one of them"
                )
        seen[endpoint.id] = seen[endpoint.url] = endpoint
    if not any(endpoint.weight > 0 for endpoint in made):
        raise ConfigurationError(
            "every endpoint has weight=0, so that nothing could be sent; give one a weight above 0"
        )
    return made
