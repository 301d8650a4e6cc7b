import torch

from ravnest.collaboration.messages import PieceMessage
from ravnest.collaboration.pump import STATES_AT_ONCE, Pump
from ravnest.collaboration.transfers import AVERAGES_FIRST, PIECE_BYTES, STATE_WINDOW, WINDOW, Form, pieces
from ravnest.collaboration.visitor import Visitor
from tests.unit.ravnest.collaboration.lines_twin import LinesTwin

FORM = Form("g", torch.float32, 20 * PIECE_BYTES // 4)


class World:
    def __init__(self, count: int) -> None:
        self.lines, self.joined = LinesTwin(), list[int]()
        self.visitors = {line: Visitor(line, 0.0, agreed=True) for line in range(count)}
        self.pump = Pump(
            self.visitors, self.lines, self.lines.now, self._join, lambda visitor: self.joined.append(visitor.line)  # type: ignore[arg-type]
        )  # fmt: skip

    def _join(self, visitor: Visitor, own: bool) -> None:
        if own:
            visitor.joined = visitor.takes_state = True
            self.puts(visitor.line)

    def puts(self, line: int) -> None:
        self.visitors[line].outgoing.put_state(pieces("state", 0, 0, [(FORM, torch.zeros(FORM.elements))]))

    def averages(self, line: int, count: int = 1) -> None:
        for step in range(count):
            self.visitors[line].outgoing.put(pieces("average", step, 0, [(FORM, torch.zeros(FORM.elements))]))

    def sent(self, line: int) -> int:
        return len(self.lines.said(PieceMessage, line))


def test_so_many_take_the_state_at_a_time_and_who_has_it_is_told_of() -> None:
    world = World(STATES_AT_ONCE + 2)
    world.pump.pump()
    assert [line for line in world.visitors if world.sent(line)] == list(range(STATES_AT_ONCE))
    while not world.joined:
        world.visitors[0].outgoing.got(world.sent(0))
        world.pump.pump()
    assert world.joined == [0]
    assert world.sent(0) == 20
    world.pump.pump()
    assert world.sent(STATES_AT_ONCE)


def test_states_wait_for_averages_for_a_part_of_a_step() -> None:
    world = World(2)
    world.visitors[0].joined = world.visitors[0].caught_up = True
    world.averages(0)
    world.pump.committed(10.0)
    world.pump.pump()
    assert (world.sent(0), world.sent(1)) == (WINDOW, 0)
    world.lines.now_s += 10.0 * AVERAGES_FIRST
    world.pump.pump()
    assert world.sent(1) > 0


def test_how_long_an_average_takes_to_reach_everyone_is_known_from_the_last_one_and_the_one_under_way() -> None:
    world = World(2)
    for visitor in world.visitors.values():
        visitor.joined = visitor.caught_up = True
    assert world.pump.averages_take_s == 0.0
    world.pump.committed(10.0)
    for line in world.visitors:
        world.averages(line)
    while not all(visitor.outgoing.settled for visitor in world.visitors.values()):
        world.pump.pump()
        world.lines.now_s += 1.0
        for line, visitor in world.visitors.items():
            visitor.outgoing.got(world.sent(line))
    world.pump.pump()
    took_s = world.pump.averages_take_s
    assert took_s == world.lines.now_s > 0.0
    world.lines.now_s += 100.0
    assert world.pump.averages_take_s == took_s, "nothing is under way"
    world.pump.committed(10.0)
    world.averages(0)
    world.lines.now_s += took_s + 5.0
    world.pump.pump()
    assert world.pump.averages_take_s == took_s + 5.0


def test_averages_behind_a_state_are_averages_that_nobody_waits_for() -> None:
    world = World(2)
    one = world.visitors[0]
    other = world.visitors.pop(1)
    world.pump.pump()
    assert one.takes_state
    world.averages(0, 2)
    while one.takes_state:
        one.outgoing.got(world.sent(0))
        world.pump.pump()
    assert not one.caught_up
    world.visitors[1] = other
    world.pump.committed(10.0)
    world.pump.pump()
    assert world.pump.averages_take_s == 0.0
    assert world.sent(1) == STATE_WINDOW, "nor does a state"
    sent = world.sent(0)
    one.outgoing.got(sent)
    world.pump.pump()
    assert world.sent(0) == sent + WINDOW
    while len(one.outgoing):
        assert not world.joined
        one.outgoing.got(world.sent(0))
        world.pump.pump()
    assert world.joined == [0]
    world.pump.pump()
    assert world.joined == [0]
