"""Rules of other balancers that record which prefixes they sent where."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, cast

from prefixroute.simulator.peers import Chooser, Peer
from prefixroute.simulator.routers import Setup
from prefixroute.simulator.traces import Request

__all__ = ["OverlapCost", "PrefixQueueScores", "PrefixTree"]


class PrefixTree(Chooser):
    """A tree of the prompts sent: the replica with the longest match, unless loads differ much.

    If the loads differ by more than 64 requests and by more than a factor of 1.5, the least loaded
    replica; else, if more than 0.3 of the prompt matches, the replica that first had what matches;
    else the one with the smallest tree.

    Rule reimplemented from the cache-aware policy of SGLang's router,
    sgl-router/src/policies/cache_aware.rs of github.com/sgl-project/sglang.
    """

    SOURCE: Final = (
        "rule reimplemented from the cache-aware policy of SGLang's router, "
        "sgl-router/src/policies/cache_aware.rs of github.com/sgl-project/sglang"
    )
    MATCH: Final = 0.3
    ABSOLUTE: Final = 64
    RELATIVE: Final = 1.5

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._tree: dict[int, list[int]] = {}
        self._size = dict.fromkeys(setup.members, 0)

    def _match(self, request: Request) -> tuple[float, int | None]:
        """Return the share of the prompt that the tree has, and whose it is."""
        prompt, tree, owners, blocks = request.prompt, self._tree, None, 0
        for block in prompt.chain:
            found = tree.get(block)
            if not found:
                break
            owners, blocks = found, blocks + 1
        if not owners:
            return 0.0, None
        return prompt.ends[blocks - 1] / prompt.size, owners[0]

    def choose(self, request: Request, now: float) -> int:  # noqa: ARG002
        """Match, and insert the prompt."""
        loads = [self.in_flight[replica] for replica in self.members]
        most, least = max(loads), min(loads)
        if most - least > self.ABSOLUTE and most > self.RELATIVE * least:
            replica = self.members[loads.index(least)]
        else:
            rate, owner = self._match(request)
            if owner is not None and rate > self.MATCH:
                replica = owner
            else:
                replica = min(self.members, key=self._size.__getitem__)
        self._insert(request, replica)
        return replica

    def _insert(self, request: Request, replica: int) -> None:
        tree, start = self._tree, 0
        for block, end in zip(request.prompt.chain, request.prompt.ends, strict=True):
            owners = tree.setdefault(block, [])
            if replica not in owners:
                owners.append(replica)
                self._size[replica] += end - start
            start = end

    def set_members(self, members: Sequence[int], now: float) -> None:
        """Use these replicas from now on; those that left are taken out of the tree."""
        left = set(self.members) - set(members)
        super().set_members(members, now)
        for replica in members:
            self._size.setdefault(replica, 0)
        for replica in left:
            self._size[replica] = 0
            for owners in self._tree.values():
                if replica in owners:
                    owners.remove(replica)

    def home(self, request: Request, now: float) -> int | None:  # noqa: ARG002
        """Return the replica that has most of the prompt, if it has enough of it."""
        rate, owner = self._match(request)
        return owner if rate > self.MATCH else None


class PrefixQueueScores(Chooser):
    """Scores of 0 to 1 for the prefix that was sent there, times 3, and for the queue, times 2.

    The prefix score is the share of the prompt's blocks; the queue score falls from 1 at the
    shortest queue to 0 at the longest. Queues are those that the engines report, and without
    reports the own requests that were not answered yet. Ties at random.

    Rule reimplemented from llm-d's inference scheduler: prefix-cache-scorer weight 3 and
    queue-scorer weight 2, https://llm-d.ai/docs/architecture/core/router/epp/scheduling; the index
    of each replica is an LRU of 31,250 blocks.
    """

    SOURCE: Final = (
        "rule reimplemented from llm-d's inference scheduler: prefix-cache-scorer weight 3 and "
        "queue-scorer weight 2, https://llm-d.ai/docs/architecture/core/router/epp/scheduling"
    )
    PREFIX: Final = 3.0
    QUEUE: Final = 2.0
    BLOCKS: Final = 31_250

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._held: dict[int, OrderedDict[int, None]] = {}
        self._waiting = dict.fromkeys(setup.members, 0)
        self._reports = False

    def choose(self, request: Request, now: float) -> int:  # noqa: ARG002
        """Add up the scores."""
        chain = request.prompt.chain
        queues = [self._waiting[replica] for replica in self.members]
        longest, shortest = max(queues), min(queues)
        best, score = [self.members[0]], -1.0
        for replica, queue in zip(self.members, queues, strict=True):
            own = self._held.setdefault(replica, OrderedDict())
            blocks = 0
            for block in chain:
                if block not in own:
                    break
                blocks += 1
            spread = longest - shortest
            mine = self.PREFIX * (blocks / len(chain) if chain else 0.0)
            mine += self.QUEUE * ((longest - queue) / spread if spread else 1.0)
            if mine > score:
                best, score = [replica], mine
            elif mine == score:
                best.append(replica)
        replica = self.random.choice(best)
        self._remember(replica, chain)
        return replica

    def _remember(self, replica: int, chain: Sequence[int]) -> None:
        own = self._held[replica]
        for block in chain:
            own[block] = None
            own.move_to_end(block)
        while len(own) > self.BLOCKS:
            own.popitem(last=False)

    def route(self, request: Request, now: float) -> tuple[int, object]:
        """Choose, and count the request as waiting."""
        replica, ticket = super().route(request, now)
        if not self._reports:
            self._waiting[replica] += 1
        return replica, ticket

    def first_token(self, ticket: object, cached_tokens: int | None, now: float) -> None:  # noqa: ARG002
        """Count the request as answered."""
        if not self._reports:
            self._waiting[cast("int", ticket)] -= 1

    def reported(self, counts: Sequence[tuple[int, int]], now: float) -> None:  # noqa: ARG002
        """Take the engines' queues."""
        self._reports = True
        self._waiting = {replica: waiting for replica, (_, waiting) in enumerate(counts)}

    def set_members(self, members: Sequence[int], now: float) -> None:
        """Use these replicas from now on; those that left are forgotten."""
        for replica in set(self.members) - set(members):
            self._held.pop(replica, None)
        super().set_members(members, now)
        for replica in members:
            self._waiting.setdefault(replica, 0)


