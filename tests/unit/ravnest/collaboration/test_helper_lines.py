"""What a volunteer does with helpers in a collaboration is played in test_sharing.py; here its words and its limits."""

import pytest
import torch

from ravnest.collaboration import transfers
from ravnest.collaboration.helper_lines import SILENT_S, HelperLines
from ravnest.collaboration.messages import (
    AliveMessage,
    GotMessage,
    MissingMessage,
    OpenMessage,
    PieceMessage,
    ReachedMessage,
    SharesMessage,
    TicketMessage,
    TransferMessage,
)
from ravnest.collaboration.packing import Feedback, Packing
from ravnest.collaboration.shares import in_part
from ravnest.collaboration.transfers import Form, Outgoing
from ravnest.errors import InvalidInput
from ring_allreduce.errors import DeadlinePassed
from ring_allreduce.transport import KeyPair, Keys, LineClosed, LineSaid, Message
from tests.unit.ravnest.collaboration.lines_twin import LinesTwin

BACKBONE, HELPER = 1, 10
PACKING = Packing([Form("g", torch.float32, 48), Form("s", torch.float32, 1)])


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "PIECE_BYTES", 64)


class World:
    def __init__(self, *, reached: bool = True) -> None:
        self.lines, self.told = LinesTwin(), list[str]()
        self.dialled: list[tuple[str, int]] = []

        def dial(host: str, port: int, *_: object) -> int:
            self.dialled.append((host, port))
            if not reached:
                raise DeadlinePassed("a handshake", 5.0)
            return HELPER - 1 + len(self.dialled)

        self.lines.dial = dial  # type: ignore[attr-defined]
        pair = KeyPair.make()
        keys = Keys(pair, {"backbone": pair.public})
        self.helpers = HelperLines(
            PACKING, self.lines, BACKBONE, keys, self.told.append, self.lines.now  # type: ignore[arg-type]
        )  # fmt: skip
        self.outgoing = Outgoing()

    def begins(self, epoch: int = 1, addresses: tuple[str, ...] = ("b:2",)) -> None:
        self.helpers.told(SharesMessage(epoch=epoch, bounds=(16, 48), addresses=addresses, ticket=b"t"))

    def says(self, message: Message, *tensors: torch.Tensor, line: int = HELPER) -> None:
        self.helpers.hear(LineSaid(line, message, tensors), 3)

    def gives(self, step: int = 3) -> None:
        sent = Feedback(PACKING).pieces("contribution", step, 4, [torch.ones(48), torch.ones(1)], 4.0)
        self.helpers.send(step, sent, self.outgoing)

    def to_backbone(self) -> list[Message]:
        found: list[Message] = []
        while due := list(self.outgoing.due()):
            found += [message for message, _ in due]
            self.outgoing.got(sum(isinstance(one, PieceMessage) for one in found))
        return found


def elements(said: list[Message]) -> int:
    return sum(one.stop - one.start for one in said if isinstance(one, PieceMessage))


def test_an_epoch_is_reached_once_every_helper_has_answered() -> None:
    world = World()
    world.begins()
    assert world.dialled == [("b", 2)]
    assert world.lines.said(TicketMessage, HELPER)
    assert not world.lines.said(ReachedMessage)
    world.says(AliveMessage(step=3, epoch=1))
    world.says(AliveMessage(step=3, epoch=1))
    assert world.lines.said(ReachedMessage, BACKBONE) == [ReachedMessage(epoch=1)]
    world.begins(epoch=2)  # the line is still there
    assert len(world.dialled) == 1
    for under_way in (0, 1):
        world.says(AliveMessage(step=3, epoch=under_way))
    assert len(world.lines.said(ReachedMessage, BACKBONE)) == 1
    world.says(AliveMessage(step=3, epoch=2))
    assert world.lines.said(ReachedMessage, BACKBONE)[-1] == ReachedMessage(epoch=2)


