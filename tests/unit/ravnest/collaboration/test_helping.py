"""What a helper does in a collaboration is played in test_sharing.py; here are its refusals and limits."""

from collections.abc import Mapping

import pytest
import torch

from ravnest.collaboration import transfers
from ravnest.collaboration.giving import Giving
from ravnest.collaboration.helping import ALIVE_S, MOST_HELD, MOST_UNKNOWN, NEXT_TICKET_S, TICKET_S, Helping
from ravnest.collaboration.messages import (
    AdmitMessage,
    AliveMessage,
    ChallengeMessage,
    CountMessage,
    GiveMessage,
    GotMessage,
    HelpMessage,
    MakeMeanMessage,
    PartMessage,
    PieceMessage,
    RatesMessage,
    RelayMessage,
    TensorMessage,
    TicketMessage,
    TransferMessage,
    WithoutMessage,
)
from ravnest.collaboration.packing import Packing
from ravnest.collaboration.shares import Division, in_part
from ravnest.collaboration.transfers import AVERAGES_FIRST, Form, pieces
from ravnest.errors import RunFailed
from ring_allreduce.transport import LineClosed, LineOpened, LineSaid, Message
from tests.unit.ravnest.collaboration.lines_twin import LinesTwin

SERVING = 99
BOUNDS = (16, 48)


class World:
    def __init__(self, last: Mapping[str, torch.Tensor] | None = None) -> None:
        self.lines = LinesTwin()
        self.packing = Packing([Form("g", torch.float32, 48), Form("s", torch.float32, 1)])
        self.state = [(Form("w", torch.float32, 48), torch.arange(48.0))]
        self.giving = Giving(lambda: (3, self.state), lambda: 3, self.lines)  # type: ignore[arg-type]
        self.helping = Helping(
            self.packing, 8, self.lines, SERVING, lambda: last, lambda: (0, 3), self.giving, self.lines.now,  # type: ignore[arg-type]
        )  # fmt: skip
        self.helping.hear(HelpMessage(epoch=1, part=1, bounds=BOUNDS))

    def admits(self, line: int) -> None:
        self.helping.hear(AdmitMessage(visit=line, ticket=b"t%d" % line))

    def opens(self, line: int) -> None:
        self.helping.take(LineOpened(line, "guest"))

    def says(self, line: int, message: Message, *tensors: torch.Tensor) -> None:
        self.helping.take(LineSaid(line, message, tensors))

    def comes(self, line: int) -> None:
        self.admits(line)
        self.opens(line)
        self.says(line, TicketMessage(ticket=b"t%d" % line))

    def gives(self, line: int, value: float, samples: int = 4, step: int = 3, epoch: int = 1, part: int = 1) -> None:
        form = Form("g", torch.float32, 32)
        vector = torch.full((32,), value * samples)
        for message, tensors in in_part(list(pieces("contribution", step, samples, [(form, vector)])), epoch, part):
            self.says(line, message, *tensors)

    def parts(self) -> list[PartMessage]:
        return [one for one in self.lines.said(PartMessage, SERVING) if isinstance(one, PartMessage)]


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "PIECE_BYTES", 64)


def test_it_says_that_it_stands_by_and_answers_a_ticket_once_that_is_known() -> None:
    world = World()
    world.opens(1)
    (challenge,) = world.lines.said(ChallengeMessage, 1)
    assert isinstance(challenge, ChallengeMessage)
    assert not challenge.serves
    world.says(1, TicketMessage(ticket=b"t1"))
    assert not world.lines.said(AliveMessage, 1)
    world.admits(1)
    assert world.lines.said(AliveMessage, 1) == [AliveMessage(step=3, epoch=1)]
    world.opens(2)
    world.says(2, TicketMessage(ticket=b"t1"))  # it is used up
    assert not world.lines.said(AliveMessage, 2)


def test_who_speaks_without_a_ticket_or_brings_none_in_time_is_hung_up() -> None:
    world = World()
    for line in (1, 2):
        world.opens(line)
    world.says(1, GotMessage(pieces=0))
    assert "without a ticket" in world.lines.hung_up[1]
    world.lines.now_s = TICKET_S + 1.0
    world.helping.tend()
    assert 2 in world.lines.hung_up
    for line in range(3, 4 + MOST_UNKNOWN):
        world.opens(line)
    assert list(world.lines.hung_up) == [1, 2, 3]  # the oldest gives way


