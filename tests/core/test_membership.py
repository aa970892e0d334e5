from __future__ import annotations

import gc
import itertools
import sys
import threading

import pytest

from prefixroute.core import circle
from prefixroute.core.endpoint import Endpoint
from prefixroute.core.fixed import Fixed
from prefixroute.core.health import HealthState
from prefixroute.core.membership import Members, check_endpoints
from prefixroute.core.nested import Nested
from prefixroute.core.router import RouterCore
from prefixroute.errors import ConfigurationError, UnknownEndpointError

from .support import EVERY_PLACEMENT, blocks, chat, homes, make_router, states, text, urls

PROMPTS = [blocks(number, number + 1) for number in range(400)]


def moved(router: RouterCore, before: list[str | None]) -> list[tuple[str | None, str | None]]:
    return [(a, b) for a, b in zip(before, homes(router, PROMPTS), strict=True) if a != b]


# -- what is refused -----------------------------------------------------------


@pytest.mark.parametrize("endpoints", [[], (), set(), iter([])])
def test_case_52_no_endpoints_are_refused(endpoints: object) -> None:
    with pytest.raises(ConfigurationError, match="at least one endpoint"):
        make_router(endpoints)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "endpoints",
    ["http://a", b"http://a", None, 5.0, {"http://a": 1}, Endpoint("http://a"), True],
)
def test_what_is_no_list_of_endpoints_is_refused(endpoints: object) -> None:
    with pytest.raises(ConfigurationError, match=r"must be a list .* put them into \[\.\.\.\]"):
        check_endpoints(endpoints)  # type: ignore[arg-type]


@pytest.mark.parametrize("item", [None, 5, "h:8000", ["http://a"], b"http://b"])
def test_an_item_that_is_no_endpoint_is_refused(item: object) -> None:
    with pytest.raises(ConfigurationError, match="endpoint URL"):
        check_endpoints(["http://ok", item])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "pair",
    [
        ["http://h", "http://h"],
        ["http://H:80/v1", "http://h/v1/"],
        ["http://h", Endpoint("http://h", id="other", weight=2)],
        [Endpoint("http://a", id="x"), Endpoint("http://b", id="x")],
        [Endpoint("http://a", id="http://b/v1"), "http://b"],
        ["http://user:pass@h", "http://h"],
        ["http://[::1]", "http://[0:0::1]"],
    ],
)
def test_case_23_duplicates_after_normalisation_are_refused(pair: list[Endpoint | str]) -> None:
    for order in (pair, pair[::-1]):
        with pytest.raises(ConfigurationError, match=r"are the same .* remove one"):
            make_router(order)
    router = make_router([pair[0]])
    with pytest.raises(ConfigurationError, match="are the same"):
        router.add(pair[1])
    assert len(router.endpoints) == 1


@pytest.mark.parametrize("count", [1, 3])
def test_case_25_all_weights_0_are_refused(count: int) -> None:
    nobody = [Endpoint(url, weight=0) for url in urls(count)]
    with pytest.raises(ConfigurationError, match="every endpoint has weight=0"):
        make_router(nobody)
    router = make_router(count)
    with pytest.raises(ConfigurationError, match="every endpoint has weight=0"):
        router.set_endpoints(nobody)
    assert [e.weight for e in router.endpoints] == [1.0] * count


def test_case_52_a_broken_list_leaves_the_last_good_one() -> None:
    router = make_router(3)
    before, ids = homes(router, PROMPTS), router.endpoints
    for broken in ([], ["h:8000"], ["http://a", "http://a/"], "http://a", None, ["http://a", 5]):
        with pytest.raises(ConfigurationError):
            router.set_endpoints(broken)  # type: ignore[arg-type]
    assert router.endpoints == ids
    assert not moved(router, before)


def test_the_last_endpoint_cannot_be_removed() -> None:
    router = make_router(["http://a", Endpoint("http://b", weight=0)])
    with pytest.raises(ConfigurationError, match="weight=0"):
        router.remove("http://a")
    router.remove("http://b")
    with pytest.raises(ConfigurationError, match="at least one endpoint"):
        router.remove("http://a")
    assert len(router.endpoints) == 1


