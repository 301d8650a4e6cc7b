"""A stage takes segments of donors, one of which may be wrong. Donors here are real ones, whose pieces the test may
change."""

from dataclasses import replace

import pytest
import torch

from ravnest.checkpoints.weight_files import tensors_in
from ravnest.errors import InvalidInput
from ravnest.job.initial_weights import make_weights
from ravnest.splitting import StageModule
from ravnest.stage import donor_messages as dm
from ravnest.stage import messages as m
from ravnest.stage.rings import StageRings
from ravnest.stage.rounds import StageRounds
from ravnest.stage.segment_taking import FIRST_PIECE_S, PIECE_FLOOR_S, SegmentTaking
from ravnest.training.weights import VersionedWeights
from ring_allreduce.transport import Delivery, InProcessNetwork
from tests.support.local import JOB_FILE, setups_of, tiny_job

CNN = {"model": {"factory": "tiny:cnn"}, "data": {"factory": "tiny:images"}}
OUTER = {"outer": {"nesterov": {"lr": 0.7, "momentum": 0.9}}}


class Pair:
    """c0.s0 gives, and c1.s0 takes."""

    def __init__(self, monkeypatch=None, piece=512):
        if monkeypatch is not None:
            monkeypatch.setattr(dm, "GIVEN_PIECE_BYTES", piece)
        job = tiny_job(**CNN, averaging=OUTER)
        setups, _ = setups_of(job, parts=(1, 1))
        network = InProcessNetwork()
        endpoints = {name: network.endpoint(name, m.codec()) for name in (*setups, m.DRIVER)}
        network.connect_all()
        setup = setups["c0.s0"]
        module = StageModule(setup.program, make_weights(job, JOB_FILE))
        weights = VersionedWeights(module, job.optimizer)
        self.rounds = StageRounds(setup, module, weights, StageRings(setup, endpoints["c0.s0"]))
        self.taking = SegmentTaking(setups["c1.s0"])

    def ask(self, from_round=0):
        ((donor, asked),) = self.taking.ask([(0, "c0.s0")], from_round, 0.0)
        assert donor == "c0.s0"
        assert self.rounds.giving.take(Delivery("c1.s0", 1, asked, ()))
        return asked

    def given(self):
        return [(header, tensors) for _, header, tensors in self.rounds.giving.pieces()]

    def arrive(self, header, tensors, newest=9, sender="c0.s0", now_s=1.0):
        return self.taking.take(Delivery(sender, 1, header, tuple(tensors)), newest, now_s)

    def hand_over(self, change=lambda header, tensors: (header, tensors)):
        """Let all pieces come. Returns what the driver is told."""
        for _ in range(1000):
            for header, tensors in self.given():
                for to, message in self.arrive(*change(header, tensors)):
                    if to == m.DRIVER:
                        return message
                    assert self.rounds.giving.take(Delivery("c1.s0", 1, message, ()))
        return None


@pytest.fixture
def pair(monkeypatch):
    return Pair(monkeypatch)


def test_all_of_a_segment_comes_in_pieces_bit_for_bit(pair):
    pair.ask()
    told = pair.hand_over()
    assert isinstance(told, dm.SegmentTaken)
    assert (told.ring, told.donor) == (0, "c0.s0")
    assert pair.taking.whole
    assert pair.taking.pieces > dm.WINDOW
    weights = pair.taking.weights
    (segment,) = pair.rounds.rings.segments.values()
    flat = torch.cat([weights[name].flatten() for name in segment.parameters])
    assert torch.equal(flat, pair.rounds.anchor(0))
    assert pair.taking.taken[0].round == 0
    assert list(pair.given()) == []


def header_with(header, **changes):
    fields = {name: getattr(header, name) for name in ("ring", "request", "round", "offset", "last")}
    return dm.SegmentPiece(**{**fields, **changes})


