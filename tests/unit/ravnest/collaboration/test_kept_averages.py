"""What happens to averages whose helper dies is played in test_sharing.py; here is what is kept, and for whom."""

import pytest
import torch

from ravnest.collaboration.epochs import SILENT_S, Epoch, Helper
from ravnest.collaboration.kept_averages import MEANS_KEPT, Averaging, KeptAverages, TooLate
from ravnest.collaboration.messages import MadeMessage, MissingMessage
from ravnest.collaboration.packing import Packing
from ravnest.collaboration.shares import Division
from ravnest.collaboration.transfers import Form, Said
from ravnest.collaboration.visitor import Visitor

PACKING = Packing([Form("g", torch.float32, 131_072)])


class World:
    def __init__(self, steps: int = MEANS_KEPT + 1) -> None:
        self.now_s = 0.0
        self.volunteer, stands_by = (
            Visitor(1, 0.0, joined=True),
            Visitor(9, 0.0, joined=True, follows=True, caught_up=True),
        )
        self.helper = Helper(stands_by, "b:2", 0.0, 0.0)
        self.helpers = {9: self.helper}
        self.kept = KeptAverages(lambda: self.helpers, lambda: [self.volunteer, stands_by], lambda: self.now_s)
        epoch = Epoch(1, Division(PACKING, (65_536, 131_072)), [self.helper], 0.0)
        for step in range(steps):
            made = Averaging(step, epoch, [1], [0.0, 0.0])
            made.said = {part: [self.said(step)] for part in (0, 1)}
            self.kept.keep(made)

    @staticmethod
    def said(step: int) -> Said:
        return MadeMessage(step=step), ()  # any word: what is kept is given as it was said

    def sent(self) -> list[Said]:
        return list(self.volunteer.outgoing.due())


def test_who_lacks_a_part_of_one_of_the_last_averages_is_sent_it_and_of_another_is_too_late() -> None:
    world = World()
    world.kept.lacks(world.volunteer, MissingMessage(step=MEANS_KEPT, part=1))
    assert world.sent() == [world.said(MEANS_KEPT)]
    for step, part in ((0, 1), (MEANS_KEPT, 2)):
        with pytest.raises(TooLate):
            world.kept.lacks(world.volunteer, MissingMessage(step=step, part=part))


def test_at_the_end_a_helper_is_waited_for_until_all_have_its_parts_or_it_is_silent_or_lost() -> None:
    for ends in ("taken", "silent", "lost", "given up", "late"):
        world = World()
        assert world.kept.unsettled(MEANS_KEPT, 1e9), ends
        if ends == "taken":
            world.kept.taken_of(world.helper, MEANS_KEPT)
        elif ends == "silent":
            world.now_s = SILENT_S
        elif ends == "lost":
            world.helpers.clear()
        elif ends == "given up":
            world.kept.epoch_ends()
        assert not world.kept.unsettled(MEANS_KEPT, 0.0 if ends == "late" else 1e9), ends
        steps = [] if ends == "taken" else list(range(1, MEANS_KEPT + 1))
        assert world.sent() == [world.said(step) for step in steps], ends
