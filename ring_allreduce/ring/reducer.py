"""The rings of one member in motion: buffers, arithmetic and sending for the ring machines, on one endpoint.

Owns the memory of every (ring, round) in flight and does what the machines instruct; decides nothing about rounds
(when they open, when they are merged) or members (who is lost, what starts again). It never waits: the owner of the
endpoint polls, hands in what arrived, and calls pump() after each poll.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ring_allreduce.errors import ContributionRefused, InvalidInput
from ring_allreduce.ring.buffer_pool import BufferPool
from ring_allreduce.ring.checks import checked
from ring_allreduce.ring.executor import RingSpec, require_usable
from ring_allreduce.ring.flights import Flights
from ring_allreduce.ring.handover import Handovers, pieces
from ring_allreduce.ring.messages import Chunk, HandedOn
from ring_allreduce.ring.statistics import RingStatistics
from ring_allreduce.ring.uncommitted_rounds import RingContribution, RingResult, RoundKey, UncommittedRounds
from ring_allreduce.ring.wire_forms import why_not_summed
from ring_allreduce.transport.endpoint import Delivery, Endpoint
from ring_allreduce.transport.outbox import Outbox

__all__ = ["RingProgress", "RingReducer", "RingResult"]


@dataclass(frozen=True)
class RingProgress:
    """How far one ring is in one round, in chunks; `waits_for` is whose chunks are missing, None for nobody's."""

    received: int
    expected: int
    sent: int
    waits_for: str | None


