"""Machines that stand by and add up shares, played by the real programs under a virtual clock: what they gain, and what
becomes of a step whose helper dies, stands still or cannot be reached."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from experiments.collaboration.virtual_network import Machine
from experiments.collaboration.virtual_world import PORT, VirtualWorld
from ravnest.collaboration import transfers
from ravnest.collaboration.backbone_state import BackboneState
from ravnest.collaboration.epochs import REST_S, Epoch, Helper
from ravnest.collaboration.kept_averages import TooLate
from ravnest.collaboration.matching import MOST_UNMATCHED, Complete, Refused
from ravnest.collaboration.messages import (
    CountMessage,
    MadeMessage,
    MakeMeanMessage,
    OpenMessage,
    PartMessage,
    PieceMessage,
    TransferMessage,
    WithoutMessage,
)
from ravnest.collaboration.packing import Packing
from ravnest.collaboration.shares import Division
from ravnest.collaboration.sharing import MOST_HANDED_ON, Sharing
from ravnest.collaboration.sharing_plan import Outcome
from ravnest.collaboration.step_sum import StepSum
from ravnest.collaboration.transfers import Form
from ravnest.collaboration.visitor import Visitor
from ring_allreduce.transport import LineSaid, Message
from tests.unit.ravnest.collaboration.lines_twin import LinesTwin

LINK = 30_000.0
"""Bytes per second of every machine, for a gradient of 23 kB as float16."""

STEPS, PEERS = 8, 4
SHARED = "may add up shares"
GIVEN_UP = "adds up no share"


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "PIECE_BYTES", 4096)


class World:
    """Two backbone machines, of which one stands by, and four volunteers."""

    def __init__(self, folder: Path, *, delayed: bool = False, rank: int | None = None, rate: float = 16.0) -> None:
        self.world = VirtualWorld(
            folder, steps=STEPS, target=16 * PEERS, width=600, delayed=delayed, rank=rank, latency_s=0.02
        )
        self.rate = rate

    def begin(self) -> None:
        world = self.world
        self.first = world.start_backbone(LINK, LINK, machines=2)
        self.helper = world.start_backbone(LINK, LINK, number=1, machines=2)
        assert world.net.run(lambda: any("stands by with" in line for line in world.told), 100.0)
        for at in range(PEERS):
            self.joins(f"v{at}")

    def joins(self, name: str) -> Machine:
        return self.world.join(name, self.rate, LINK, LINK)

    def at(
        self,
        machine: Machine,
        way: str,
        kind: type[Message],
        number: int,
        happens: Callable[[], None],
        after_s: float = 0.0,
    ) -> None:
        """Something happens after the message of that kind and number that a machine is sent (in) or sends (out)."""
        seen = [0]

        def watch(direction: str, message: Message) -> None:
            if direction == way and isinstance(message, kind):
                seen[0] += 1
                if seen[0] == number:
                    self.world.net.at(after_s, happens)

        machine.watch = watch

    def ends(self, *left_out: Machine) -> list[float]:
        """Let all come to the end, and look that they hold the same bytes; returns the steps' seconds."""
        world = self.world
        everyone = [one for one in (self.first, self.helper, *world.machines.values()) if one not in left_out]
        assert world.net.run(lambda: not any(one.alive for one in everyone), 1000.0)
        assert [one.error for one in everyone if not one.killed] == [None] * sum(not one.killed for one in everyone)
        hashes = {result.weights_hash for result in world.results.values()}
        hashes |= {one.given.weights for one in world.volunteers.values() if one.given.weights}
        assert len(hashes) == 1
        curve = world.curve()
        assert [entry["step"] for entry in curve] == list(range(1, STEPS + 1))
        assert all(entry["samples"] >= 16 * PEERS for entry in curve)
        return [entry["seconds"] for entry in curve]

    def said(self, words: str) -> int:
        return sum(words in line for line in self.world.told)


