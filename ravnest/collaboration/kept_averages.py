"""The averages of the last steps in their parts: one that is being made, and those that somebody may still lack.

In: parts as they were said, and who says that it lacks one. Out: that part, from this machine, whoever made it. A
helper may be lost between the commit of a step and the last volunteer that takes its part.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ravnest.collaboration.epochs import SILENT_S, Epoch, Helper
from ravnest.collaboration.messages import MissingMessage
from ravnest.collaboration.transfers import Said
from ravnest.collaboration.visitor import Visitor
from ravnest.errors import InvalidInput

MEANS_KEPT = 2
"""Of the last averages all parts are kept, for who lacks one."""


class TooLate(InvalidInput):
    """A volunteer is too far behind; it may come back, and take the state."""


@dataclass
class Averaging:
    """The parts of one average."""

    step: int
    epoch: Epoch
    visits: list[int]
    heard_s: list[float]
    said: dict[int, list[Said]] = field(default_factory=dict)
    means: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    sent: list[tuple[Visitor, object]] = field(default_factory=list)
    lost_before: dict[str, Tensor] = field(default_factory=dict)
    settled: set[int] = field(default_factory=set)
    """Parts that all have taken, or that were sent from here."""
    over: bool = False
    """Its epoch was given up: helpers send no more of it."""


class KeptAverages:
    """What was averaged in parts. It belongs to the backbone's thread."""

    def __init__(
        self,
        helpers: Callable[[], Mapping[int, Helper]],
        visitors: Callable[[], Sequence[Visitor]],
        now: Callable[[], float],
    ) -> None:
        """`helpers`: that are there, by line. `visitors`: all that have joined."""
        self._helpers, self._visitors, self._now = helpers, visitors, now
        self._made: deque[Averaging] = deque(maxlen=MEANS_KEPT)

    def keep(self, made: Averaging) -> None:
        """A step was committed by this average."""
        made.means, made.lost_before = {}, {}  # only what was said is kept
        self._made.append(made)

    def epoch_ends(self) -> None:
        """Helpers send no more of any."""
        for one in self._made:
            one.over = True

    def taken_of(self, helper: Helper, step: int) -> None:
        """All have taken what this helper has of averages up to that of a step."""
        for one in self._made:
            if step >= one.step and (part := one.epoch.part_of(helper)):
                one.settled.add(part)

    def lacks(self, visitor: Visitor, message: MissingMessage) -> None:
        """A volunteer is sent what it lacks. Raises TooLate where that is not kept any more."""
        for made in self._made:
            if made.step == message.step and message.part in made.said:
                visitor.outgoing.put(iter(made.said[message.part]))
                return
        raise TooLate(f"it lacks a part of the average of step {message.step}, which is not kept any more")

    def unsettled(self, step: int, until_s: float) -> bool:
        """Whether somebody may lack a part of the last averages, at the end. What a lost helper had is sent from here,
        and from `until_s` on what any had: who takes nothing keeps no others. `step`: of the last one."""
        for made in self._made:
            if made.step + MEANS_KEPT <= step:
                continue
            for part, helper in enumerate(made.epoch.helpers, 1):
                if part in made.settled:
                    continue
                here = self._helpers().get(helper.visitor.line) is helper and not made.over
                if here and self._now() < min(until_s, helper.heard_s + SILENT_S):
                    return True
                made.settled.add(part)
                for visitor in self._visitors():
                    if visitor.line in made.visits:
                        visitor.outgoing.put(iter(made.said[part]))
        return False
