"""Micro-batches, vectors and lost machines are tested in test_staged_trainer.py."""

import pytest

from ravnest.collaboration import lent_machines
from ravnest.collaboration.invitation import read_invitation
from ravnest.collaboration.lent_machines import LentMachines
from ravnest.collaboration.lent_messages import (
    LENT_PROTOCOL,
    FailedMessage,
    ForwardMessage,
    LendMessage,
    OutputMessage,
    ThanksMessage,
)
from ravnest.errors import InvalidInput, RunFailed
from ring_allreduce.transport import LineOpened, LineSaid, Message
from tests.unit.ravnest.collaboration.lines_twin import LinesTwin


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> LinesTwin:
    twin = LinesTwin()
    monkeypatch.setattr(lent_machines, "Lines", lambda *_, **__: twin)
    return twin


def waited(machines: LentMachines) -> None:
    with pytest.raises(RunFailed, match="did not come"):
        machines.assemble(None)  # type: ignore[arg-type]


def lend(protocol: int = LENT_PROTOCOL) -> LendMessage:
    return LendMessage(protocol=protocol, name="cellar", flops_per_s=1e9, free_bytes=1 << 30)


def test_other_machines_are_given_where_this_one_listens(lines: LinesTwin) -> None:
    machines = LentMachines(2, "ab" * 32, listen="192.168.1.5:0")
    given = read_invitation(machines.given.line())
    assert given == machines.given
    assert given.endpoints() == [("192.168.1.5", 7800)]


@pytest.mark.parametrize("stages", [0, 65])
def test_the_number_of_stages_has_bounds(stages: int, lines: LinesTwin) -> None:
    with pytest.raises(InvalidInput, match="expected 1 to 64"):
        LentMachines(stages, "ab" * 32, listen="127.0.0.1:0")


def test_machines_are_waited_for_but_not_for_ever(lines: LinesTwin) -> None:
    said: list[str] = []
    machines = LentMachines(2, "ab" * 32, listen="127.0.0.1:0", now=lines.now, tell=said.append)
    lines.events += [LineOpened(0, "guest"), LineSaid(0, lend(), ())]
    waited(machines)
    assert said[-1].startswith("1 of 2 machines are here")
    stopped = LentMachines(2, "ab" * 32, listen="127.0.0.1:0", now=lines.now, stop=lambda: True)
    with pytest.raises(RunFailed, match="stopped"):
        stopped.assemble(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "message", [lend(LENT_PROTOCOL + 1), OutputMessage(turn=0), ForwardMessage(turn=0), ThanksMessage()]
)
def test_who_says_what_no_machine_says_is_hung_up_on(message: Message, lines: LinesTwin) -> None:
    machines = LentMachines(2, "ab" * 32, listen="127.0.0.1:0", now=lines.now)
    lines.events += [LineOpened(0, "guest"), LineSaid(0, message, ())]
    waited(machines)
    assert lines.said(FailedMessage, 0)
    assert 0 in lines.hung_up


def test_at_the_end_machines_are_thanked(lines: LinesTwin) -> None:
    with LentMachines(2, "ab" * 32, listen="127.0.0.1:0", now=lines.now) as machines:
        lines.events += [LineOpened(0, "guest"), LineSaid(0, lend(), ())]
        waited(machines)
    assert lines.said(ThanksMessage, 0)
