"""What a machine that stands by does for who takes the state from it; all sides play in test_admissions_played.py."""

import pytest
import torch

from ravnest.collaboration import transfers
from ravnest.collaboration.giving import Giving
from ravnest.collaboration.messages import AliveMessage, GiveMessage, GotMessage, PieceMessage, TransferMessage
from ravnest.collaboration.transfers import STATE_WINDOW, Form
from ring_allreduce.transport import LineClosed, LineSaid, Message
from tests.unit.ravnest.collaboration.lines_twin import LinesTwin

FORM = Form("w", torch.float32, 80)


class World:
    def __init__(self, step: int = 5) -> None:
        self.lines, self.step = LinesTwin(), step
        self.giving = Giving(
            lambda: (self.step, [(FORM, torch.full((80,), float(self.step)))]), lambda: self.step, self.lines  # type: ignore[arg-type]
        )  # fmt: skip

    def lets(self, line: int, step: int = 5) -> None:
        """The volunteer of this visit brings its ticket on the line of that number."""
        self.giving.told(GiveMessage(visit=100 + line, ticket=b"t%d" % line, step=step))
        assert self.giving.begins(line, b"t%d" % line)

    def says(self, line: int, message: Message) -> None:
        self.giving.hear(LineSaid(line, message, ()))

    def sent(self, line: int) -> int:
        return len(self.lines.said(PieceMessage, line))


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "PIECE_BYTES", 64)


def test_who_brings_a_ticket_is_sent_the_state_few_pieces_at_a_time() -> None:
    world = World()
    assert not world.giving.begins(1, b"t1")
    world.lets(1)
    assert 1 in world.giving
    assert world.lines.said(AliveMessage, 1)
    assert not world.giving.begins(2, b"t1"), "a ticket is brought once"
    world.giving.pump(waits=True)
    assert not world.sent(1)
    while world.sent(1) < 5:
        before = world.sent(1)
        world.giving.pump(waits=False)
        assert before < world.sent(1) <= before + STATE_WINDOW
        world.says(1, GotMessage(pieces=world.sent(1)))
    (began,) = world.lines.said(TransferMessage, 1)
    assert isinstance(began, TransferMessage)
    assert (began.what, began.step) == ("state", 5)


def test_a_state_that_is_too_old_is_not_sent_before_the_averages_that_it_lacks_have_come() -> None:
    world = World(step=4)
    world.lets(1, step=6)
    for step in (4, 5):
        world.step = step
        world.giving.pump(waits=False)
        assert not world.lines.said(TransferMessage)
    world.step = 7
    world.giving.pump(waits=False)
    world.step = 8
    world.giving.pump(waits=False)
    sent = [tensors[0] for _, message, tensors in world.lines.sent if isinstance(message, PieceMessage)]
    assert [one.unique().tolist() for one in sent] == [[7.0]] * STATE_WINDOW, "all of it is of one step"


def test_who_needs_none_any_more_or_says_anything_else_is_hung_up_alone() -> None:
    world = World()
    for line in (1, 2, 3, 4):
        world.lets(line)
    world.giving.told(GiveMessage(visit=109, ticket=b"t9", step=5))
    world.giving.told(GiveMessage(visit=109, ticket=b"", step=0))
    assert not world.giving.begins(9, b"t9")
    world.giving.told(GiveMessage(visit=101, ticket=b"", step=0))
    world.says(2, AliveMessage(step=5))
    world.says(3, GotMessage(pieces=1))
    assert set(world.lines.hung_up) == {1, 2, 3}
    world.giving.hear(LineClosed(4, "it has left"))
    assert 4 not in world.giving
    assert 4 not in world.lines.hung_up


def test_when_it_follows_no_more_nobody_takes_the_state_here() -> None:
    world = World()
    world.lets(1)
    world.giving.told(GiveMessage(visit=2, ticket=b"t2", step=5))
    world.giving.end()
    assert 1 in world.lines.hung_up
    assert not world.giving.begins(2, b"t2")