def test_a_mean_of_what_is_counted_goes_to_the_backbone_and_to_who_was_named() -> None:
    world = World({"g": torch.ones(48), "s": torch.ones(1)})
    for line in (1, 2, 3):
        world.comes(line)
        world.gives(line, float(line))
    assert [one.deviation for one in world.parts()] == pytest.approx([0.0, 32**0.5, 2 * 32**0.5])
    world.helping.hear(CountMessage(epoch=1, visit=2, number=0, scale=1.0))
    world.helping.hear(CountMessage(epoch=1, visit=1, number=0, scale=None))
    world.helping.hear(CountMessage(epoch=1, visit=3, number=0, scale=0.5))  # halfway back to the last mean: 2
    mean = world.helping.hear(MakeMeanMessage(epoch=1, step=3, visits=(1, 2)))
    assert mean is not None
    assert mean["g"].tolist() == [2.0] * 32
    assert [len(world.lines.said(PieceMessage, line)) for line in (SERVING, 1, 2, 3)] == [2, 2, 2, 0]
    (began,) = world.lines.said(TransferMessage, 1)
    assert isinstance(began, TransferMessage)
    assert (began.what, began.step, began.samples, began.epoch, began.part) == ("average", 3, 8, 1, 1)
    assert not world.lines.said(RatesMessage)
    world.helping.hear(GotMessage(pieces=2))
    for line in (1, 2):
        world.says(line, GotMessage(pieces=2))
    world.helping.tend()
    (rates,) = world.lines.said(RatesMessage, SERVING)
    assert isinstance(rates, RatesMessage)
    assert rates.step == 3


def test_what_is_no_part_is_refused_to_the_backbone_under_its_number() -> None:
    world = World()
    world.comes(1)
    world.gives(1, float("nan"))
    world.gives(1, 1.0, samples=9)
    world.gives(1, 1.0, part=0)
    world.gives(1, 1.0, epoch=2)  # of another epoch: it has no number
    world.gives(1, 1.0)
    assert [bool(one.refused) for one in world.parts()] == [True, True, True, False]
    assert [one.number for one in world.parts()] == [0, 1, 2, 3]
    world.helping.hear(CountMessage(epoch=1, visit=1, number=1, scale=None))
    world.helping.hear(CountMessage(epoch=1, visit=1, number=3, scale=1.0))
    assert world.helping.hear(MakeMeanMessage(epoch=1, step=3, visits=())) is not None


def test_a_volunteer_holds_so_much_memory_and_no_more() -> None:
    world = World()
    world.comes(1)
    for _ in range(MOST_HELD + 2):
        world.gives(1, 1.0)
    assert [bool(one.refused) for one in world.parts()] == [False] * MOST_HELD + [True] * 2


def test_a_step_that_is_collected_further_again_and_again_has_nobody_refused() -> None:
    world = World()
    world.comes(1)
    for _ in range(6):  # while too few people are known, none is counted before the step's end
        world.gives(1, 1.0)
    for number in range(6):
        world.helping.hear(CountMessage(epoch=1, visit=1, number=number, scale=1.0))
    assert not any(one.refused for one in world.parts())
    assert world.helping.hear(MakeMeanMessage(epoch=1, step=3, visits=())) is not None


def test_what_a_backbone_never_says_ends_the_line_to_it() -> None:
    for message in (
        HelpMessage(epoch=2, part=2, bounds=BOUNDS),
        HelpMessage(epoch=2, part=0, bounds=BOUNDS),
        CountMessage(epoch=1, visit=5, number=0, scale=1.0),
        MakeMeanMessage(epoch=1, step=3, visits=()),
    ):
        with pytest.raises(RunFailed):
            World().helping.hear(message)


def test_who_leaves_still_counts_in_its_step_and_is_forgotten_then() -> None:
    world = World()
    world.comes(1)
    world.gives(1, 1.0)
    world.gives(1, 2.0)
    world.helping.hear(AdmitMessage(visit=1, ticket=b""))
    assert 1 in world.lines.hung_up
    world.helping.hear(CountMessage(epoch=1, visit=1, number=0, scale=1.0))
    mean = world.helping.hear(MakeMeanMessage(epoch=1, step=3, visits=(1,)))
    assert mean is not None
    assert mean["g"].tolist() == [1.0] * 32
    with pytest.raises(RunFailed):
        world.helping.hear(CountMessage(epoch=1, visit=1, number=1, scale=1.0))


def test_when_its_epoch_is_over_all_volunteers_are_hung_up() -> None:
    world = World()
    world.comes(1)
    world.gives(1, 1.0)
    world.helping.hear(WithoutMessage(epoch=7, step=0))
    assert world.helping.epoch == (1, 1)
    world.helping.hear(WithoutMessage(epoch=1, step=0))
    assert 1 in world.lines.hung_up
    assert world.helping.epoch[0] == 0
    assert world.helping.hear(MakeMeanMessage(epoch=1, step=3, visits=())) is None


def test_everyone_hears_something_now_and_then() -> None:
    world = World()
    world.comes(1)
    said = len(world.lines.said(AliveMessage))
    world.lines.now_s = ALIVE_S
    world.helping.tend()
    world.helping.tend()
    assert len(world.lines.said(AliveMessage)) == said + 2
    assert Division(world.packing, BOUNDS).parts == 2