class RingReducer:
    """Averages vectors over this member's rings. Belongs to the thread that owns `endpoint`."""

    def __init__(
        self,
        endpoint: Endpoint,
        rings: Sequence[RingSpec],
        *,
        max_rounds: int,
        first_round: int = 1,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_rounds`: how many rounds of a ring may be in flight (max_lag): what bounds the memory.

        `endpoint`'s codec knows RING_KINDS, and its peers are connected before the first contribution.
        """
        if max_rounds < 1:
            raise InvalidInput(f"a reducer needs max_rounds >= 1, got {max_rounds}")
        self._endpoint = endpoint
        self._specs = require_usable(rings, endpoint.name)
        self._kept = UncommittedRounds(self._specs, max_rounds, first_round - 1)
        self._handovers = Handovers()
        self._outbox = Outbox(endpoint)
        self._spare = BufferPool(endpoint.empty)
        self._results: list[RingResult] = []
        self.drops: Counter[str] = Counter()
        """Chunks that had no effect and did no harm, by reason."""
        self._flights = Flights(endpoint, self._kept, self._outbox, self._spare, self.drops, now)

    def contribute(
        self,
        round: int,  # noqa: A002 - our word
        ring: str,
        vector: Tensor,
        weight: float,
        counters: tuple[int, ...] = (),
    ) -> None:
        """Give this member's part to a ring: `vector` (elements,), flat; `weight`: the samples behind it.

        `vector` is kept, not copied: read it, never write to it, until commit(round): the round may have to start
        again. One that the endpoint's empty() made is not even copied on its way to members of this machine. Raises
        InvalidInput for a part of the wrong form, ContributionRefused (naming this member) when it is not finite, or so
        large that the sum might not be.
        """
        self._require_open(round, ring)
        spec = self._specs[ring]
        if vector.shape != (spec.elements,) or vector.dtype != spec.dtype:
            expected = f"{spec.dtype} ({spec.elements},)"
            raise InvalidInput(f"ring {ring!r} expects {expected}, got {vector.dtype} {tuple(vector.shape)}")
        if (ring, round) in self._kept.contributions:
            raise InvalidInput(f"a member contributes once to round {round} of ring {ring!r}")
        if not (math.isfinite(weight) and weight >= 0):
            raise InvalidInput(f"a weight must be finite and at least 0, got {weight}")
        reason = why_not_summed(vector, weight, len(spec.members))
        if reason:
            raise ContributionRefused(self._endpoint.name, ring, round, reason)
        self._contribute((ring, round), RingContribution(vector.detach(), weight, counters))

    def on_delivery(self, delivery: Delivery) -> bool:
        """Take what arrived; False when it is nothing of a ring (and nothing was done).

        Raises ContributionRefused, naming the sender, for a chunk that disagrees with this member or is not finite.
        Chunks that are merely late or repeated are counted in `drops`. Either way they have no effect.
        """
        message = delivery.message
        if isinstance(message, Chunk):
            key = self._admitted(delivery, message)
            if key is not None:
                self._done(self._flights.take(self._specs[message.ring], delivery, message))
        elif isinstance(message, HandedOn):
            self._take_piece(delivery, message)
        else:
            return False
        self.pump()
        return True

    def pump(self) -> None:
        """Send the chunks that the endpoint had no room for. Call it after each poll()."""
        self._outbox.flush()

    def finished(self) -> list[RingResult]:
        """The averages that became whole since the last call, in the order in which they did."""
        results, self._results = self._results, []
        return results

    def commit(self, round: int) -> None:  # noqa: A002 - our word
        """All members hold the averages of the rounds up to `round`, over all rings: forget them here.

        Until then contributions and averages are kept, to start again or to hand on. Their memory is used for later
        rounds: merge or copy an average first. Raises InvalidInput while one of them is not whole here.
        """
        open_keys = [key for key in self._kept.contributions if key[1] <= round and self._kept.whole(*key) is None]
        if open_keys:
            raise InvalidInput(f"round {round} cannot be committed: not whole here are {sorted(open_keys)}")
        self._abandon(key for key in self._unfinished() if key[1] <= round)
        for result in self._kept.commit(round):
            self._spare.give(result.average)
        self._results = [result for result in self._results if result.round > round]

    # Membership: an epoch begins. The caller sets endpoint.epoch, calls reform(), and calls nothing that sends
    # (contribute, restart, hand_on) until it knows that every member is in the new epoch.

    def reform(self, specs: Sequence[RingSpec]) -> None:
        """The same rings among new members, in the epoch that `endpoint` has now.

        Unfinished rounds are abandoned; contributions and whole averages are kept; nothing is sent. Raises
        InvalidInput, and changes nothing, when the rings differ in name, elements, dtype or wire.
        """
        new = require_usable(specs, self._endpoint.name)
        forms = {(name, spec.elements, spec.dtype, spec.wire) for name, spec in new.items()}
        if forms != {(name, spec.elements, spec.dtype, spec.wire) for name, spec in self._specs.items()}:
            raise InvalidInput(f"the rings of an epoch cannot become others: {sorted(self._specs)} to {sorted(new)}")
        self._specs = new
        self._outbox.clear()
        self._abandon(self._unfinished())

    def holding(self) -> list[RoundKey]:
        """(ring, round) of the whole averages that were not committed: what this member can hand on."""
        return self._kept.holding()

    def restart(self, round: int) -> None:  # noqa: A002 - our word
        """Average `round` again among the members of this epoch, in all rings, from what was contributed to it.

        An average of it that is whole is forgotten. A ring to which this member has not contributed waits for
        contribute(), as ever. Raises InvalidInput for a committed round.
        """
        if round <= self._kept.committed:
            raise InvalidInput(f"round {round} was committed: it cannot start again")
        self._results = [result for result in self._results if result.round != round]
        for ring in sorted(self._specs):
            whole = self._kept.forget(ring, round)
            if whole:
                self._spare.forget(whole.average)
            contribution = self._kept.contributions.get((ring, round))
            if contribution:
                self._contribute((ring, round), contribution)

    def hand_on(self, round: int, ring: str, to: Sequence[str]) -> None:  # noqa: A002 - our word
        """Send the whole average, byte for byte, to those members that miss it. Raises InvalidInput if I do, too."""
        result = self._kept.whole(ring, round)
        if result is None:
            raise InvalidInput(f"round {round} of ring {ring!r} is not whole here: it cannot be handed on")
        for peer in to:
            for message, span in pieces(result, self._specs[ring].chunk_elements):
                self._outbox.put(peer, message, [span])
        self.pump()

    def accept(self, round: int, ring: str, holder: str) -> None:  # noqa: A002 - our word
        """Take the average of a ring from `holder`, and from nobody else; it ends in finished().

        Raises InvalidInput when it is whole or committed here, or `holder` is no other member of the ring.
        """
        self._require_open(round, ring)
        if holder not in self._specs[ring].members or holder == self._endpoint.name:
            raise InvalidInput(f"{holder!r} is no other member of ring {ring!r}: {self._specs[ring].members}")
        result = self._handovers.expect(self._specs[ring], round, holder)
        self._done(result)

    @property
    def stats(self) -> Mapping[str, RingStatistics]:
        """What each ring has cost since this reducer was made."""
        return self._flights.stats

    def progress(self) -> dict[RoundKey, RingProgress]:
        """How far every unfinished ring and round is, for telling a slow member from a stalled one."""
        found = {}
        waiting = Counter(
            (message.ring, message.round) for message in self._outbox.waiting if isinstance(message, Chunk | HandedOn)
        )
        for key, flight in self._flights.items():
            machine = flight.machine
            sent = flight.sent - waiting[key]
            found[key] = RingProgress(machine.received, machine.expected, sent, machine.waits_for)
        for key, holder, handover in self._handovers.awaited():
            found[key] = RingProgress(handover.received, handover.expected, 0, holder)
        return found

    def _contribute(self, key: RoundKey, contribution: RingContribution) -> None:
        self._done(self._flights.begin(self._specs[key[0]], key[1], contribution))
        self.pump()

    def _done(self, result: RingResult | None) -> None:
        if result:
            self._finish(result)

    def _require_open(self, round: int, ring: str) -> None:  # noqa: A002 - our word
        if ring not in self._specs:
            raise InvalidInput(f"{ring!r} is none of this member's rings {sorted(self._specs)}")
        if round <= self._kept.committed or self._kept.whole(ring, round):
            raise InvalidInput(f"round {round} of ring {ring!r} is finished")
        reason = self._kept.too_far(ring, round)
        if reason:
            raise InvalidInput(f"round {round} of ring {ring!r} is {reason}")

    def _admitted(self, delivery: Delivery, message: Chunk | HandedOn) -> RoundKey | None:
        """Where an arrival belongs; None when its round or its epoch is over. Raises ContributionRefused."""
        sender, key = delivery.sender, (message.ring, message.round)
        if message.ring not in self._specs:
            raise ContributionRefused(sender, *key, "this member is not in the ring")
        if self._kept.closed(*key, self._endpoint.epoch):
            self.drops["of a finished round"] += 1
            return None
        if delivery.epoch != self._endpoint.epoch:
            # Its memory may be in use for something else by now: nobody looks at it.
            self.drops[f"epoch {delivery.epoch}, not {self._endpoint.epoch}"] += 1
            return None
        reason = self._kept.too_far(*key)
        if reason:
            raise ContributionRefused(sender, *key, reason)
        return key

    def _take_piece(self, delivery: Delivery, piece: HandedOn) -> None:
        sender, key = delivery.sender, self._admitted(delivery, piece)
        if key is None:
            return
        spec = self._specs[piece.ring]
        reason = self._handovers.why_not(spec, sender, piece)
        if reason:
            raise ContributionRefused(sender, *key, reason)
        span = checked(delivery, piece, "exact", spec.dtype, 1.0).numbers
        new, result = self._handovers.take(spec, sender, piece, span)
        if not new:
            self.drops["a chunk that was there before"] += 1
        if result:
            self._finish(result)

    def _finish(self, result: RingResult) -> None:
        self._kept.add(result, self._endpoint.epoch)
        self._results.append(result)
        self._handovers.forget((result.ring, result.round))

    def _abandon(self, keys: Iterable[RoundKey]) -> None:
        """What is unfinished of `keys` is given up: nothing more comes, or what comes starts it again."""
        for key in list(keys):
            self._flights.abandon(key)
            self._handovers.forget(key)

    def _unfinished(self) -> list[RoundKey]:
        return sorted({*self._flights.keys(), *self._handovers.keys()})
