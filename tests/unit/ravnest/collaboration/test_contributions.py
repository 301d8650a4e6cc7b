"""Lies and ends are in test_backbone.py, and contributions in parts in test_sharing.py; here is what counts when."""

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from ravnest.collaboration import transfers
from ravnest.collaboration.backbone_state import BackboneState
from ravnest.collaboration.contributions import Contributions
from ravnest.collaboration.epochs import RELAYED, Epoch, Epochs, Helper
from ravnest.collaboration.matching import Complete
from ravnest.collaboration.messages import (
    CountMessage,
    GotMessage,
    PartMessage,
    PieceMessage,
    TensorMessage,
    TransferMessage,
)
from ravnest.collaboration.shares import Division
from ravnest.collaboration.sharing import Sharing
from ravnest.collaboration.spot_checks import SpotChecks
from ravnest.collaboration.step_events import (
    ContributionCame,
    ContributionRefused,
    Event,
    PeerBecameReady,
    ProgressCame,
)
from ravnest.collaboration.step_owner import StepOwner
from ravnest.collaboration.step_sum import StepSum
from ravnest.collaboration.transfers import Incoming, pieces
from ravnest.collaboration.visitor import Visitor
from ravnest.job.config import load_job
from ring_allreduce.transport import LineSaid
from tests.unit.ravnest.collaboration.jobs import job_in
from tests.unit.ravnest.collaboration.lines_twin import LinesTwin


class World:
    def __init__(self, folder: Path) -> None:
        path = job_in(folder / "job")
        job, self.lines, self.events = load_job(path), LinesTwin(), list[Event]()
        self.owner_hears = False
        self.kept = BackboneState(job, path, folder / "out", resume=False, tell=lambda _: None, now=lambda: 0.0)
        self.owner = StepOwner(64)
        self.sum = StepSum(self.kept.trainer.packing)
        self.visitor = Visitor(1, 0.0, name="ada", joined=True)
        self.visitor.person = self.kept.people.came("ab", "ada")
        self.owner.handle(PeerBecameReady(self.visitor.peer, 0), 0.0)
        packing, lines = self.kept.trainer.packing, self.lines
        self.epochs = epochs = Epochs(
            job, packing, lines, lambda: [self.visitor], bytes_per_s=0.0, tell=lambda _: None, now=lines.now  # type: ignore[arg-type]
        )  # fmt: skip
        self.sharing = sharing = Sharing(epochs, self.sum, packing, lines, lambda: [self.visitor], lines.now)  # type: ignore[arg-type]
        checks = SpotChecks(0.0, 8, lambda order, number: torch.zeros(0), lambda: 0.0)
        self.given = Contributions(
            self.kept, self.owner, sharing, checks, lines, self._decide, lambda _: None  # type: ignore[arg-type]
        )  # fmt: skip

    def _decide(self, event: Event) -> None:
        self.events.append(event)
        if self.owner_hears:
            self.owner.handle(event, 0.0)

    def opens(self) -> None:
        """The step opens, for all who are ready."""
        assert self.owner.handle(ProgressCame(self.visitor.peer, 0, 64, 0.0, 8, 10.0), 0.0)

    def another(self, line: int) -> Visitor:
        """Who gives from now on."""
        self.visitor = Visitor(line, 0.0, name=f"v{line}", joined=True)
        self.visitor.person = self.kept.people.came(f"key {line}", self.visitor.name)
        self.owner.handle(PeerBecameReady(self.visitor.peer, 0), 0.0)
        return self.visitor

    def shares(
        self, monkeypatch: pytest.MonkeyPatch, *, relayed: Iterable[int] = (), usable: bool = False
    ) -> tuple[Helper, Division]:
        """Epoch 1 is under way, in which a helper on line 9 adds up what follows the first piece."""
        form = self.kept.trainer.packing.sent[0]
        division = Division(self.kept.trainer.packing, (form.piece_elements, form.elements))
        helper = Helper(Visitor(9, 0.0, joined=True, follows=True), "b:2", 0.0, 0.0)
        epoch = Epoch(1, division, [helper], 0.0, relayed=set(relayed), usable=usable)
        monkeypatch.setattr(self.epochs, "helpers", {9: helper})
        monkeypatch.setattr(self.epochs, "current", epoch)
        return helper, division

    def gives(
        self,
        value: float = 1.0,
        *,
        step: int = 0,
        samples: int = 8,
        epoch: int = 0,
        division: Division | None = None,
    ) -> None:
        """`division`: part 0 alone, by epoch 1."""
        vectors = [(form, torch.full((form.elements,), value)) for form in self.kept.trainer.packing.sent]
        said = list(pieces("contribution", step, samples, vectors, float(samples)))
        for message, tensors in said if division is None else division.split(said, 1)[0]:
            if isinstance(message, TransferMessage) and epoch:
                message = TransferMessage(
                    what="contribution", step=step, tensors=message.tensors, samples=samples, epoch=epoch
                )
            assert isinstance(message, TransferMessage | TensorMessage | PieceMessage)
            self.given.take(self.visitor, message, LineSaid(1, message, tensors))