@pytest.mark.parametrize("method", ["remove", "start_drain", "in_flight", "eject", "readmit"])
@pytest.mark.parametrize("name", ["http://nobody", "nobody", "", "gpu", 5, None])
def test_an_unknown_name_is_said_to_be(method: str, name: object) -> None:
    router = make_router(2)
    with pytest.raises(
        UnknownEndpointError, match=r"no endpoint has the id or URL .*gpu-0"
    ) as raised:
        getattr(router, method)(name)
    assert isinstance(raised.value, KeyError)


@pytest.mark.parametrize(
    "name", ["a", "http://h/v1", "http://H:80", " http://h/v1/ ", Endpoint("http://h", id="a")]
)
def test_an_endpoint_is_found_by_id_and_by_any_spelling_of_its_url(name: Endpoint | str) -> None:
    router = make_router([Endpoint("http://h", id="a"), "http://b"])
    router.eject(name)
    assert router.stats().endpoints[0].state is HealthState.EJECTED
    router.readmit(name)
    router.start_drain(name)
    assert router.stats().endpoints[0].state is HealthState.DRAINING
    assert router.in_flight(name) == 0
    router.remove(name)
    assert [e.id for e in router.endpoints] == ["http://b/v1"]


# -- who serves what -----------------------------------------------------------


def eligible(router: RouterCore, model: str | None) -> list[str]:
    group = router._members.groups(model)[0]
    return sorted(state.endpoint.id for state in group.states)


def serving() -> list[Endpoint]:
    return [
        Endpoint("http://a", id="a", models=["m", "n"]),
        Endpoint("http://b", id="b", models=["m"]),
        Endpoint("http://c", id="c"),
        Endpoint("http://d", id="d", models=["n"], weight=0),
    ]


def test_a_model_goes_to_those_that_list_it_and_to_those_without_a_list() -> None:
    router = make_router(serving())
    assert eligible(router, "m") == ["a", "b", "c"]
    assert eligible(router, "n") == ["a", "c"]


def test_an_unknown_model_goes_to_those_without_a_list_else_to_all() -> None:
    assert eligible(make_router(serving()), "x") == ["c"]
    assert eligible(make_router(serving()), None) == ["c"]
    assert eligible(make_router(serving()), "") == ["c"]
    listed = [e for e in serving() if e.id != "c"]
    assert eligible(make_router(listed), "x") == ["a", "b"]
    assert eligible(make_router(listed), None) == ["a", "b"]


def test_a_model_whose_only_server_is_drained_is_nobodys() -> None:
    drained = [Endpoint("http://a", id="a", models=["m"], weight=0), Endpoint("http://b", id="b")]
    assert eligible(make_router(drained), "m") == ["b"]


@pytest.mark.parametrize("name", list(EVERY_PLACEMENT))
def test_requests_go_only_where_their_model_is_served(name: str) -> None:
    router = make_router(serving(), placement=EVERY_PLACEMENT[name]())
    for number in range(60):
        for model, allowed in (("m", "abc"), ("n", "ac"), ("x", "c")):
            body = chat(text(number, 40), model=model)
            assert router.route(body).endpoint.id in allowed
            with router.acquire(body) as lease:
                assert lease.endpoint.id in allowed


@pytest.mark.parametrize("name", list(EVERY_PLACEMENT))
def test_case_25_weight_0_gets_nothing(name: str) -> None:
    router = make_router(
        ["http://a", Endpoint("http://b", weight=0), "http://c"], placement=EVERY_PLACEMENT[name]()
    )
    for number in range(100):
        for body in (chat(text(number, 30)), {}, None):
            with router.acquire(body) as lease:
                assert lease.endpoint.url != "http://b/v1"


@pytest.mark.parametrize("name", list(EVERY_PLACEMENT))
def test_case_25_setting_the_weight_to_0_drains(name: str) -> None:
    router = make_router(["http://a", "http://b"], placement=EVERY_PLACEMENT[name]())
    held = [router.acquire(chat(text(number, 30))) for number in range(10)]
    router.set_endpoints(["http://a", Endpoint("http://b", weight=0)])
    kept = router.in_flight("http://b")
    assert kept == sum(lease.endpoint.url == "http://b/v1" for lease in held)
    for number in range(20):
        with router.acquire(chat(text(("later", number), 30))) as lease:
            assert lease.endpoint.url == "http://a/v1"
    for lease in held:
        lease.release()
    assert router.in_flight("http://b") == 0


