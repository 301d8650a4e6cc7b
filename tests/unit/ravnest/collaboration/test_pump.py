import torch

from ravnest.collaboration.messages import PieceMessage
from ravnest.collaboration.pump import STATES_AT_ONCE, Pump
from ravnest.collaboration.transfers import AVERAGES_FIRST, PIECE_BYTES, WINDOW, Form, pieces
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
        self.visitors[line].outgoing.put(pieces("state", 0, 0, [(FORM, torch.zeros(FORM.elements))]))

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
    world.visitors[0].joined = True
    world.puts(0)
    world.pump.committed(10.0)
    world.pump.pump()
    assert (world.sent(0), world.sent(1)) == (WINDOW, 0)
    world.lines.now_s += 10.0 * AVERAGES_FIRST
    world.pump.pump()
    assert world.sent(1) > 0


def test_how_long_an_average_takes_to_reach_everyone_is_known_from_the_last_one_and_the_one_under_way() -> None:
    world = World(2)
    for visitor in world.visitors.values():
        visitor.joined = True
    assert world.pump.averages_take_s == 0.0
    world.pump.committed(10.0)
    for line in world.visitors:
        world.puts(line)
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
    world.puts(0)
    world.lines.now_s += took_s + 5.0
    world.pump.pump()
    assert world.pump.averages_take_s == took_s + 5.0
