"""The rings of a stage in a new epoch of membership: what the driver says of them, checked against what the stage has.

In: the stage's segments, and a message that begins an epoch. Out: the segments with their new rings, and how rounds go
on. A message that does not fit raises InvalidInput, which the stage's runtime tells with the sender's name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ravnest.errors import InvalidInput
from ravnest.stage import epoch_messages as em
from ravnest.stage.setup import SegmentSetup
from ring_allreduce import RingSpec
from ring_allreduce.rounds import Resume
from ring_allreduce.transport import PeerAddress


def segments_among(segments: Mapping[int, SegmentSetup], message: em.RingsReformedMessage) -> dict[int, SegmentSetup]:
    """Return the segments by ring, with the rings that the message names.

    Raises InvalidInput unless it names just these rings, and as many vectors of each as the stage has.
    """
    reformed = {ring.ring: ring for ring in message.rings}
    if reformed.keys() != segments.keys() or len(reformed) != len(message.rings):
        raise InvalidInput(f"this stage is in the rings {sorted(segments)}, not {[r.ring for r in message.rings]}")
    return {ring: _among(segment, reformed[ring]) for ring, segment in segments.items()}


def addresses_of(peers: Iterable[em.PeerPlace]) -> dict[str, PeerAddress]:
    """Return where each stage listens that a message names."""
    return {peer.stage: PeerAddress(peer.host, peer.pipeline_port, peer.bulk_port) for peer in peers}


def resume_of(segments: Mapping[int, SegmentSetup], me: str, message: em.RoundsResumedMessage) -> Resume:
    """Return how rounds go on for the stage `me`.

    Raises InvalidInput where this stage is to hand on or take an average that is of none of its rings, or between
    others than the members of its ring.
    """
    for ring, number, holder, to in message.hand_on:
        if me not in (holder, *to):
            continue
        members = segments[ring].members if ring in segments else ()
        if not {holder, *to} <= {*members} or holder in to:
            raise InvalidInput(f"round {number} of ring {ring} cannot go from {holder} to {to}: it has {members}")
    hand_on = tuple((str(ring), number, holder, to) for ring, number, holder, to in message.hand_on)
    return Resume(message.epoch, message.kept, hand_on, {me: message.first_round})


def _among(segment: SegmentSetup, ring: em.ReformedRing) -> SegmentSetup:
    """The segment with the ring that the message names. Raises InvalidInput where it has not as many vectors."""
    if len(ring.divisions) != len(segment.rings):
        raise InvalidInput(f"ring {ring.ring} averages {len(segment.rings)} vectors, not {len(ring.divisions)}")
    divisions = iter(ring.divisions)

    def divided(spec: RingSpec | None) -> RingSpec | None:
        return None if spec is None else _divided(spec, ring.members, next(divisions))

    return replace(
        segment,
        progress=_divided(segment.progress, ring.members, next(divisions)),
        averaged_buffers=divided(segment.averaged_buffers),
        taken_buffers=divided(segment.taken_buffers),
        keeper=ring.keeper,
    )


def _divided(spec: RingSpec, members: tuple[str, ...], division: em.RingDivision) -> RingSpec:
    """The same ring among other members, who divide its vector in another way."""
    return replace(
        spec,
        members=members,
        chunk_elements=division.chunk_elements,
        shares=division.shares,
        direct=division.direct,
        groups=division.groups,
    )