@pytest.mark.parametrize("name", list(EVERY_PLACEMENT))
def test_case_25_101_endpoints_all_get_requests(name: str) -> None:
    router = make_router(101, placement=EVERY_PLACEMENT[name]())
    used = set()
    for number in range(1500):
        lease = router.acquire(blocks(number, number + 1))
        used.add(lease.endpoint.id)
        lease.release()
    assert len(used) == 101


# -- tiers ---------------------------------------------------------------------


def tiers() -> list[Endpoint]:
    return [
        Endpoint("http://a", id="a", max_in_flight=2),
        Endpoint("http://b", id="b"),
        Endpoint("http://c", id="c", tier=1),
        Endpoint("http://d", id="d", tier=7),
    ]


def goes_to(router: RouterCore, count: int = 30) -> set[str]:
    return {router.route(blocks(number)).endpoint.id for number in range(count)}


def test_a_higher_tier_is_used_only_while_no_lower_one_can_be() -> None:
    router = make_router(tiers())
    assert goes_to(router) == {"a", "b"}
    router.eject("a")
    assert goes_to(router) == {"b"}
    router.start_drain("b")
    assert goes_to(router) == {"c"}
    router.eject("c")
    assert goes_to(router) == {"d"}
    router.readmit("a")
    assert goes_to(router) == {"a"}
    held = [router.acquire(blocks(1)) for _ in range(2)]
    assert goes_to(router) == {"d"}  # a is full
    for lease in held:
        lease.release()
    assert goes_to(router) == {"a"}


def test_the_tier_is_the_lowest_that_serves_the_model() -> None:
    router = make_router(
        [
            Endpoint("http://a", id="a", models=["m"]),
            Endpoint("http://b", id="b", models=["n"], tier=1),
        ]
    )
    assert router.route(chat("x", model="n")).endpoint.id == "b"


def test_requests_that_fall_to_a_higher_tier_do_not_look_hot_there() -> None:
    """Their prefixes were counted, but not among the requests of that tier."""
    endpoints = [Endpoint(url, tier=int(at >= 2)) for at, url in enumerate(urls(10))]
    router = make_router(endpoints)
    chats = [blocks(1, 100 + number) for number in range(40)]
    for prompt in chats * 8:
        router.acquire(prompt).release()
    for url in urls(2):
        router.eject(url)
    for number in range(30):
        router.acquire(blocks(-number, number)).release()
    assert router.route(chats[0]).spread == 1  # nobody asked for it in this tier yet
    assert router.explain(chats[0]).requests_seen == 30.0
    placed: dict[int, set[str]] = {}
    for _ in range(6):
        for number, prompt in enumerate(chats):
            lease = router.acquire(prompt)
            placed.setdefault(number, set()).add(lease.endpoint.id)
            assert lease.endpoint.tier == 1
            lease.release()
    settled = sum(len(where) == 1 for where in placed.values())
    assert settled >= 35


# -- changes -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Nested", "Fixed"])
def test_the_order_of_the_list_is_irrelevant(name: str) -> None:
    some = [Endpoint(url, weight=1 + at % 3) for at, url in enumerate(urls(5))]
    expected = homes(make_router(some, placement=EVERY_PLACEMENT[name]()), PROMPTS[:50])
    for shuffled in itertools.islice(itertools.permutations(some), 1, 120, 17):
        router = make_router(shuffled, placement=EVERY_PLACEMENT[name]())
        assert homes(router, PROMPTS[:50]) == expected


@pytest.mark.parametrize("name", ["Nested", "Fixed"])
def test_an_added_endpoint_takes_its_share_and_keys_move_only_to_it(name: str) -> None:
    router = make_router(7, placement=EVERY_PLACEMENT[name]())
    before = homes(router, PROMPTS)
    added = router.add("http://new")
    changes = moved(router, before)
    assert {new for _, new in changes} == {added.id}
    assert 0.5 / 8 < len(changes) / len(PROMPTS) < 1.6 / 8