@pytest.mark.parametrize("delayed", [False, True])
def test_a_machine_that_stands_by_adds_up_a_share_and_steps_are_shorter(tmp_path: Path, delayed: bool) -> None:
    played = World(tmp_path, delayed=delayed)
    with played.world.running():
        played.begin()
        seconds = played.ends()
    assert played.said(SHARED) == 1
    assert not played.said(GIVEN_UP)
    assert max(seconds[5:]) < 0.75 * seconds[2]
    assert all(volunteer.given.steps == STEPS for volunteer in played.world.volunteers.values())


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize(
    ("kind", "number", "after_s"),
    [(TransferMessage, 6, 0.0), (MakeMeanMessage, 2, 0.0), (MakeMeanMessage, 2, 0.5)],
    ids=["while it takes parts", "before it sends its mean", "while it sends its mean"],
)
def test_a_helper_that_is_killed_costs_no_step(
    tmp_path: Path, kind: type[Message], number: int, after_s: float, delayed: bool
) -> None:
    played = World(tmp_path, delayed=delayed)
    with played.world.running():
        played.begin()
        played.at(played.helper, "in", kind, number, lambda: played.world.net.kill(played.helper), after_s)
        seconds = played.ends()
    assert played.said(f"{PORT + 1} {GIVEN_UP} for {REST_S:.0f} s") == 1
    assert max(seconds[1:]) < 3 * seconds[2]


@pytest.mark.parametrize("delayed", [False, True])
def test_shares_that_make_steps_no_shorter_are_given_up_and_their_last_average_is_everyone_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delayed: bool
) -> None:
    played = World(tmp_path, delayed=delayed)
    took = Outcome.step_took

    def useless(outcome: Outcome, seconds: float, *, shared: bool) -> None:
        took(outcome, seconds, shared=shared)
        outcome.gains = not shared

    monkeypatch.setattr(Outcome, "step_took", useless)
    with played.world.running():
        played.begin()
        played.ends()
    assert played.said("steps are not shorter with shares") == 1
    assert played.said("stands by with") == 1


def test_what_a_helper_owes_when_it_dies_after_the_commit_comes_from_the_backbone(tmp_path: Path) -> None:
    played = World(tmp_path)
    with played.world.running():
        played.begin()
        played.at(played.first, "out", MadeMessage, 1, lambda: played.world.net.kill(played.helper))
        played.ends()
    assert all(volunteer.given.visits == 1 for volunteer in played.world.volunteers.values())


@pytest.mark.parametrize("number", [1, 17])
def test_a_helper_whose_connections_break_with_a_commit_costs_nobody_an_average(tmp_path: Path, number: int) -> None:
    """With 17 it is the last commit: four volunteers are told of each of four steps before it."""
    played = World(tmp_path)
    with played.world.running():
        played.begin()
        played.at(played.first, "out", MadeMessage, number, lambda: played.world.net.cut(played.helper))
        played.ends(played.helper)  # it comes back, and may be too late for the end
    assert all(volunteer.given.steps == STEPS for volunteer in played.world.volunteers.values())


def test_a_volunteer_that_says_at_the_end_that_it_has_lost_the_helper_makes_nobody_wait(tmp_path: Path) -> None:
    played = World(tmp_path)

    def breaks() -> None:
        helped = next(lines for lines in played.world.machines["v2"].lines if len(lines.sides) > 1)
        played.world.net.at(0.0, lambda: helped.end(max(helped.sides), "it broke"))

    with played.world.running():
        played.begin()
        played.at(played.first, "out", MadeMessage, 17, breaks)
        played.ends()
    assert played.world.net.now_s < 120.0


@pytest.mark.parametrize(
    ("machine", "way", "kind", "number"),
    [("helper", "in", MakeMeanMessage, 2), ("helper", "in", TransferMessage, 6), ("first", "out", MadeMessage, 5)],
)
def test_a_helper_that_stands_still_is_waited_for_once_and_rests(
    tmp_path: Path, machine: str, way: str, kind: type[Message], number: int
) -> None:
    played = World(tmp_path)

    def stands_still() -> None:
        played.helper.still_until_s = 1e9

    with played.world.running():
        played.begin()
        played.at(getattr(played, machine), way, kind, number, stands_still)
        seconds = played.ends(played.helper)
    assert sorted(seconds)[-1] < 45.0
    assert sorted(seconds[1:])[-2] < 2 * seconds[2]
    assert played.said(GIVEN_UP) == 1


@pytest.mark.parametrize("delayed", [False, True])
def test_what_a_volunteer_gives_that_reaches_only_the_serving_machine_is_handed_on_and_the_others_share(
    tmp_path: Path, delayed: bool
) -> None:
    played, parts = World(tmp_path, delayed=delayed), list[PartMessage]()

    def watch(way: str, message: Message) -> None:
        if way == "out" and isinstance(message, PartMessage):
            parts.append(message)

    with played.world.running():
        played.begin()
        played.world.machines["v3"].cannot_reach = frozenset([PORT + 1])
        played.helper.watch = watch
        seconds = played.ends()
    assert played.said("v3 does not reach all that add up shares")
    if not delayed:  # there so few pieces measure no link, and ranges change
        assert not played.said(GIVEN_UP)
        assert len({one.visit for one in parts}) == PEERS
        assert max(seconds[5:]) < 0.75 * seconds[2]
    assert not any(one.refused for one in parts)
    assert all(volunteer.given.steps == STEPS for volunteer in played.world.volunteers.values())
    assert all(person["samples"] > 0 and not person["refused"] for person in played.world.people().values())


