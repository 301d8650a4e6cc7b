"""What a message that begins an epoch may make of a stage's rings, and what it may not."""

import pytest

from ravnest.errors import InvalidInput
from ravnest.stage import epoch_messages as em
from ravnest.stage.epoch_rings import resume_of, segments_among
from ravnest.stage.setup import SegmentSetup
from ring_allreduce import RingSpec

MEMBERS = ("x", "y", "z")
HALVES = em.RingDivision(2, (0.5, 0.5), direct=False)
DIRECT = em.RingDivision(4, None, direct=True)


def spec(name):
    return RingSpec(name, MEMBERS, elements=8, chunk_elements=2)


SEGMENTS = {
    0: SegmentSetup(0, ("w",), (), (), (), spec("0"), None, keeper=False),
    3: SegmentSetup(3, ("v",), ("mean",), (), (), spec("3"), spec("3.buffers"), keeper=True),
}


def ring(number, *divisions, keeper=False):
    return em.ReformedRing(ring=number, members=("x", "z"), divisions=divisions, keeper=keeper)


def reformed(*rings):
    return em.RingsReformedMessage(epoch=1, committed=0, rings=rings, lost=("y",))


def test_each_segment_gets_the_ring_of_its_number_and_each_vector_its_division():
    among = segments_among(SEGMENTS, reformed(ring(3, HALVES, DIRECT), ring(0, DIRECT, keeper=True)))
    assert [among[number].keeper for number in (0, 3)] == [True, False]
    assert {spec.members for segment in among.values() for spec in segment.rings} == {("x", "z")}
    progress, buffers = among[3].rings
    assert (progress.name, progress.chunk_elements, progress.shares, progress.direct) == ("3", 2, (0.5, 0.5), False)
    assert (buffers.name, buffers.chunk_elements, buffers.shares, buffers.direct) == ("3.buffers", 4, None, True)


@pytest.mark.parametrize(
    ("rings", "reason"),
    [
        ([ring(0, HALVES)], r"the rings \[0, 3\], not \[0\]"),
        ([ring(0, HALVES), ring(3, HALVES, HALVES), ring(4, HALVES)], "not .*4"),
        ([ring(0, HALVES), ring(0, HALVES), ring(3, HALVES, HALVES)], r"not \[0, 0, 3\]"),
        ([ring(0, HALVES), ring(3, HALVES)], "ring 3 averages 2 vectors, not 1"),
    ],
)
def test_rings_that_are_not_those_of_the_stage_are_refused(rings, reason):
    with pytest.raises(InvalidInput, match=reason):
        segments_among(SEGMENTS, reformed(*rings))


def resumed(*hand_on):
    return em.RoundsResumedMessage(epoch=1, kept=(2,), hand_on=hand_on, first_round=1)


def test_rounds_go_on_as_the_message_says():
    resume = resume_of(SEGMENTS, "x", resumed((3, 2, "z", ("x",)), (7, 2, "a", ("b",))))
    assert (resume.epoch, resume.kept, dict(resume.first_rounds)) == (1, (2,), {"x": 1})
    assert resume.hand_on == (("3", 2, "z", ("x",)), ("7", 2, "a", ("b",))), "others' rings are no affair of x"


@pytest.mark.parametrize(
    "hand_on", [(7, 2, "z", ("x",)), (3, 2, "a", ("x",)), (3, 2, "x", ("b",)), (3, 2, "x", ("x",))]
)
def test_averages_that_cannot_be_handed_on_are_refused(hand_on):
    with pytest.raises(InvalidInput, match=f"round 2 of ring {hand_on[0]} cannot go from {hand_on[2]}"):
        resume_of(SEGMENTS, "x", resumed(hand_on))