@pytest.mark.parametrize("name", ["Nested", "Fixed"])
def test_a_removed_endpoints_keys_only_move_away_and_come_back_with_it(name: str) -> None:
    router = make_router(8, placement=EVERY_PLACEMENT[name]())
    before = homes(router, PROMPTS)
    gone = router.endpoints[3]
    router.remove(gone)
    changes = moved(router, before)
    assert {old for old, _ in changes} == {gone.id}
    assert before.count(gone.id) == len(changes)
    router.add(gone)
    assert not moved(router, before)


@pytest.mark.parametrize("name", ["Nested", "Fixed"])
def test_case_24_remove_the_last_and_add_another(name: str) -> None:
    router = make_router(8, placement=EVERY_PLACEMENT[name]())
    before = homes(router, PROMPTS)
    last = router.endpoints[-1].id
    router.remove(last)
    new = router.add("http://other").id
    changes = moved(router, before)
    assert all(old == last or now == new for old, now in changes)
    assert 0.5 / 8 < sum(now == new for _, now in changes) / len(PROMPTS) < 1.6 / 8


@pytest.mark.parametrize("name", ["Nested", "Fixed"])
@pytest.mark.parametrize("how", ["eject", "start_drain"])
def test_only_membership_moves_keys(name: str, how: str) -> None:
    router = make_router(8, placement=EVERY_PLACEMENT[name]())
    before = homes(router, PROMPTS)
    out = router.endpoints[2].id
    getattr(router, how)(out)
    assert not moved(router, before)
    for prompt in PROMPTS[:100]:
        decision = router.route(prompt)
        assert decision.endpoint.id != out
        if decision.home is not None and decision.home.id != out:
            assert decision.endpoint == decision.home
    router.readmit(out)
    assert [router.route(prompt).endpoint.id for prompt in PROMPTS] == before


def test_only_the_ejected_ones_requests_go_elsewhere_and_to_several() -> None:
    router = make_router(8, placement=Fixed())
    before = homes(router, PROMPTS)
    out = router.endpoints[2].id
    router.eject(out)
    elsewhere = {
        router.route(prompt).endpoint.id
        for prompt, home in zip(PROMPTS, before, strict=True)
        if home == out
    }
    assert len(elsewhere) > 3


def test_case_21_add_remove_add_is_as_fresh() -> None:
    router = make_router(4)
    for _ in range(3):
        router.add("http://x")
        router.remove("http://x")
    router.add("http://x")
    fresh = make_router([*urls(4), "http://x"])
    assert homes(router, PROMPTS) == homes(fresh, PROMPTS)
    assert router.fingerprint == fresh.fingerprint


def test_set_endpoints_keeps_the_accounting_of_those_that_stay() -> None:
    router = make_router(3)
    held = [router.acquire(blocks(number)) for number in range(9)]
    before = {e.id: (e.in_flight, e.requests) for e in router.stats().endpoints}
    kept = states(router)
    router.set_endpoints([*urls(3)[::-1], "http://new"])
    after = {e.id: (e.in_flight, e.requests) for e in router.stats().endpoints}
    assert after.pop("http://new/v1") == (0, 0)
    assert after == before
    assert all(states(router)[id_] is state for id_, state in kept.items())
    for lease in held:
        lease.release()
    assert router.stats().in_flight == 0


def test_a_list_made_of_the_list_loses_no_change_in_between() -> None:
    router = make_router(2)
    adding = threading.Thread(target=router.add, args=("http://c",))

    def without_the_first(present: tuple[Endpoint, ...]) -> list[Endpoint]:
        adding.start()
        adding.join(0.2)  # it has to wait for this change
        return list(present[1:])

    router.set_endpoints(without_the_first)
    adding.join()
    assert [e.url for e in router.endpoints] == [urls(2)[1], "http://c/v1"]


def test_the_same_id_at_another_url_is_another_server() -> None:
    router = make_router([Endpoint("http://a", id="x"), "http://b"])
    held = [router.acquire({}) for _ in range(4)]
    assert router.in_flight("x") == 2
    router.set_endpoints([Endpoint("http://c", id="x"), "http://b"])
    assert router.in_flight("x") == 0
    for lease in held:
        lease.release()
    assert router.in_flight("x") == 0
    assert router.stats().in_flight == 0


