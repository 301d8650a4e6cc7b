"""What a volunteer does that takes the state elsewhere; a whole visit is in test_visit.py, all sides in
test_admissions_played.py."""

import pytest
import torch

from ravnest.collaboration import taking as module
from ravnest.collaboration import transfers
from ravnest.collaboration.helper_lines import SILENT_S
from ravnest.collaboration.messages import (
    AliveMessage,
    ChallengeMessage,
    GotMessage,
    OpenMessage,
    PieceMessage,
    TakeMessage,
    TicketMessage,
    TookMessage,
    TransferMessage,
)
from ravnest.collaboration.taking import STALLED_S, Taking
from ravnest.collaboration.transfers import Form, Incoming, Said, pieces
from ravnest.errors import InvalidInput
from ring_allreduce.errors import DeadlinePassed
from ring_allreduce.transport import KeyPair, Keys, LineClosed, LineSaid, Message
from tests.unit.ravnest.collaboration.lines_twin import LinesTwin

BACKBONE, HELPER = 1, 10
STATE = Form("w", torch.float32, 48)
GRADIENT = Form("g", torch.float32, 32)


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "PIECE_BYTES", 64)


class World:
    """A volunteer that was told to take the state of step 5, or a later one."""

    def __init__(self, *, reached: bool = True, keys: bool = True) -> None:
        self.lines, self.told, self.slow = LinesTwin(), list[str](), False

        def dial(*_: object) -> int:
            if not reached:
                raise DeadlinePassed("a handshake", 5.0)
            return HELPER

        self.lines.dial = dial  # type: ignore[attr-defined]
        pair = KeyPair.make()
        given = Keys(pair, {"backbone": pair.public}) if keys else None
        self.taking = Taking(
            lambda step: [STATE], GRADIENT.elements, self.lines, BACKBONE, given, self.told.append, self.lines.now  # type: ignore[arg-type]
        )  # fmt: skip

    def begins(self, address: str = "b:2") -> None:
        self.taking.told(TakeMessage(address=address, ticket=b"t", step=5))

    def says(self, message: Message, *tensors: torch.Tensor) -> Incoming | None:
        """As a visit hears it, which listens no more once that line was hung up."""
        return self.taking.hear(LineSaid(HELPER, message, tensors)) if self.taking.line == HELPER else None

    def hands_over(self, step: int, count: int | None = None) -> Incoming | None:
        """The state, or so many messages of it."""
        for message, tensors in list(pieces("state", step, 0, [(STATE, torch.arange(48.0))]))[:count]:
            found = self.says(message, *tensors)
        return found

    def averages(self, *steps: int) -> None:
        for step in steps:
            for said in average(step):
                assert self.holds(said)

    def holds(self, said: Said) -> bool:
        return self.taking.holds(LineSaid(BACKBONE, *said))

    @property
    def has_failed(self) -> bool:
        return self.lines.said(TookMessage, BACKBONE) == [TookMessage(step=None, slow=self.slow)]


def average(step: int) -> list[Said]:
    return list(pieces("average", step, 8, [(GRADIENT, torch.full((32,), float(step)))]))


def steps_of(held: list[LineSaid]) -> list[int]:
    return [event.message.step for event in held if isinstance(event.message, TransferMessage)]


def test_it_brings_its_ticket_and_has_the_state_and_the_averages_after_it_as_they_came() -> None:
    world = World()
    assert not world.holds(average(5)[0]), "it was told nothing"
    world.begins()
    assert world.lines.said(TicketMessage, HELPER) == [TicketMessage(ticket=b"t")]
    world.says(ChallengeMessage(protocol=0, nonce=b"", serves=False))
    world.says(AliveMessage(step=6))
    world.averages(5, 6)
    assert world.hands_over(7, 3) is None
    world.averages(7, 8)
    began, *_, last = average(9)
    assert world.holds(began)
    for message, tensors in list(pieces("state", 7, 0, [(STATE, torch.arange(48.0))]))[3:]:
        state = world.says(message, *tensors)
    assert state is not None
    assert torch.equal(state.vectors["w"], torch.arange(48.0))
    assert world.lines.said(GotMessage, HELPER)[-1] == GotMessage(pieces=3)
    held = world.taking.ends()
    assert steps_of(held) == [7, 8, 9]
    assert [event.message for event in held] == [message for step in (7, 8) for message, _ in average(step)] + [
        began[0]
    ]
    assert not world.holds(last), "what is left of it comes in as ever"
    assert HELPER in world.lines.hung_up
    assert not world.lines.said(TookMessage)


