"""``HeldOut``: a share of the conversations is placed by a baseline, for comparison.

Which ones is decided by a hash of what stays the same over a conversation's turns, so that it is
the same in every turn, in every process, and after every restart.
"""

from __future__ import annotations

from bisect import bisect_left
from random import Random
from typing import Final

import msgspec

from prefixroute.core.crowding import uniform
from prefixroute.core.hashing import digest64, utf8
from prefixroute.core.load import EndpointState, Loan
from prefixroute.core.placement import Ask, Choice, Placement, Policy, Seen
from prefixroute.core.prompt import Cut, Prompt
from prefixroute.core.traffic import Hot

__all__ = ["HeldOut", "HeldOutPolicy", "conversation_of", "is_held_out"]

_SALT: Final = digest64(b"prefixroute holdout")


def conversation_of(prompt: Prompt) -> int | None:
    """Return what a conversation's turns have in common, and other conversations have not.

    That is its session if it has one; else all up to the first reply of the model: tools, system
    prompt and the whole first question. The system prompt alone would put everybody who shares it
    into one group, and so would a fixed number of bytes. A plain text does not show its turns: it
    is taken whole, and each longer one is another conversation.

    Args:
        prompt: With its whole chain.

    Returns:
        ``None``: there is no prompt.
    """
    if prompt.session is not None:
        return digest64(utf8(prompt.session))
    chain, replies = prompt.chain, prompt.replies
    if not chain:
        return None
    asked = prompt.root_blocks
    at = bisect_left(replies, asked)
    while at < len(replies) and replies[at] == asked:  # a greeting, which everybody gets
        at, asked = at + 1, asked + 1
    return chain[replies[at] - 1] if at < len(replies) else chain[-1]


def is_held_out(conversation: int, share: float) -> bool:
    """Return whether a conversation belongs to the share that is held out: in every process."""
    return uniform(conversation, _SALT) < share


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """Places as ``placement`` does, but for a share of the conversations.

    Args:
        placement: Of the others.
        baseline: Of those that are held out.
        share: Of the conversations, above 0 and below 1.
    """

    placement: Placement
    baseline: Placement
    share: float

    @property
    def cut(self) -> Cut:
        """As the placement wants prompts cut; the router cuts those held out as the baseline."""
        return self.placement.cut

    @property
    def virtual_nodes(self) -> int:
        """Of the one ring that both walk; a baseline that walks none asks for one."""
        return max(self.placement.virtual_nodes, self.baseline.virtual_nodes)

    def start(self, random: Random) -> Policy:
        """Return a policy that keeps both apart."""
        return HeldOutPolicy(self.placement.start(random), self.baseline.start(random))


class HeldOutPolicy:
    """Asks one policy or the other, and tells each what became of its own requests alone.

    Args:
        routed: Of the requests that are not held out.
        baseline: Of those that are.
    """

    __slots__ = ("_baseline", "_routed")

    def __init__(self, routed: Policy, baseline: Policy) -> None:
        self._routed, self._baseline = routed, baseline

    def _of(self, prompt: Prompt) -> Policy:
        aside = prompt.aside
        return self._baseline if aside is not None and aside.held_out else self._routed

    def choose(self, ask: Ask) -> Choice:
        """Let the request's own policy choose."""
        return self._of(ask.prompt).choose(ask)

    def seen(self, ask: Ask, choice: Choice) -> Seen:
        """Return what the request's own policy knows of its prefixes."""
        return self._of(ask.prompt).seen(ask, choice)

    def sent(self, ask: Ask, choice: Choice, *, counted: bool) -> None:
        """Tell the request's own policy."""
        self._of(ask.prompt).sent(ask, choice, counted=counted)

    def learned(self, loan: Loan) -> None:
        """Tell the request's own policy."""
        self._of(loan.prompt).learned(loan)

    def unsent(self, loan: Loan) -> None:
        """Tell the request's own policy."""
        self._of(loan.prompt).unsent(loan)

    # An endpoint has one bit for both maps. They see the same endpoints come and go, in the same
    # order, and so give them the same bits.

    def joined(self, state: EndpointState) -> None:
        """Tell both."""
        self._routed.joined(state)
        bit = state.bit
        self._baseline.joined(state)
        state.bit = max(bit, state.bit)  # one of them may have no map

    def left(self, state: EndpointState) -> None:
        """Tell both."""
        bit = state.bit
        self._routed.left(state)
        state.bit = bit
        self._baseline.left(state)

    def hot(self, now: float) -> Hot:
        """Return what the routed requests' policy knows: a baseline knows of no prefixes."""
        return self._routed.hot(now)

    def heard(self, hot: Hot, now: float) -> None:
        """Tell both."""
        self._routed.heard(hot, now)
        self._baseline.heard(hot, now)

    def forked(self) -> None:
        """Tell both."""
        self._routed.forked()
        self._baseline.forked()