def test_where_too_many_reach_only_the_serving_machine_nothing_is_shared(tmp_path: Path) -> None:
    played = World(tmp_path)
    with played.world.running():
        played.begin()
        for name in ("v1", "v2", "v3"):
            played.world.machines[name].cannot_reach = frozenset([PORT + 1])
        seconds = played.ends()
    assert played.said("does not reach it") == 1
    assert max(seconds[3:]) < 1.1 * seconds[2]


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize("number", [1, 3, 4, 6, 7])
@pytest.mark.parametrize("kind", [OpenMessage, MadeMessage, TransferMessage])
def test_a_volunteer_whose_line_to_a_helper_breaks_keeps_nobody_from_sharing(
    tmp_path: Path, kind: type[Message], number: int, delayed: bool
) -> None:
    played, seen = World(tmp_path, delayed=delayed), [0]

    def breaks() -> None:
        played.world.machines["v2"].cannot_reach = frozenset([PORT + 1])
        for lines in played.world.machines["v2"].lines:
            if len(lines.sides) > 1:
                lines.end(max(lines.sides), "it broke")

    def watch(way: str, message: Message) -> None:
        if way == "in" and isinstance(message, kind) and played.said(SHARED):
            seen[0] += 1
            if seen[0] == number:
                played.world.net.at(0.1, breaks)

    with played.world.running():
        played.begin()
        played.world.machines["v2"].watch = watch
        seconds = played.ends()
    assert not played.said(GIVEN_UP)
    assert max(seconds[1:]) < 2 * seconds[2]
    assert all(volunteer.given.visits == 1 for volunteer in played.world.volunteers.values())


@pytest.mark.parametrize("what", ["the helper", "the volunteer"])
@pytest.mark.parametrize("number", [5, 8, 9, 10, 11, 12])
def test_parts_that_are_handed_on_are_lost_by_nobody_s_death_but_their_own_volunteer_s(
    tmp_path: Path, number: int, what: str
) -> None:
    played = World(tmp_path)

    def dies() -> None:
        played.world.net.kill(played.helper if what == "the helper" else played.world.machines["v3"])

    with played.world.running():
        played.begin()
        played.world.machines["v3"].cannot_reach = frozenset([PORT + 1])
        played.at(played.helper, "in", TransferMessage, number, dies, 0.2)
        seconds = played.ends()
    assert played.said("v3 does not reach all that add up shares")
    assert played.said(GIVEN_UP) == (what == "the helper")
    assert max(seconds[1:]) < 3 * seconds[2]


def test_who_joins_during_averaging_takes_whole_averages_until_it_reaches_the_helper(tmp_path: Path) -> None:
    played = World(tmp_path, rate=1.0)
    parts = list[int]()

    def watch(way: str, message: Message) -> None:
        if way == "out" and isinstance(message, TransferMessage):
            parts.append(message.epoch)

    def joins() -> None:
        played.joins("late").watch = watch

    with played.world.running():
        played.begin()
        played.at(played.first, "out", MadeMessage, 1, joins)
        played.ends()
    assert played.world.volunteers["late"].given.steps >= 3
    assert 1 in parts  # it has sent shares, too
    assert not played.said(GIVEN_UP)


def test_a_volunteer_that_is_killed_with_a_part_under_way_costs_its_own(tmp_path: Path) -> None:
    played = World(tmp_path)
    with played.world.running():
        played.begin()
        victim = played.world.machines["v1"]
        played.at(victim, "out", TransferMessage, 8, lambda: played.world.net.kill(victim), 0.3)
        played.ends()
    assert not played.said(GIVEN_UP)


def test_when_the_serving_machine_dies_its_helper_takes_over(tmp_path: Path) -> None:
    played = World(tmp_path)
    with played.world.running():
        played.begin()
        played.at(played.helper, "in", MakeMeanMessage, 2, lambda: played.world.net.kill(played.first))
        everyone = [played.helper, *played.world.machines.values()]
        assert played.world.net.run(lambda: not any(one.alive for one in everyone), 1000.0)
        assert [one.error for one in everyone] == [None] * len(everyone)
    assert played.world.serving == [0, 1]
    hashes = {one.given.weights for one in played.world.volunteers.values()}
    assert hashes == {played.world.results[1].weights_hash}