class OverlapCost(Peer):
    """Blocks to prefill there, with those that already wait, plus blocks in use there; the least.

    What a replica holds is what was sent to it in the last 120 s. Ties go to the replica with the
    fewest blocks recorded.

    Rule reimplemented from Dynamo's KV router in its mode without KV events:
    ``DefaultWorkerSelector`` in lib/llm/src/kv_router/scheduler.rs of github.com/ai-dynamo/dynamo,
    overlap weight 1, temperature 0.
    """

    SOURCE: Final = (
        "rule reimplemented from Dynamo's KV router in its mode without KV events: "
        "DefaultWorkerSelector in lib/llm/src/kv_router/scheduler.rs of github.com/ai-dynamo/dynamo"
    )
    LIFE_S: Final = 120.0

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._held: dict[int, dict[int, float]] = {}  # replica -> block -> until when
        self._prefill = dict.fromkeys(setup.members, 0.0)  # blocks not answered yet
        self._active: dict[int, dict[int, int]] = {}  # replica -> block -> requests that use it

    def _overlap(self, replica: int, chain: Sequence[int], now: float) -> int:
        held, blocks = self._held.setdefault(replica, {}), 0
        for block in chain:
            if held.get(block, -1.0) < now:
                break
            blocks += 1
        return blocks

    def route(self, request: Request, now: float) -> tuple[int, object]:
        """Compare the costs."""
        prompt = request.prompt
        chain, size = prompt.chain, prompt.tokens / self.block_tokens
        best = None
        for replica in self.members:
            new = max(0.0, size - self._overlap(replica, chain, now))
            active = self._active.setdefault(replica, {})
            fresh = sum(block not in active for block in chain)
            cost = self._prefill[replica] + new + len(active) + fresh
            key = (cost, len(self._held[replica]), self.random.random())
            if best is None or key < best[0]:
                best = (key, replica, new)
        assert best is not None  # noqa: S101 - there is a member
        _, replica, new = best
        self._use(replica, chain, now)
        self._prefill[replica] += new
        self.in_flight[replica] += 1
        return replica, [replica, new, chain]

    def _use(self, replica: int, chain: Sequence[int], now: float) -> None:
        held, active, until = self._held[replica], self._active[replica], now + self.LIFE_S
        for block in chain:
            held[block] = until
            active[block] = active.get(block, 0) + 1

    def first_token(self, ticket: object, cached_tokens: int | None, now: float) -> None:  # noqa: ARG002
        """Take the prompt out of the prefill queue."""
        entry = cast("list[object]", ticket)
        self._prefill[cast("int", entry[0])] -= cast("float", entry[1])
        entry[1] = 0.0

    def done(
        self,
        ticket: object,
        prompt_tokens: int,
        cached_tokens: int | None,
        now: float,
    ) -> None:
        """Free the request's blocks."""
        self.first_token(ticket, cached_tokens, now)
        replica, _, chain = cast(
            "tuple[int, float, tuple[int, ...]]", tuple(cast("list[object]", ticket))
        )
        active = self._active[replica]
        for block in chain:
            if active[block] == 1:
                del active[block]
            else:
                active[block] -= 1
        super().done(replica, prompt_tokens, cached_tokens, now)

    def set_members(self, members: Sequence[int], now: float) -> None:
        """Use these replicas from now on; those that left are forgotten."""
        for replica in set(self.members) - set(members):
            self._held.pop(replica, None)
        super().set_members(members, now)
        for replica in members:
            self._prefill.setdefault(replica, 0.0)