WRONG = {
    "no vector of bytes": lambda header, tensors: (header, [tensors[0].view(torch.int8)]),
    "not from": lambda header, tensors: (header_with(header, offset=header.offset + 1), tensors),
    "is the newest": lambda header, tensors: (header_with(header, round=99), tensors),
    "no safetensors": lambda header, tensors: (header, [torch.full_like(tensors[0], 7)]),
}


@pytest.mark.parametrize("why", WRONG)
def test_garbage_fails_the_donor_and_not_the_stage(pair, why):
    pair.ask()
    told = pair.hand_over(WRONG[why])
    assert isinstance(told, dm.SourceFailed)
    assert why in told.reason
    assert not pair.taking.whole


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("weight:head.weight", torch.full((5, 96), torch.nan), "not finite"),
        ("weight:head.weight", torch.zeros(5, 95), "not torch.float32 (5, 96)"),
        ("weight:head.weight", None, "it sent nothing for 'head.weight'"),
        ("weight:strange", torch.zeros(1), "'weight:strange', which is nothing of this segment"),
        ("optimizer:outer_x:head.weight", torch.zeros(5, 96), "of some parameters only"),
    ],
)
def test_a_state_that_is_not_the_segment_s_is_refused(pair, monkeypatch, name, value, why):
    def changed(data):
        held = tensors_in(data)
        held.pop(name, None)
        return held if value is None else {**held, name: value}

    monkeypatch.setattr("ravnest.stage.segment_taking.tensors_in", changed)
    pair.ask()
    told = pair.hand_over()
    assert isinstance(told, dm.SourceFailed)
    assert why in told.reason


def test_a_donor_that_never_ends_is_stopped():
    pair = Pair()
    asked = pair.ask()
    piece, answers, sent = torch.zeros(dm.GIVEN_PIECE_BYTES, dtype=torch.uint8), [], 0
    while not any(to == m.DRIVER for to, _ in answers) and sent < 100 << 20:
        header = dm.SegmentPiece(ring=0, request=asked.request, round=0, offset=sent, last=False)
        answers = pair.arrive(header, [piece])
        sent += len(piece)
    ((_, told),) = answers
    assert told.reason == "it sent more bytes than the segment has"
    assert sent < 4 << 20


def test_pieces_of_an_older_request_have_no_effect(pair):
    pair.ask()
    old = pair.given()
    pair.ask()
    assert all(pair.arrive(*each) == [] for each in old)
    assert pair.taking.pieces == 0
    assert isinstance(pair.hand_over(), dm.SegmentTaken)


def test_a_donor_that_stops_sending_is_given_up_after_its_deadline(pair):
    pair.ask()
    assert pair.taking.late(FIRST_PIECE_S - 1) == []
    header, tensors = pair.given()[0]
    pair.arrive(header, tensors, now_s=1.0)
    assert pair.taking.late(PIECE_FLOOR_S - 1) == []
    ((to, told),) = pair.taking.late(PIECE_FLOOR_S + 3)
    assert to == m.DRIVER
    assert (told.donor, "sent nothing for" in told.reason) == ("c0.s0", True)
    assert pair.taking.late(1e6) == []


def test_what_is_of_a_round_before_the_first_is_asked_for_again(pair):
    pair.ask()
    pair.hand_over()
    assert pair.taking.outdated(1) == []
    ((_, told),) = pair.taking.outdated(2)
    assert (told.ring, told.donor) == (0, "")
    assert not pair.taking.whole


def test_a_ring_that_is_not_its_own_is_refused(pair):
    with pytest.raises(InvalidInput, match=r"rings \[0\], not in 4"):
        pair.taking.ask([(4, "c0.s0")], 0, 0.0)


def test_constants_come_along():
    job = tiny_job(model={"factory": "tiny:counting"})
    setups, _ = setups_of(job, parts=(1, 1))
    (segment,) = setups["c0.s0"].segments
    assert segment.constants == ("seen",)
    assert replace(segment).names == segment.names