def test_what_is_whole_is_added_and_told(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.opens()
    world.gives()
    assert world.events == [ContributionCame("ada#1", 0, 8)]
    assert world.sum.samples == 8
    assert world.lines.said(GotMessage, 1)


def test_what_comes_before_its_step_is_opened_is_told_and_not_added(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.gives(samples=64)
    assert world.events == [ContributionCame("ada#1", 0, 64)]
    assert world.sum.samples == 0


@pytest.mark.parametrize("step", [0, 1])
def test_a_part_that_comes_before_its_step_is_opened_never_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Else nobody would look into it: its other parts may come when the step is open."""
    monkeypatch.setattr(transfers, "PIECE_BYTES", 64)
    world = World(tmp_path)
    helper, division = world.shares(monkeypatch)
    world.gives(step=step, division=division)
    assert world.events == [ContributionCame("ada#1", step, 8)]
    part = PartMessage(epoch=1, visit=1, number=0, step=step, samples=8, deviation=0.0)
    assert world.sharing.hear(helper.visitor, part, LineSaid(9, part, ())) == []
    assert [one.scale for one in world.lines.said(CountMessage, 9)] == [None]  # type: ignore[attr-defined]


def test_what_comes_for_another_step_is_told_and_not_added(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.gives(step=3)
    assert world.events == [ContributionCame("ada#1", 3, 8)]
    assert world.sum.samples == 0


def test_what_cannot_be_is_refused_once_and_its_rest_ignored(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.gives(float("nan"))
    world.gives(samples=100_000)
    assert [type(one) for one in world.events] == [ContributionRefused, ContributionRefused]
    assert world.visitor.person is not None
    assert world.visitor.person.refused == 2
    assert world.sum.samples == 0


def test_a_part_of_an_epoch_that_is_over_is_neither_counted_nor_held_against_anyone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.gives(epoch=4)
    assert world.events == []
    assert world.sum.samples == 0
    assert world.lines.said(GotMessage, 1)  # it may go on sending


def test_who_gives_a_lie_and_leaves_before_it_is_found_ends_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    liar, others = world.visitor, [world.another(line) for line in (2, 3)]
    for one in (liar, others[0]):
        world.owner.handle(ProgressCame(one.peer, 0, 8, 0.0, 8, 10.0), 0.0)
    world.opens()
    world.visitor = liar
    world.gives(1e6)  # of one person nobody can say yet whether it lies
    assert liar.person is not None
    world.kept.people.left(liar.person)
    for world.visitor in others:
        world.gives()
    world.kept.people.committed({liar.peer: 8, "v2#2": 8, "v3#3": 8})
    found = {one.name: (one.samples, one.scaled) for one in world.kept.people.ranked()}
    assert found == {"ada": (8, 1), "v2": (8, 0), "v3": (8, 0)}


def test_what_came_by_another_division_than_its_step_s_is_in_no_sum_and_counts_for_nothing(tmp_path: Path) -> None:
    """Else a step might be committed whose sum has no sample."""
    world = World(tmp_path)
    world.opens()
    form = world.kept.trainer.packing.sent[0]
    began = TransferMessage(what="contribution", step=0, tensors=2, samples=64, epoch=1)
    own = Incoming(began, world.kept.trainer.packing.sent)
    own.vectors = {form.name: torch.ones(form.elements)}
    world.given.follow_up([Complete(world.visitor, own, 0.0, (1, 0))])
    assert [type(event) for event in world.events] == [ContributionRefused]
    assert world.sum.samples == 0


@pytest.mark.parametrize("asked_again", [False, True])
@pytest.mark.parametrize("epoch_ends", [False, True])
def test_a_second_contribution_that_is_handed_on_while_the_first_one_is_counts_if_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_again: bool, epoch_ends: bool
) -> None:
    """Each counts once, and in its order, whether its parts come to be added up elsewhere or not."""
    monkeypatch.setattr(transfers, "PIECE_BYTES", 64)
    world = World(tmp_path)
    helper, _ = world.shares(monkeypatch, relayed={1}, usable=True)
    world.owner_hears = True
    world.sharing.opens(0)
    world.opens()
    world.gives(1.0)
    world.gives(2.0)  # before it is known that the first one is whole everywhere
    assert len(helper.visitor.outgoing) == 2
    assert world.events == []

    def has(number: int) -> None:
        part = PartMessage(epoch=1, visit=1 + RELAYED, number=number, step=0, samples=8, deviation=0.0)
        found = world.sharing.hear(helper.visitor, part, LineSaid(9, part, ()))
        assert found is not None
        world.given.follow_up(found)

    has(0)
    assert world.sharing.sum.samples == 8
    if asked_again:
        world.opens()
    if epoch_ends:
        world.given.follow_up(world.sharing.give_up([helper], "a test"))
    else:
        has(1)
    counted = 16 if asked_again else 8
    assert world.sharing.sum.samples == counted
    assert world.owner.needed == 64 - counted
    dropped = [one for one in world.lines.said(CountMessage, 9) if isinstance(one, CountMessage) and one.scale is None]
    assert [one.number for one in dropped] == ([] if asked_again or epoch_ends else [1])