def test_who_has_brought_a_ticket_may_bring_the_next_epoch_s_after_a_long_micro_batch() -> None:
    world = World()
    world.comes(1)
    world.helping.hear(HelpMessage(epoch=2, part=1, bounds=BOUNDS))
    world.lines.now_s = NEXT_TICKET_S
    world.helping.tend()
    for line in range(2, 3 + MOST_UNKNOWN):
        world.opens(line)
    assert list(world.lines.hung_up) == [2]
    world.lines.now_s += 1.0
    world.helping.tend()
    assert 1 in world.lines.hung_up


def test_a_ticket_that_is_none_ends_what_was_under_way_and_nothing_is_said_of_it() -> None:
    world = World()
    world.comes(1)
    world.says(1, TransferMessage(what="contribution", step=3, tensors=1, samples=4, epoch=1, part=1))
    world.says(1, TicketMessage(ticket=b"made up"))
    world.says(1, PieceMessage(start=7, stop=9))
    world.gives(1, 1.0)
    assert world.parts() == []


def test_pieces_that_nobody_sent_are_not_measured() -> None:
    world = World()
    world.comes(1)
    world.comes(2)
    world.says(1, GotMessage(pieces=1 << 40))
    assert 1 in world.lines.hung_up
    world.gives(2, 1.0)
    world.helping.hear(CountMessage(epoch=1, visit=2, number=0, scale=1.0))
    world.helping.hear(MakeMeanMessage(epoch=1, step=3, visits=(2,)))
    world.lines.now_s = 0.5
    world.helping.hear(GotMessage(pieces=2))
    world.says(2, GotMessage(pieces=2))
    world.lines.now_s = 1.0
    world.helping.tend()
    (rates,) = world.lines.said(RatesMessage, SERVING)
    assert isinstance(rates, RatesMessage)
    assert rates.up_bytes_per_s < 1e6


def test_who_brings_a_ticket_for_the_state_is_sent_it_whatever_becomes_of_the_epoch() -> None:
    world = World()
    for line in (1, 2):
        world.opens(line)
    world.says(1, TicketMessage(ticket=b"s1"))  # it is faster than the word of it
    for line in (1, 2):
        world.helping.hear(GiveMessage(visit=line, ticket=b"s%d" % line, step=3))
    world.says(2, TicketMessage(ticket=b"s2"))
    world.helping.hear(WithoutMessage(epoch=1, step=0))
    world.lines.now_s = NEXT_TICKET_S + 1.0
    world.helping.tend()
    for line in (1, 2):
        assert line not in world.lines.hung_up
        (began, *_) = world.lines.said(TransferMessage, line)
        assert isinstance(began, TransferMessage)
        assert began.what == "state"
        assert world.lines.said(AliveMessage, line)
    world.says(1, TicketMessage(ticket=b"t1"))
    assert 1 in world.lines.hung_up
    world.helping.take(LineClosed(2, "it has the state"))
    world.helping.tend()


def test_states_wait_for_means_for_a_part_of_a_step() -> None:
    world = World()
    world.comes(1)
    world.opens(2)
    world.helping.hear(GiveMessage(visit=2, ticket=b"s2", step=3))
    world.gives(1, 1.0)
    world.helping.hear(CountMessage(epoch=1, visit=1, number=0, scale=1.0))
    world.lines.now_s = 10.0
    world.helping.hear(MakeMeanMessage(epoch=1, step=3, visits=(1,)))
    world.says(2, TicketMessage(ticket=b"s2"))
    world.helping.tend()
    assert not world.lines.said(PieceMessage, 2)
    world.lines.now_s += 10.0 * AVERAGES_FIRST
    world.helping.tend()
    assert world.lines.said(PieceMessage, 2)


def test_a_part_that_the_serving_machine_hands_on_counts_as_its_volunteer_s() -> None:
    world = World()
    world.comes(1)
    world.gives(1, 1.0)
    for visit, epoch, value in ((7, 1, 3.0), (7, 1, float("nan")), (8, 2, 5.0)):
        world.helping.relays(RelayMessage(epoch=epoch, visit=visit))
        said = pieces("contribution", 3, 4, [(Form("g", torch.float32, 32), torch.full((32,), 4 * value))])
        for message, tensors in in_part(list(said), epoch, 1):
            assert world.helping.takes_relayed
            assert isinstance(message, TransferMessage | TensorMessage | PieceMessage)
            world.helping.take_relayed(message, tensors)
    world.helping.relay_ends()
    assert not world.helping.takes_relayed
    assert [(one.visit, one.number, bool(one.refused)) for one in world.parts()] == [
        (1, 0, False), (7, 0, False), (7, 1, True)
    ]  # fmt: skip
    assert not world.lines.said(GotMessage, SERVING)  # who has the line counts its pieces
    for visit in (1, 7):
        world.helping.hear(CountMessage(epoch=1, visit=visit, number=0, scale=1.0))
    world.helping.hear(AdmitMessage(visit=7, ticket=b""))
    mean = world.helping.hear(MakeMeanMessage(epoch=1, step=3, visits=(1,)))
    assert mean is not None
    assert mean["g"].tolist() == [2.0] * 32
