"""The lives of endpoints: each is compared with a model of its health, told by hand."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from prefixroute.core.decision import Reason
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.health import HealthPolicy, HealthState
from prefixroute.core.lease import Lease
from prefixroute.core.load import EndpointState
from prefixroute.core.nested import Nested
from prefixroute.core.placement import Placement
from prefixroute.core.router import RouterCore

from ..core.support import blocks

POLICY = HealthPolicy(failures=2, error_rate=None, jitter=0.0, warm_up_s=16.0, probe_every_s=5.0)

names = st.sampled_from(["a", "b", "c", "d"])
places = st.integers(0, 50)


class TattlingLock:
    """A lock that does not hang when its own thread takes it again, but remembers that it did."""

    def __init__(self) -> None:
        self.taken_twice = False
        self._lock = threading.RLock()
        self._depth = 0

    def acquire(self) -> None:
        self._lock.acquire()
        self._depth += 1
        self.taken_twice = self.taken_twice or self._depth > 1

    def release(self) -> None:
        self._depth -= 1
        self._lock.release()


class LitteredClock:
    """A clock that the router asks inside its lock, where it lets go of what was left to it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.litter: list[Lease] = []
        self.router: RouterCore | None = None

    def __call__(self) -> float:
        if self.router is not None and self.router.in_lock:
            self.litter.clear()  # a collection at a bad moment: finalizers run here
        return self.now


class ReadTimeout(Exception):  # noqa: N818 - the libraries' name
    """Somebody was there, and did not answer in time."""


@dataclass(slots=True)
class Life:
    """What an endpoint's health must be."""

    draining: bool = False
    failures: int = 0
    silences: int = 0  # of these, those without any answer
    ejections: int = 0
    ejected_until: float | None = None
    cooling_until: float = -math.inf
    warm_from: float = -math.inf
    warm_until: float = -math.inf
    silent: bool = False  # ejected for no answer at all, or silent to a probe since
    probe: int = 0
    in_flight: int = 0
    failed: int = 0

    def state(self, now: float) -> HealthState:
        if self.draining:
            return HealthState.DRAINING
        if self.ejected_until is not None:
            return HealthState.PROBING if self.probe else HealthState.EJECTED
        return HealthState.COOLING if now < self.cooling_until else HealthState.HEALTHY

    def due(self, now: float) -> bool:
        return self.ejected_until is not None and now >= self.ejected_until and not self.probe

    def waits_for_its_probe(self) -> bool:
        return self.ejected_until is not None and self.ejected_until < math.inf and not self.probe

    def takes(self, now: float) -> bool:
        state = self.state(now)
        well = state is HealthState.HEALTHY or (state is HealthState.EJECTED and self.due(now))
        return well and now >= self.cooling_until

    def may_take_more(self, now: float, mean: float) -> bool:
        """Whether one that warms up has not got its part of the requests yet."""
        if now >= self.warm_until:
            return True
        warmth = (now - self.warm_from) / (self.warm_until - self.warm_from)
        return self.in_flight < max(1.0, mean * warmth)

    def readmitted(self, now: float) -> None:
        self.ejected_until, self.probe, self.ejections = None, 0, 0
        self.failures = self.silences = 0
        self.warm_from, self.warm_until = now, now + POLICY.warm_up_s

    def fail(self, now: float, serial: int, *, silent: bool, own: bool = False) -> None:
        self.failures += 1
        self.silences += silent
        self.failed += 1
        if serial and serial == self.probe:
            self.probe = 0
        elif self.ejected_until is not None or self.failures < POLICY.failures:
            self.silent = self.silent or own
            return
        self.ejections += 1
        self.silent = silent
        length = POLICY.eject_for_s * 2 ** (self.ejections - 1)
        self.ejected_until = now + min(POLICY.max_eject_for_s, length)

    def cool(self, now: float, seconds: float) -> None:
        self.cooling_until = max(self.cooling_until, now + seconds)

    def says_nothing(self, serial: int) -> None:
        if serial == self.probe:
            self.probe = 0