def test_a_helper_that_is_not_reached_or_lost_or_silent_is_told_of() -> None:
    away = World(reached=False)
    away.begins()
    assert away.lines.said(ReachedMessage) == [ReachedMessage(epoch=1, lost=1)]
    for how in ("closed", "silent", "nonsense"):
        world = World()
        world.begins()
        world.says(AliveMessage(step=3, epoch=1))
        if how == "closed":
            world.helpers.hear(LineClosed(HELPER, "it has left"), 3)
        elif how == "silent":
            world.lines.now_s = SILENT_S + 1.0
            world.helpers.tend()
        else:
            world.says(OpenMessage(step=3, stop=1))
        assert world.lines.said(ReachedMessage)[-1] == ReachedMessage(epoch=1, lost=1)


def test_a_contribution_goes_where_its_ranges_are_and_comes_again_whole_when_the_epoch_is_over() -> None:
    world = World()
    world.begins()
    world.says(AliveMessage(step=3, epoch=1))
    world.helpers.opened(3, 1)
    world.gives()
    world.helpers.tend()
    to_helper = world.lines.said(PieceMessage, HELPER)
    assert elements(to_helper) == 32
    assert elements(world.to_backbone()) == 16 + 1
    world.helpers.without(1, 3, world.outgoing)
    again = world.to_backbone()
    assert [one.epoch for one in again if isinstance(one, TransferMessage)] == [0]
    assert elements(again) == 48 + 1
    assert HELPER in world.lines.hung_up
    world.gives()
    assert elements(world.to_backbone()) == 48 + 1


def test_what_was_averaged_is_not_sent_again() -> None:
    world = World()
    world.begins()
    world.says(AliveMessage(step=3, epoch=1))
    world.helpers.opened(3, 1)
    world.gives()
    world.to_backbone()
    world.helpers.took(3)
    world.helpers.without(1, 3, world.outgoing)
    assert world.to_backbone() == []


def test_what_a_lost_helper_owes_of_an_average_that_is_made_is_asked_for() -> None:
    world = World()
    world.begins()
    world.says(AliveMessage(step=3, epoch=1))
    world.helpers.averages.put(3, 1, 0, {"g": torch.ones(16), "s": torch.ones(1)})
    world.helpers.averages.made(3)
    world.helpers.tend()
    assert not world.lines.said(MissingMessage)
    world.helpers.without(1, 4, world.outgoing)
    world.helpers.tend()
    world.helpers.tend()
    assert world.lines.said(MissingMessage, BACKBONE) == [MissingMessage(step=3, part=1)]
    world.lines.now_s = SILENT_S
    world.helpers.tend()
    assert len(world.lines.said(MissingMessage)) == 2


def test_a_mean_comes_in_and_each_piece_is_acknowledged() -> None:
    world = World()
    world.begins()
    world.says(AliveMessage(step=3, epoch=1))
    part = PACKING.sent[0]
    vector = torch.linspace(0, 1, 32)
    sent = list(
        Feedback(Packing([Form(part.name, part.dtype, 32)])).pieces("average", 3, 4, [vector]),
    )
    for message, tensors in in_part(sent, 1, 1):
        world.says(message, *tensors)
    assert world.lines.said(GotMessage, HELPER) == [GotMessage(pieces=1), GotMessage(pieces=2)]
    world.helpers.averages.put(3, 1, 0, {"g": torch.ones(16), "s": torch.ones(1)})
    world.helpers.averages.made(3)
    mean = world.helpers.averages.ready(3)
    assert mean is not None
    assert torch.equal(mean["g"][16:], vector)


def test_ranges_that_are_none_and_epochs_that_were_not_told_are_the_backbones_fault() -> None:
    world = World()
    with pytest.raises(InvalidInput):
        world.begins(addresses=("b:2", "c:2"))
    with pytest.raises(InvalidInput):
        world.helpers.opened(3, 9)


@pytest.mark.parametrize(("epoch", "part"), [(0, 0), (1, 0), (2, 1)])
def test_a_helper_s_word_is_its_own_part_and_no_whole_average(epoch: int, part: int) -> None:
    world = World()
    world.begins()
    world.says(AliveMessage(step=3, epoch=1))
    world.says(TransferMessage(what="average", step=3, tensors=2, samples=4, epoch=epoch, part=part))
    assert world.lines.said(ReachedMessage)[-1] == ReachedMessage(epoch=1, lost=1)
