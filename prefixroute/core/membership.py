"""Who belongs to a router: an immutable snapshot, replaced whole when that changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from prefixroute.core.endpoint import Endpoint, normalise_url
from prefixroute.core.load import EndpointState
from prefixroute.core.ring import Ring
from prefixroute.errors import ConfigurationError, UnknownEndpointError

__all__ = ["Group", "Members", "check_endpoints"]

_SHOWN: Final = 10


class Group:
    """The members that may serve a model, of one tier, with their ring.

    Args:
        label: Names the group's traffic; stays the same when members come and go.
        states: Members with a positive weight.
        ring: Members are named on it by their index in ``states``.
    """

    __slots__ = ("label", "ring", "states", "weight")

    def __init__(self, label: tuple[int, str], states: Sequence[EndpointState], ring: Ring) -> None:
        self.label = label
        self.states = tuple(states)
        self.ring = ring
        self.weight = sum(state.endpoint.weight for state in states)

    def __len__(self) -> int:
        return len(self.states)


class Members:
    """All endpoints of a router, and the groups in which they serve models.

    Args:
        states: The members, in the order given.
        virtual_nodes: Of each ring, per unit of weight.
        seed: Of each ring.
    """

    __slots__ = ("_by_id", "_by_url", "_groups", "_seed", "_serving", "_virtual_nodes", "states")

    def __init__(self, states: Iterable[EndpointState], *, virtual_nodes: int, seed: int) -> None:
        self.states = tuple(states)
        self._virtual_nodes, self._seed = virtual_nodes, seed
        self._by_id = {state.endpoint.id: state for state in self.states}
        self._by_url = {state.endpoint.url: state for state in self.states}
        self._groups: dict[frozenset[str], tuple[Group, ...]] = {}
        self._serving: dict[str, frozenset[str]] = {"": self._serve("")}
        for endpoint in (state.endpoint for state in self.states):
            for model in endpoint.models or ():
                self._serving.setdefault(model, self._serve(model))
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
                f"no endpoint has the id or URL {name!r}; there are: {known}"
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

    def _serve(self, model: str) -> frozenset[str]:
        """Return the ids of those that may serve a model ("": one that nobody lists)."""
        weighty = [state.endpoint for state in self.states if state.endpoint.weight > 0]
        serving = [e.id for e in weighty if e.models is None or model in e.models]
        return frozenset(serving or (e.id for e in weighty))

    def _make(self, names: frozenset[str]) -> tuple[Group, ...]:
        # Named by the smallest of its models, so that its traffic outlives a change of members.
        model = min(model for model, serving in self._serving.items() if serving == names)
        serving = [state for state in self.states if state.endpoint.id in names]
        tiers = sorted({state.endpoint.tier for state in serving})
        return tuple(self._group(model, tier, serving) for tier in tiers)

    def _group(self, model: str, tier: int, serving: Iterable[EndpointState]) -> Group:
        # Sorted by id, so that nothing can depend on the order of the list.
        states = sorted(
            (state for state in serving if state.endpoint.tier == tier),
            key=lambda state: state.endpoint.id,
        )
        ring = Ring(
            [(state.endpoint.id, state.endpoint.weight) for state in states],
            virtual_nodes=self._virtual_nodes,
            seed=self._seed,
        )
        return Group((tier, model), states, ring)


def check_endpoints(endpoints: Iterable[Endpoint | str]) -> list[Endpoint]:
    """Return endpoints made of URLs and endpoints.

    Raises:
        ConfigurationError: None at all, two of the same id or URL, or none with a weight above 0.
    """
    if isinstance(endpoints, str | Endpoint | Mapping):
        raise ConfigurationError(
            f"endpoints={endpoints!r} must be a list of URLs or Endpoints; put it into [...]"
        )
    made = [item if isinstance(item, Endpoint) else Endpoint(item) for item in endpoints]
    if not made:
        raise ConfigurationError("endpoints=[] must name at least one endpoint")
    seen: dict[str, Endpoint] = {}
    for endpoint in made:
        for name in {endpoint.id, endpoint.url}:
            if name in seen:
                raise ConfigurationError(
                    f"endpoints {seen[name].url!r} and {endpoint.url!r} are the same ({name!r}): "
                    "each id and URL must be given once; remove one of them"
                )
        seen[endpoint.id] = seen[endpoint.url] = endpoint
    if not any(endpoint.weight > 0 for endpoint in made):
        raise ConfigurationError(
            "every endpoint has weight=0, so that nothing could be sent; give one a weight above 0"
        )
    return made
