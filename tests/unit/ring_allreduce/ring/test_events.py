"""Events and instructions print as one line and come back equal."""

from typing import get_args

import pytest

from ring_allreduce.errors import InvalidInput
from ring_allreduce.ring import events as ring_events
from ring_allreduce.ring.events import parse_line
from ring_allreduce.rounds import events as rounds

RING = get_args(ring_events.RingEvent) + get_args(ring_events.RingInstruction)
OWNER = get_args(rounds.OwnerEvent) + get_args(rounds.OwnerInstruction)
SAMPLES = [
    ring_events.ContributionReady(8.0, (3, 4)),
    ring_events.ChunkArrived("a", 0, 1, "reduce", 0, 0, 5, 2.5, ()),
    ring_events.StoreOwn(),
    ring_events.ScaleOwn(0, 5),
    ring_events.AddOwn(0, 5),
    ring_events.HoldChunk("a", 0, 0, 5),
    ring_events.TakeHeld("a", 0, 0, 5),
    ring_events.AddHeld("a", 0, 0, 5),
    ring_events.SumChunks(0, 5, 7.0),
    ring_events.StoreChunk(0, 5),
    ring_events.DivideChunk(0, 5, 7.0),
    ring_events.SendChunk("b", "gather", 1, 5, 9, 7.0, (4,)),
    ring_events.FinishRing(7.0, (4,)),
    ring_events.DropChunk("a", "round 2, not 1"),
    ring_events.RefuseChunk("a", "it's of another size"),
    rounds.SamplesReported("c0", 100),
    rounds.RoundRequested(),
    rounds.MemberFinished(1, "c0/0", "r0"),
    rounds.MemberLost("c0/0", "killed"),
    rounds.MemberSuspected(3, "c0/0", "nothing came", True),
    rounds.ReturnGivenUp("c1"),
    rounds.MemberHeld(3, "c0/0", (("r0", 1),), "float32 (10,)"),
    rounds.ClusterJoined("c1", {"c1/0": ("r0",)}),
    rounds.FinishRequested(),
    rounds.OpenRound(1, 0, False),
    rounds.CommitRound(1, 0),
    rounds.FailRun("lost 'c0/0'"),
    rounds.Reform(3, {"r0": ("c0/0", "c1/0")}, 1, {"c2/0": "killed"}),
    rounds.Resume(3, (2,), (("r0", 2, "c0/0", ("c1/0",)),), {"c0/0": 1, "c1/0": 1}),
    rounds.LeaveOut("c2/0", 3, "killed", False),
    rounds.RingFinished("r0", 1),
    rounds.MergeRound(1),
]
KINDS = (*RING, *OWNER, rounds.RingFinished, rounds.MergeRound)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_prints_and_parses(sample):
    line = str(sample)
    assert "\n" not in line
    assert parse_line(line, KINDS) == sample


def test_every_kind_is_sampled():
    assert {type(sample) for sample in SAMPLES} == set(KINDS)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "OpenRound",
        "OpenRound(1, 0, False)",
        "OpenRound(round=1)",
        "OpenRound(round='1', epoch=0, final=False)",
        "OpenRound(round=1, epoch=0, final=False, more=1)",
        "OpenRound(round=print(1), epoch=0, final=False)",
        "OpenRound(**{'round': 1})",
        "os.system(command='true')",
        "Unknown(round=1)",
        "OpenRound(round=1, epoch=0, final=False); 1",
    ],
)
def test_refuses_what_is_no_such_line(line):
    with pytest.raises(InvalidInput):
        parse_line(line, KINDS)
