"""Contributions whose parts come from several machines are played in test_sharing.py; here is what belongs together."""

from types import SimpleNamespace

import pytest
import torch

from ravnest.collaboration.epochs import RELAYED, Epoch, Helper
from ravnest.collaboration.kept_averages import TooLate
from ravnest.collaboration.matching import MOST_UNMATCHED, Complete, Matched, Matching, Refused
from ravnest.collaboration.messages import PartMessage
from ravnest.collaboration.packing import Packing
from ravnest.collaboration.shares import Division
from ravnest.collaboration.transfers import Form
from ravnest.collaboration.visitor import Visitor


class World:
    def __init__(self) -> None:
        self.dropped: list[tuple[int, int]] = []
        self.volunteers = {line: Visitor(line, 0.0, joined=True) for line in (1, 2)}
        self.helper = Helper(Visitor(9, 0.0, joined=True, follows=True), "b:2", 0.0, 0.0)
        division = Division(Packing([Form("g", torch.float32, 131_072)]), (65_536, 131_072))
        self.epoch = Epoch(1, division, [self.helper], 0.0, reached={1, 2})
        self.matching = Matching(SimpleNamespace(current=self.epoch), self.dropped.append)  # type: ignore[arg-type]

    def part(self, line: int, number: int = 0, deviation: float = 3.0, **given: object) -> list[Matched]:
        said = {"epoch": 1, "visit": line, "number": number, "step": 5, "samples": 4, "deviation": deviation}
        return self.matching.part_came(self.helper, PartMessage(**said | given), self.volunteers)  # type: ignore[arg-type]

    def own(self, line: int, epoch: int = 1) -> list[Matched]:
        own = SimpleNamespace(step=5, samples=4)
        return self.matching.own_came(self.volunteers[line], epoch, own)  # type: ignore[arg-type]


def test_what_belongs_together_is_whole_whatever_comes_first() -> None:
    world = World()
    assert world.part(1) == world.own(2) == []
    ((one,), (other,)) = world.own(1), world.part(2)
    assert isinstance(one, Complete)
    assert isinstance(other, Complete)
    assert (one.numbered, one.elsewhere, other.numbered) == ((1, 0), 3.0, (2, 0))
    assert world.matching.gave(1, 5)
    assert not world.matching.gave(1, 6)


def test_parts_of_several_contributions_and_parts_that_were_refused_are_dropped_everywhere() -> None:
    world = World()
    for number, given in enumerate(({"step": 6}, {"samples": 3}, {"number": 7}, {"refused": "NaN"})):
        world.part(1, **({"number": number} | given))  # type: ignore[arg-type]
        (found,) = world.own(1)
        assert isinstance(found, Refused)
    assert world.dropped == [(1, number) for number in range(4)]


def test_who_is_late_is_the_helper_that_lacks_everybody_s_parts_and_of_one_alone_nobody() -> None:
    world = World()
    world.own(1)
    assert world.matching.late(world.epoch, 5) == []
    world.own(2)
    assert world.matching.late(world.epoch, 5) == [world.helper]
    assert world.matching.late(world.epoch, 4) == []
    world.epoch.reached, world.epoch.relayed = {1}, {2}
    assert world.matching.late(world.epoch, 5) == [world.helper]


def test_what_a_volunteer_has_sent_itself_is_nothing_once_its_parts_are_handed_on() -> None:
    world = World()
    world.own(1)
    world.epoch.relayed.add(1)
    world.matching.left(1)
    assert world.part(1) == []
    world.own(1)
    (found,) = world.part(1 + RELAYED)
    assert isinstance(found, Complete)
    assert found.numbered == (1 + RELAYED, 0)


def test_what_never_becomes_whole_is_too_late_and_of_an_epoch_that_is_over_nothing() -> None:
    world = World()
    for _ in range(MOST_UNMATCHED):
        world.own(1)
    with pytest.raises(TooLate):
        world.own(1)
    assert world.own(2, epoch=7) == world.part(2, epoch=7) == world.part(3) == []