def test_with_a_low_rank_one_machine_adds_up_and_says_so(tmp_path: Path) -> None:
    played = World(tmp_path, rank=2)
    with played.world.running():
        played.begin()
        played.ends()
    assert played.said("adds up no share: gradient_rank") == 1
    assert not played.said(SHARED)


@pytest.mark.parametrize("what", ["not finite", "samples", "a number twice"])
def test_who_lies_in_one_part_alone_is_refused_and_nobody_else(tmp_path: Path, what: str) -> None:
    played = World(tmp_path)

    def tamper(said: tuple[Message, tuple[object, ...]]) -> tuple[Message, tuple[object, ...]]:
        message, tensors = said
        if isinstance(message, TransferMessage) and message.part == 1:
            tampered[0] = True
            if what != "not finite":
                samples = 1 if what == "samples" else message.samples
                message = TransferMessage(
                    what="contribution", step=message.step + (what == "a number twice"), tensors=1, samples=samples,
                    epoch=message.epoch, part=1,
                )  # fmt: skip
        elif isinstance(message, TransferMessage):
            tampered[0] = False
        elif isinstance(message, PieceMessage) and tampered[0] and what == "not finite":
            tensors = tuple(one * float("nan") for one in tensors)  # type: ignore[operator]
        return message, tensors

    tampered = [False]
    with played.world.running():
        played.begin()
        played.world.machines["v1"].tamper = tamper  # type: ignore[assignment]
        honest = [one for name, one in played.world.machines.items() if name != "v1"]
        everyone = [played.first, played.helper, *honest]
        assert played.world.net.run(lambda: not any(one.alive for one in everyone), 1000.0)
        assert [one.error for one in everyone] == [None] * len(everyone)
    people = played.world.people()
    assert people["v1"]["refused"] >= 1  # and then it is doubted: others make the batches without it
    assert all(people[name]["refused"] == 0 for name in ("v0", "v2", "v3"))
    hashes = {one.given.weights for name, one in played.world.volunteers.items() if name != "v1"}
    assert hashes == {played.world.results[0].weights_hash}