class LifeMachine(RuleBasedStateMachine):
    """Endpoints fail, cool, are ejected, probed and readmitted, drain, leave and come back."""

    placement: Placement = Nested(virtual_nodes=8)

    def __init__(self) -> None:
        super().__init__()
        self.clock = LitteredClock()
        self.now = self.clock.now  # stands still while the clock goes back
        self.router = RouterCore(
            ["http://a", "http://b", "http://c"],
            placement=self.placement,
            health=POLICY,
            clock=self.clock,
            wall_clock=lambda: 0.0,
            seed=0,
        )
        self.lock = TattlingLock()
        self.router._lock = self.lock  # type: ignore[assignment]
        self.clock.router = self.router
        self.lives: dict[EndpointState, Life] = {s: Life() for s in self.members}
        self.open: dict[int, tuple[Lease, Life]] = {}
        self.failed: set[int] = set()
        self.probes: set[int] = set()  # requests that were one when they were sent
        self.ended: list[Lease] = []
        self.serial = 0

    @initialize(ejected=st.sets(names), count=st.integers(0, 5))
    def start(self, ejected: set[str], count: int) -> None:
        """Begin where it takes many steps to come to: some are ejected, and due for a probe."""
        for name in sorted(ejected):
            self.knock_out(name)
        self.wait(POLICY.eject_for_s)
        self.acquire(count, 1, set())

    @property
    def members(self) -> tuple[EndpointState, ...]:
        return self.router._members.states

    def life(self, name: str) -> Life | None:
        for state in self.members:
            if state.endpoint.url == f"http://{name}/v1":
                return self.lives[state]
        return None

    def any_open(self, at: int) -> tuple[int, Lease, Life]:
        serial = sorted(self.open)[at % len(self.open)]
        return serial, *self.open[serial]

    # -- requests

    @precondition(lambda self: len(self.open) < 20)
    @rule(count=st.integers(1, 5), key=st.integers(1, 4), excluded=st.sets(names, max_size=1))
    def acquire(self, count: int, key: int, excluded: set[str]) -> None:
        for _ in range(count):
            self.acquire_one(key, excluded)

    def acquire_one(self, key: int, excluded: set[str]) -> None:
        now = self.now
        lives = [self.lives[state] for state in self.members]
        out = [self.life(name) for name in excluded]
        asked = [life for life in lives if not any(life is one for one in out)]
        if not asked:
            return
        able = [life for life in asked if life.takes(now)]
        mean = (sum(life.in_flight for life in lives) + 1) / len(lives)
        warm = [life for life in able if life.may_take_more(now, mean)]
        lease = self.router.acquire(blocks(key), exclude=[f"http://{n}" for n in excluded])
        chosen = self.lives[lease._loan.state]
        staying = [life for life in asked if not life.draining]
        expected = warm or able or staying or asked
        assert any(chosen is life for life in expected)
        assert (lease.decision.reason is Reason.PANIC) == (not able)
        self.serial += 1
        if chosen.due(now) or (chosen.waits_for_its_probe() and not able):
            chosen.probe = self.serial
            self.probes.add(self.serial)
        chosen.in_flight += 1
        self.open[self.serial] = (lease, chosen)

    @precondition(lambda self: self.open)
    @rule(at=places, cached=st.sampled_from([None, 100]))
    def first_token(self, at: int, cached: int | None) -> None:
        self.any_open(at)[1].first_token(cached)

    @precondition(lambda self: self.open)
    @rule(at=places, how=st.sampled_from([OSError(), OSError(), ReadTimeout(), 500, 502, 400, 501]))
    def fail(self, at: int, how: Exception | int) -> None:
        serial, lease, life = self.any_open(at)
        error, status = (None, how) if isinstance(how, int) else (how, None)
        lease.failed(error, status)
        if status not in (400, 501) and serial not in self.failed:
            self.failed.add(serial)
            life.fail(self.now, serial, silent=isinstance(error, OSError))

    @precondition(lambda self: self.open)
    @rule(
        at=places,
        status=st.sampled_from([429, 503]),
        asked_s=st.sampled_from([None, -5.0, 0.5, 8.0, 60.0, 9999.0]),
    )
    def refuse(self, at: int, status: int, asked_s: float | None) -> None:
        serial, lease, life = self.any_open(at)
        lease.failed(status=status, retry_after_s=asked_s)
        if serial not in self.failed:
            self.failed.add(serial)
            seconds = POLICY.cool_for_s if asked_s is None else asked_s
            life.cool(self.now, min(max(0.0, seconds), POLICY.max_cool_for_s))
            life.says_nothing(serial)

    @precondition(lambda self: self.open)
    @rule(at=places, how=st.sampled_from(["release", "release", "abandon", "drop", "drop in lock"]))
    def end(self, at: int, how: str) -> None:
        serial, lease, life = self.any_open(at)
        del self.open[serial]
        life.in_flight -= 1
        if how == "release" and serial not in self.failed:
            life.failures = life.silences = 0
            if serial == life.probe:
                life.readmitted(self.now)
        life.says_nothing(serial)
        if how == "drop in lock":
            self.clock.litter.append(lease)
        elif how != "drop":
            getattr(lease, how)()
            self.ended = [*self.ended[-3:], lease]

    @precondition(lambda self: self.ended)
    @rule(at=places, how=st.sampled_from(["release", "abandon", "first_token", "fail", "refuse"]))
    def late(self, at: int, how: str) -> None:
        """What comes after the end changes nothing."""
        lease = self.ended[at % len(self.ended)]
        if how in ("fail", "refuse"):
            lease.failed(status=500 if how == "fail" else 503, retry_after_s=60.0)
        else:
            getattr(lease, how)()

    # -- endpoints

    @rule(name=names, status=st.sampled_from([None, 200, 200, 404, 500, 503]))
    def probed(self, name: str, status: int | None) -> None:
        """The router's own probe; also of one that has left meanwhile."""
        life = self.life(name)
        self.router.probed(Endpoint(f"http://{name}"), status)
        if life is None:
            return
        if status is not None and status < 500:
            life.failures, life.silences = life.failures - life.silences, 0
            ejected = life.ejected_until is not None and life.ejected_until < math.inf
            if ejected and life.silent:
                life.readmitted(self.now)
        elif status == 503:
            life.cool(self.now, 2 * 5.0)
        else:
            life.fail(self.now, 0, silent=True, own=True)

    @precondition(lambda self: self.open)
    @rule(at=places, asked_s=st.permutations([0.5, 8.0, 60.0]))
    def refuse_all(self, at: int, asked_s: list[float]) -> None:
        """Requests at one endpoint are refused together, with a wait for each."""
        _, _, busy = self.any_open(at)
        there = [n for n, (_, life) in self.open.items() if life is busy and n not in self.failed]
        for serial, wait_s in zip(sorted(there), asked_s, strict=False):
            self.refuse(sorted(self.open).index(serial), 503, wait_s)

    @rule(name=names)
    def knock_out(self, name: str) -> None:
        for _ in range(POLICY.failures):
            self.probed(name, None)

    @precondition(lambda self: self.open_probes())
    @rule(
        at=places,
        first=st.sampled_from([None, "eject", "readmit", "answer"]),
        how=st.sampled_from(["release", "abandon", "fail", "fail", "refuse"]),
    )
    def end_probe(self, at: int, first: str | None, how: str) -> None:
        """A request to an ejected endpoint ends, maybe after something else was decided there."""
        some = self.open_probes()
        serial = some[at % len(some)]
        place, life = sorted(self.open).index(serial), self.open[serial][1]
        for state in self.members:
            if self.lives[state] is life and first is not None:
                name = state.endpoint.url.removeprefix("http://").removesuffix("/v1")
                self.probed(name, 200) if first == "answer" else self.change(name, first)
        if how == "fail":
            self.fail(place, OSError())
        elif how == "refuse":
            self.refuse(place, 503, 0.5)
        else:
            self.end(place, how)

    def open_probes(self) -> list[int]:
        return sorted(self.probes.intersection(self.open))

    @rule(name=names, how=st.sampled_from(["eject", "eject", "readmit", "readmit", "start_drain"]))
    def change(self, name: str, how: str) -> None:
        life = self.life(name)
        if life is None:
            return
        getattr(self.router, how)(f"http://{name}")
        if how == "start_drain":
            life.draining = True
        elif how == "eject":
            life.ejected_until, life.probe = math.inf, 0
        else:
            if life.ejected_until is not None:
                life.readmitted(self.now)
            life.failures = life.silences = life.ejections = life.probe = 0
            life.cooling_until, life.draining = -math.inf, False

    @rule(wanted=st.sets(names, min_size=1))
    def reload(self, wanted: set[str]) -> None:
        self.router.set_endpoints([f"http://{name}" for name in sorted(wanted)])
        self.notice()

    @rule(name=names)
    def leave_and_come_back(self, name: str) -> None:
        """Under the same URL, while leases of the old one are open."""
        if self.life(name) is not None and len(self.members) > 1:
            self.router.remove(f"http://{name}")
        if self.life(name) is None:
            self.router.add(f"http://{name}")
        self.notice()

    def notice(self) -> None:
        for state in self.members:
            if state not in self.lives:
                self.lives[state] = life = Life()
                life.warm_from, life.warm_until = self.now, self.now + POLICY.warm_up_s

    @precondition(lambda self: any(self.lives[s].waits_for_its_probe() for s in self.members))
    @rule()
    def wait_for_a_probe(self) -> None:
        until = [self.lives[s].ejected_until for s in self.members]
        first = min(at for at in until if at is not None)
        if first < math.inf:
            self.wait(max(0.0, first - self.now))

    @rule(seconds=st.sampled_from([0.5, 2.0, 16.0, 16.0, 32.0, 512.0, -0.5, -4096.0]))
    def wait(self, seconds: float) -> None:
        """Also backwards."""
        self.clock.now += seconds
        self.now += max(0.0, seconds)

    # -- what must always hold

    @invariant()
    def everybody_is_as_the_model_says(self) -> None:
        stats = self.router.stats()
        for endpoint, state in zip(stats.endpoints, self.members, strict=True):
            life = self.lives[state]
            assert endpoint.state is life.state(self.now)
            assert endpoint.failures == life.failed
            if life.ejected_until is not None:
                assert state.health.ejected_until == life.ejected_until
        assert all(state.in_flight == life.in_flight for state, life in self.lives.items())
        assert stats.in_flight == sum(self.lives[state].in_flight for state in self.members)

    @invariant()
    def the_lock_is_taken_once(self) -> None:
        assert not self.lock.taken_twice

    def teardown(self) -> None:
        for lease, _ in self.open.values():
            lease.release()
        assert self.router.stats().in_flight == 0