def test_the_average_that_is_coming_in_is_kept_though_the_state_has_it() -> None:
    world = World()
    world.begins()
    world.averages(5)
    world.holds(average(6)[0])
    world.hands_over(9)
    assert steps_of(world.taking.ends()) == [6]


def how(world: World, failure: str) -> None:
    """One way in which the state does not come."""
    match failure:
        case "line ends":
            world.taking.hear(LineClosed(HELPER, "it has left"))
        case "silence":
            world.lines.now_s = SILENT_S + 1.0
            world.taking.tend()
        case "no piece":
            while world.lines.now_s <= STALLED_S and not world.has_failed:
                world.lines.now_s += SILENT_S - 1.0
                world.says(AliveMessage(step=3))
                world.taking.tend()
        case "too far behind":
            world.hands_over(4)
        case "another form":
            for message, tensors in pieces("state", 5, 0, [(GRADIENT, torch.zeros(32))]):
                world.says(message, *tensors)
        case "not finite":
            for message, tensors in pieces("state", 5, 0, [(STATE, torch.full((48,), float("nan")))]):
                world.says(message, *tensors)
        case "twice":
            world.hands_over(5, 2)
            world.hands_over(5, 1)
        case "a piece first":
            world.says(PieceMessage(start=0, stop=16), torch.zeros(16))
        case "it serves":
            world.says(ChallengeMessage(protocol=0, nonce=b"", serves=True))
        case "another word":
            world.says(OpenMessage(step=5, stop=8))


@pytest.mark.parametrize(
    "failure",
    ["line ends", "silence", "no piece", "too far behind", "another form", "not finite", "twice", "a piece first",
     "it serves", "another word"],
)  # fmt: skip
def test_whatever_goes_wrong_the_backbone_is_asked_once_and_averages_that_its_own_state_has_are_dropped(
    failure: str,
) -> None:
    world = World()
    world.begins()
    world.averages(5)
    how(world, failure)
    assert world.has_failed
    assert HELPER in world.lines.hung_up
    assert len(world.told) == 1
    world.averages(6, 7)
    world.lines.now_s += 10 * STALLED_S
    world.taking.tend()
    own = list(pieces("state", 8, 0, [(STATE, torch.zeros(48))]))
    assert not any(world.holds(said) for said in [*own, *average(8)])
    assert world.has_failed, "it says so once"
    assert world.taking.ends() == []


@pytest.mark.parametrize(
    ("reached", "keys", "address"), [(False, True, "b:2"), (True, False, "b:2"), (True, True, "b")]
)
def test_who_reaches_nobody_says_so(reached: bool, keys: bool, address: str) -> None:
    world = World(reached=reached, keys=keys)
    world.begins(address)
    assert world.has_failed
    world.averages(5)


def test_averages_take_so_much_memory_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_BYTES", 8000)
    monkeypatch.setattr(module, "HELD_GRADIENTS", 1)
    world = World()
    world.begins()
    world.averages(5, 6, 7)  # 128 bytes of numbers each, in four messages
    assert not world.has_failed
    world.averages(8)
    world.slow = True
    assert world.has_failed, "and blames nobody"
    late = World()
    late.begins()
    late.averages(5, 6, 7)
    late.hands_over(8, 3)
    late.averages(8, 9, 10)  # those before are in the state
    assert not late.has_failed


def test_the_backbone_s_own_state_is_taken_whatever_comes_from_elsewhere() -> None:
    world = World()
    world.begins()
    world.hands_over(5, 3)
    own = list(pieces("state", 6, 0, [(STATE, torch.zeros(48))]))
    assert not any(world.holds(said) for said in own)
    assert HELPER in world.lines.hung_up
    assert world.taking.line is None


def test_a_backbone_that_names_another_place_then_or_sends_pieces_of_nothing_is_wrong() -> None:
    world = World()
    world.begins()
    with pytest.raises(InvalidInput, match="second time"):
        world.begins()
    with pytest.raises(InvalidInput, match="out of turn"):
        world.holds(average(5)[1])