def test_a_set_weight_acts_at_once_and_the_old_list_object_is_not_kept() -> None:
    given = urls(3)
    router = make_router(given)
    given.append("nonsense")
    assert len(router.endpoints) == 3
    before = homes(router, PROMPTS)
    router.set_endpoints([Endpoint(urls(1)[0], weight=3), *urls(2, 1)])
    changes = moved(router, before)
    assert {new for _, new in changes} == {urls(1)[0]}
    assert homes(router, PROMPTS).count(urls(1)[0]) / len(PROMPTS) == pytest.approx(0.6, abs=0.1)


def test_changed_settings_of_an_endpoint_act_at_once() -> None:
    router = make_router(["http://a", "http://b"])
    held = [router.acquire({}) for _ in range(6)]
    router.set_endpoints(
        [Endpoint("http://a", max_in_flight=3), Endpoint("http://b", weight=3, api_key="k")]
    )
    later = [router.acquire({}) for _ in range(6)]
    assert {lease.endpoint.api_key for lease in later} == {"k"}  # a is full
    assert (router.in_flight("http://a"), router.in_flight("http://b")) == (3, 9)
    for lease in held + later:
        lease.release()
    shares = [router.acquire({}) for _ in range(8)]
    assert router.in_flight("http://b") == 6
    for lease in shares:
        lease.release()


def test_swaps_keep_the_traffic() -> None:
    router = make_router(8)
    for number in range(50):
        router.acquire(blocks(1, number)).release()
    before = router.explain(blocks(1, 99))
    router.add("http://new")
    router.remove(urls(1)[0])
    router.set_endpoints([Endpoint(url, weight=2) for url in urls(6)])
    after = router.explain(blocks(1, 99))
    assert after.requests_seen == before.requests_seen == 50.0
    shares = [(boundary.key, boundary.share) for boundary in before.boundaries]
    assert [(boundary.key, boundary.share) for boundary in after.boundaries] == shares
    assert after.decision.spread > 1


def test_members_are_made_without_touching_the_accounting() -> None:
    """They are made outside the lock, while requests go on with the members before."""
    router = make_router(2)
    state = router._members.states[0]
    old = state.endpoint
    Members([(state, Endpoint(old.url, weight=0)), (router._members.states[1], Endpoint("http://b"))],
            virtual_nodes=8, seed=0)  # fmt: skip
    assert state.endpoint is old


def test_case_41_ten_thousand_changes_leave_nothing_behind() -> None:
    router = make_router([Endpoint(url, models=["m"]) for url in urls(3)], placement=small())
    for number in range(40):
        router.acquire(chat(text(number, 30))).release()

    def churn(first: int, count: int) -> None:
        for number in range(first, first + count):
            name = f"http://new-{number}"
            router.add(Endpoint(name, models=["m", f"m{number}"]))
            router.acquire(chat("hi", text(number, 30), model=f"m{number}")).release()
            router.remove(name)

    churn(0, 4200)
    gc.collect()
    before = sys.getallocatedblocks()
    churn(4200, 2048)  # totals of models are forgotten in lots of so many
    gc.collect()
    assert sys.getallocatedblocks() - before < 1500
    assert len(router.endpoints) == 3
    policy = router._ledger.policy
    assert policy._map._alive.bit_count() == 3  # type: ignore[attr-defined]
    assert policy._map._next < 200  # type: ignore[attr-defined]


def small() -> Nested:
    return Nested(virtual_nodes=4, max_prefixes=256)


def test_a_change_of_members_makes_rings_of_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    fill = circle.Circle._fill

    def counted(self: circle.Circle, seed: int) -> None:
        made.append(len(self.slots))
        fill(self, seed)

    monkeypatch.setattr(circle.Circle, "_fill", counted)
    router = make_router(urls(12))
    assert made == [12]
    router.remove(urls(12)[3])
    router.add("http://new:8000/v1")
    router.set_endpoints([Endpoint(url, models=["m"]) for url in urls(12)])
    assert made == [12]
