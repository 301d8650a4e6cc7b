"""All rings of one member in motion: what the ring machines instruct is carried out here, on one endpoint.

In: this member's contributions, and the chunks that arrived. Out: the whole averages, in the order in which they became
whole. The reducer owns the memory of every (ring, round) in flight. It decides nothing about rounds (when they open,
when they are merged) or members (who is lost, what starts again): rounds/ does. It never waits: the owner of the
endpoint polls it, hands in what arrived, and calls pump() after each poll.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import Tensor

from ring_allreduce.errors import ContributionRefused, InvalidInput
from ring_allreduce.ring.events import (
    ChunkArrived,
    ContributionReady,
    DropChunk,
    FinishRing,
    RefuseChunk,
    RingInstruction,
    SendChunk,
    TakeHeld,
    require_weight,
)
from ring_allreduce.ring.executor import (
    Arithmetic,
    BufferPool,
    Completed,
    RingContribution,
    RingExecutor,
    RingSpec,
    checked,
    require_usable,
)
from ring_allreduce.ring.messages import Chunk, HandedOn
from ring_allreduce.ring.statistics import Burst, RingProgress, RingStatistics
from ring_allreduce.ring.uncommitted_rounds import Handovers, RingResult, UncommittedRounds, pieces
from ring_allreduce.ring.wire_forms import why_not_summed
from ring_allreduce.rounds.events import RoundKey
from ring_allreduce.transport.endpoint import Delivery, Endpoint
from ring_allreduce.transport.message import Unacceptable
from ring_allreduce.transport.outbox import Outbox


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
        completed: Completed = lambda *_: None,
    ) -> None:
        """Take part in `rings`, which must be the same at all their members, from the round `first_round` on.

        `max_rounds`: how many rounds of a ring may be in flight (max_lag). `endpoint`'s codec knows RING_KINDS, and its
        peers are connected before the first contribution. `completed`: RingExecutor's. Raises InvalidInput.
        """
        if max_rounds < 1:
            raise InvalidInput(f"a reducer needs max_rounds >= 1, got {max_rounds}")
        self._endpoint = endpoint
        self._specs = require_usable(rings, endpoint.name)
        self._kept = UncommittedRounds(self._specs, max_rounds, first_round - 1)
        self._handovers = Handovers()
        self._outbox = Outbox(endpoint)
        self._pool = BufferPool(endpoint.empty)
        self._now = now
        self._completed = completed
        self._in_flight: dict[RoundKey, RingExecutor] = {}
        self._stats: defaultdict[str, RingStatistics] = defaultdict(RingStatistics)
        self._results: list[RingResult] = []
        self.most_queued: int | None = None
        """So many chunks for one member may wait at the endpoint: few where other messages are to overtake the rest."""
        self.drops: Counter[str] = Counter()
        """Chunks that had no effect and did no harm, by reason."""

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
        require_weight(weight)
        reason = why_not_summed(vector, weight, len(spec.members))
        if reason:
            raise ContributionRefused(self._endpoint.name, ring, round, reason)
        self._begin((ring, round), RingContribution(vector.detach(), weight, counters))

    def on_delivery(self, delivery: Delivery) -> bool:
        """Take what arrived; False when it is nothing of a ring (and nothing was done).

        Raises ContributionRefused, naming the sender, for a chunk that disagrees with this member or is not finite.
        Chunks that are merely late or repeated are counted in `drops`. Either way they have no effect.
        """
        message = delivery.message
        if isinstance(message, Chunk):
            key = self._admitted(delivery, message)
            if key is not None:
                self._take_chunk(key, delivery, message)
        elif isinstance(message, HandedOn):
            self._take_piece(delivery, message)
        elif isinstance(message, Unacceptable):
            return self._refuse(delivery, message)
        else:
            return False
        self.pump()
        return True

    def pump(self) -> None:
        """Send the chunks that the endpoint had no room for. Call it after each poll()."""
        self._outbox.flush(self.most_queued)

    def finished(self) -> list[RingResult]:
        """Return the averages that became whole since the last call, in the order in which they did."""
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
            self._pool.give(result.average)
        self._results = [result for result in self._results if result.round > round]

    # Membership: an epoch begins. The caller sets endpoint.epoch, calls reform(), and calls nothing that sends
    # (contribute, restart, hand_on) until it knows that every member is in the new epoch.

    def reform(self, specs: Sequence[RingSpec]) -> None:
        """The same rings among new members, in the epoch that `endpoint` has now.

        Unfinished rounds are abandoned; contributions and whole averages are kept; nothing is sent. Raises
        InvalidInput, and changes nothing, when the rings differ in name, elements, dtype, wire or rule.
        """
        new = require_usable(specs, self._endpoint.name)
        if {each.form for each in new.values()} != {each.form for each in self._specs.values()}:
            raise InvalidInput(f"the rings of an epoch cannot become others: {sorted(self._specs)} to {sorted(new)}")
        self._specs = new
        self._outbox.clear()
        self._abandon(self._unfinished())

    def holding(self) -> list[RoundKey]:
        """Return (ring, round) of the whole averages that were not committed: what this member can hand on."""
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
                self._pool.forget(whole.average)
            if contribution := self._kept.contributions.get((ring, round)):
                self._begin((ring, round), contribution)

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
        if result:
            self._finish(result)

    @property
    def stats(self) -> Mapping[str, RingStatistics]:
        """Return what each ring has cost since this reducer was made."""
        return self._stats

    def progress(self) -> dict[RoundKey, RingProgress]:
        """Return how far every unfinished ring and round is, for telling a slow member from a stalled one."""
        waiting = Counter(
            (message.ring, message.round) for message in self._outbox.waiting if isinstance(message, Chunk | HandedOn)
        )
        found = {}
        for key, executor in sorted(self._in_flight.items(), key=lambda item: item[0]):
            machine, sent = executor.machine, executor.sent - waiting[key]
            found[key] = RingProgress(machine.received, machine.expected, sent, machine.waits_for)
        for key, holder, handover in self._handovers.awaited():
            found[key] = RingProgress(handover.received, handover.expected, 0, holder)
        return found

    # One ring in one round.

    def _begin(self, key: RoundKey, contribution: RingContribution) -> None:
        """Contribute, for the first time or again after a restart."""
        executor = self._executor(key)
        event = ContributionReady(contribution.weight, contribution.counters)
        executor.begun_s = now_s = self._now()
        instructions = executor.machine.handle(event, now_s)
        if key not in self._kept.contributions:
            contribution.carry = self._kept.take_carry(key[0])
            self._kept.contributions[key] = contribution
        executor.begin(contribution)
        self._follow(key, executor, instructions, self._endpoint.name)
        self.pump()

    def _take_chunk(self, key: RoundKey, delivery: Delivery, chunk: Chunk) -> None:
        payload = checked(delivery, chunk, self._specs[chunk.ring])
        executor = self._executor(key)
        where = chunk.round, chunk.phase, chunk.block, chunk.start, chunk.stop
        event = ChunkArrived(delivery.sender, delivery.epoch, *where, chunk.weight, chunk.counters)
        executor.arrive(payload)
        now_s, before = self._now(), executor.machine.received
        self._follow(key, executor, executor.machine.handle(event, now_s), delivery.sender)
        if executor.machine.received > before:
            self._count(executor, delivery, chunk, now_s)

    def _executor(self, key: RoundKey) -> RingExecutor:
        executor = self._in_flight.get(key)
        if executor is None:
            spec = self._specs[key[0]]
            machine = spec.machine(self._endpoint.name, key[1], self._endpoint.epoch)
            executor = self._in_flight[key] = RingExecutor(spec, machine, self._pool, self._completed)
        return executor

    def _follow(self, key: RoundKey, executor: RingExecutor, todo: Sequence[RingInstruction], whose: str) -> None:
        """Do what the machine says about numbers of `whose`. Raises ContributionRefused once all of it is done."""
        result: RingResult | None = None
        refused: RefuseChunk | None = None
        for instruction in todo:
            if isinstance(instruction, FinishRing):
                result = self._whole(key, executor, instruction)
            elif isinstance(instruction, DropChunk):
                self.drops[instruction.reason] += 1
            elif isinstance(instruction, RefuseChunk):
                refused = instruction
            else:
                whose = instruction.sender if isinstance(instruction, TakeHeld) else whose
                self._do(key, executor, instruction, whose)
        if refused:
            raise ContributionRefused(refused.sender, *key, refused.reason)
        if result:
            self._finish(result)

    def _do(self, key: RoundKey, executor: RingExecutor, instruction: Arithmetic | SendChunk, whose: str) -> None:
        try:
            if isinstance(instruction, SendChunk):
                self._send(key, executor, instruction)
            else:
                executor.compute(instruction)
        except InvalidInput as error:
            # The wire cannot carry these numbers: this member's own, or what they became with those that came.
            raise ContributionRefused(whose, *key, str(error)) from None

    def _send(self, key: RoundKey, executor: RingExecutor, send: SendChunk) -> None:
        header = Chunk(
            ring=key[0],
            round=key[1],
            phase=send.phase,
            block=send.block,
            start=send.start,
            stop=send.stop,
            weight=send.weight,
            counters=send.counters,
        )
        tensors = executor.tensors(send)
        executor.sent += 1
        self._stats[key[0]].bytes_sent += sum(tensor.nbytes for tensor in tensors)
        self._outbox.put(send.to, header, tensors)

    def _whole(self, key: RoundKey, executor: RingExecutor, finish: FinishRing) -> RingResult:
        now_s = self._now()
        begun_s = now_s if executor.begun_s is None else executor.begun_s
        begun = (each.begun_s for (ring, _), each in self._in_flight.items() if ring == key[0])
        self._stats[key[0]].finish(begun_s, min((at_s for at_s in begun if at_s is not None), default=begun_s), now_s)
        del self._in_flight[key]
        self._kept.contributions[key].residual = executor.residual
        total, came = (finish.total_weight, finish.counters), executor.received_bytes
        return RingResult(*key, executor.room(), *total, executor.figures(), executor.digests(), came)

    def _count(self, executor: RingExecutor, delivery: Delivery, chunk: Chunk, now_s: float) -> None:
        stats, n_bytes = self._stats[chunk.ring], sum(tensor.nbytes for tensor in delivery.tensors)
        stats.bytes_received += n_bytes
        sender = delivery.sender
        if chunk.phase != "gather" and executor.machine.begins_at(chunk.block, sender):
            rate = executor.bursts.setdefault(sender, Burst()).add(n_bytes, now_s)
            if rate is not None:
                stats.hops[sender] = rate

    # What is admitted, finished and given up.

    def _require_open(self, round: int, ring: str) -> None:  # noqa: A002 - our word
        if ring not in self._specs:
            raise InvalidInput(f"{ring!r} is none of this member's rings {sorted(self._specs)}")
        if round <= self._kept.committed or self._kept.whole(ring, round):
            raise InvalidInput(f"round {round} of ring {ring!r} is finished")
        reason = self._kept.too_far(ring, round)
        if reason:
            raise InvalidInput(f"round {round} of ring {ring!r} is {reason}")

    def _admitted(self, delivery: Delivery, message: Chunk | HandedOn) -> RoundKey | None:
        """Return where an arrival belongs, or None when its round or its epoch is over. Raises ContributionRefused."""
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

    def _refuse(self, delivery: Delivery, lie: Unacceptable) -> bool:
        """Hold it against a member of a ring, unless its epoch is over. Returns whether it is of a ring's member."""
        rings = [name for name, spec in self._specs.items() if delivery.sender in spec.members]
        if not rings:
            return False
        if delivery.epoch < self._endpoint.epoch:
            self.drops[f"epoch {delivery.epoch}, not {self._endpoint.epoch}"] += 1
            return True
        raise ContributionRefused(delivery.sender, ", ".join(rings), self._kept.committed + 1, lie.reason)

    def _take_piece(self, delivery: Delivery, piece: HandedOn) -> None:
        sender, key = delivery.sender, self._admitted(delivery, piece)
        if key is None:
            return
        spec = self._specs[piece.ring]
        reason = self._handovers.why_not(spec, sender, piece) or self._kept.why_not_counted(key, piece.counters)
        if reason:
            raise ContributionRefused(sender, *key, reason)
        span = checked(delivery, piece, spec).numbers
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
            self._handovers.forget(key)
            executor = self._in_flight.pop(key, None)
            if executor is None:
                continue
            if contribution := self._kept.contributions.get(key):
                # If others complete the round without this member, everything that it had to send was sent.
                contribution.residual = executor.residual
            if executor.average is not None:
                self._pool.forget(executor.average)  # peers of the ended epoch may still read what it lent them

    def _unfinished(self) -> list[RoundKey]:
        return sorted({*self._in_flight, *self._handovers.keys()})