def test_what_a_helper_says_is_counted_in_the_order_of_the_serving_machine(tmp_path: Path) -> None:
    played = World(tmp_path)
    counted, came, ended = list[CountMessage](), list[PartMessage](), list[WithoutMessage]()

    def watch(way: str, message: Message) -> None:
        for kind, found in ((CountMessage, counted), (PartMessage, came), (WithoutMessage, ended)):
            if isinstance(message, kind):
                found.append(message)  # type: ignore[attr-defined]

    with played.world.running():
        played.begin()
        played.helper.watch = watch
        played.ends()
    assert sorted((one.visit, one.number) for one in counted) == sorted(
        (visit, number) for visit in {one.visit for one in came} for number in range(len(came) // PEERS)
    )
    assert all(one.scale == 1.0 for one in counted)
    assert not ended


def test_a_part_without_the_others_is_never_counted_with_those_of_another_contribution() -> None:
    """A lie far from the last mean could else stand where the next one's deviation was looked at."""
    packing, lines = Packing([Form("g", torch.float32, 2048)]), LinesTwin()
    liar, stands_by = Visitor(1, 0.0, joined=True), Visitor(9, 0.0, joined=True, follows=True, caught_up=True)
    helper = Helper(stands_by, "b:2", 0.0, 0.0)
    epochs = SimpleNamespace(current=Epoch(1, Division(packing, (1024, 2048)), [helper], 0.0), helpers={9: helper})
    sharing = Sharing(
        epochs, StepSum(packing), packing, lines, lambda: [liar, stands_by], lines.now  # type: ignore[arg-type]
    )  # fmt: skip
    for number in range(MOST_UNMATCHED + 1):
        part = PartMessage(epoch=1, visit=1, number=number, step=3, samples=4, deviation=0.0 if number else 1e30)
        assert sharing.hear(stands_by, part, LineSaid(9, part, ())) == []
    own = SimpleNamespace(step=3, samples=4)
    for _ in range(3):
        (found,) = sharing.own_came(liar, 1, own)  # type: ignore[arg-type]
        assert isinstance(found, Refused)


def test_who_sends_own_parts_alone_is_put_out_and_may_return() -> None:
    """Its line to a helper may be slow."""
    packing, lines = Packing([Form("g", torch.float32, 2048)]), LinesTwin()
    slow = Visitor(1, 0.0, joined=True)
    helper = Helper(Visitor(9, 0.0, joined=True, follows=True, caught_up=True), "b:2", 0.0, 0.0)
    epochs = SimpleNamespace(current=Epoch(1, Division(packing, (1024, 2048)), [helper], 0.0), helpers={9: helper})
    sharing = Sharing(epochs, StepSum(packing), packing, lines, lambda: [slow], lines.now)  # type: ignore[arg-type]
    own = SimpleNamespace(step=3, samples=4)
    for _ in range(MOST_UNMATCHED):
        assert sharing.own_came(slow, 1, own) == []  # type: ignore[arg-type]
    with pytest.raises(TooLate):
        sharing.own_came(slow, 1, own)  # type: ignore[arg-type]


@pytest.mark.parametrize("liars", [("v1",), ("v1", "v2")])
def test_one_that_sends_a_helper_no_part_is_late_itself(tmp_path: Path, liars: tuple[str, ...]) -> None:
    played = World(tmp_path)

    def tamper(said: tuple[Message, tuple[object, ...]]) -> tuple[Message, tuple[object, ...]]:
        message, tensors = said
        if isinstance(message, TransferMessage) and message.part == 1:  # of an epoch that is none: it is passed over
            message = TransferMessage(
                what="contribution", step=message.step, tensors=1, samples=message.samples, epoch=99, part=1
            )
        return message, tensors

    with played.world.running():
        played.begin()
        for name in liars:
            played.world.machines[name].tamper = tamper  # type: ignore[assignment]
        played.ends()
    assert played.said(GIVEN_UP) == (len(liars) > 1)


def test_while_the_serving_machine_evaluates_for_long_no_helper_is_given_up_and_none_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = World(tmp_path)
    apply, applied = BackboneState.apply, [0]

    def slowly(state: BackboneState, *given: Any) -> None:
        apply(state, *given)
        if state is states[0]:
            applied[0] += 1
            if applied[0] == 5:
                played.world.net.sleep(100.0)

    made, states = BackboneState.__init__, list[BackboneState]()

    def noted(state: BackboneState, *given: Any, **named: Any) -> None:
        states.append(state)
        made(state, *given, **named)

    monkeypatch.setattr(BackboneState, "apply", slowly)
    monkeypatch.setattr(BackboneState, "__init__", noted)
    with played.world.running():
        played.begin()
        played.ends()
    assert applied[0] == STEPS
    assert played.world.net.now_s > 100.0
    assert not played.said(GIVEN_UP)
    assert not played.said("its line has ended")
    assert played.said("stands by with") == 1


def test_a_volunteer_that_stands_still_at_the_end_keeps_it_from_nobody(tmp_path: Path) -> None:
    played = World(tmp_path)

    def stands_still() -> None:
        played.world.machines["v1"].still_until_s = 1e9

    with played.world.running():
        played.begin()
        played.at(played.first, "out", MakeMeanMessage, 5, stands_still)
        played.ends(played.world.machines["v1"])
    assert all(one.given.weights for name, one in played.world.volunteers.items() if name != "v1")


def test_only_so_many_whole_contributions_of_a_volunteer_are_kept_to_be_counted_again() -> None:
    packing, lines = Packing([Form("g", torch.float32, 2048)]), LinesTwin()
    relayed, stands_by = Visitor(1, 0.0, joined=True), Visitor(9, 0.0, joined=True, follows=True, caught_up=True)
    helper = Helper(stands_by, "b:2", 0.0, 0.0)
    epoch = Epoch(1, Division(packing, (1024, 2048)), [helper], 0.0, relayed={1}, usable=True)
    epochs = SimpleNamespace(current=epoch, helpers={9: helper}, give_up=lambda *_: None)
    sharing = Sharing(
        epochs, StepSum(packing), packing, lines, lambda: [relayed, stands_by], lines.now  # type: ignore[arg-type]
    )  # fmt: skip
    assert sharing.opens(3) == 1
    for number in range(3 * MOST_HANDED_ON):
        relayed.said = list(transfers.pieces("contribution", 3, 1, [(packing.sent[0], torch.ones(2048))], 1.0))
        part = PartMessage(epoch=1, visit=epoch.visit_of(1), number=number, step=3, samples=1, deviation=0.0)
        sharing.hear(stands_by, part, LineSaid(9, part, ()))
        own = SimpleNamespace(step=3, samples=1, vectors={"g": torch.ones(2048)})
        (found,) = sharing.hand_on(relayed, own)  # type: ignore[arg-type]
        assert isinstance(found, Complete)
    again = sharing.give_up([helper], "it is lost")
    assert sum(isinstance(one, Complete) for one in again) == MOST_HANDED_ON
