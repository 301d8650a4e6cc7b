"""The machines that a volunteer is lent: who they are, what passes between them, and what is waited for.

In: lines that machines open, and a model that is divided among them. Out: losses of micro-batches, sums of gradients,
and weights, by name. All that passes from one stage to the next goes through here, since the machines open one
connection each. Several micro-batches are under way at a time, as many as there are stages. A machine whose line ends
costs the step what was not sent of it; the next one that comes takes its place.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from ravnest.collaboration.invitation import BACKBONE, GUEST, Invitation, listening_at
from ravnest.collaboration.lent_cuts import LentPower, spans_for
from ravnest.collaboration.lent_messages import (
    LENT,
    LENT_PROTOCOL,
    MOST_HELD_BYTES,
    MOST_MACHINES,
    MOST_MESSAGE_BYTES,
    Answers,
    Asked,
    AskMessage,
    BackwardMessage,
    ClearMessage,
    CountMessage,
    DropMessage,
    Dropped,
    FailedMessage,
    ForwardMessage,
    GradientMessage,
    LendMessage,
    LossMessage,
    OutputMessage,
    ReadyMessage,
    StageMessage,
    StepMessage,
    TargetForm,
    TargetMessage,
    ThanksMessage,
    VectorKind,
    VectorMessage,
    send_vector,
)
from ravnest.collaboration.messages import CodeMessage
from ravnest.errors import InvalidInput, RavnestError, RunFailed
from ravnest.splitting import CapturedModel
from ravnest.training.batches import Inputs, Target, target_tensors
from ring_allreduce.transport import (
    TOKEN_BYTES,
    KeyPair,
    Keys,
    LineClosed,
    LineEvent,
    LineOpened,
    Lines,
    LineSaid,
    Message,
)

SILENT_S = 300.0
"""A machine that has something to do says something this often; a micro-batch takes no longer."""

COME_S = 600.0
"""Machines that are missing have so long to come."""

THANKS_S = 5.0
"""At the end machines may take so long to hear that they are needed no longer."""

IDLE_S = 0.5


@dataclass(frozen=True)
class LentModel:
    """What the machines are told of the model."""

    files: Mapping[str, bytes]
    job: str
    captured: CapturedModel
    micro_batch: int
    total_steps: int | None
    sample: Inputs
    target: Target
    seed: int


@dataclass
class _Machine:
    line: int
    power: LentPower | None = None
    ready: bool = False
    place: int | None = None
    answers: Answers = field(default_factory=Answers)


@dataclass
class _Turn:
    loss: float | None = None
    finite: bool = True
    ended: bool = False


class LentMachines:
    """The machines of one volunteer, of one thread at a time. `with` it; leaving the block ends their lines."""

    def __init__(
        self,
        stages: int,
        code_hash: str,
        *,
        listen: str,
        addresses: Sequence[str] = (),
        tell: Callable[[str], None] = lambda _: None,
        now: Callable[[], float] = time.monotonic,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """`listen`: HOST:PORT of this machine, port 0 for any free one; `addresses`: where the others find it, if
        elsewhere. Raises InvalidInput, TransportError."""
        if not 1 <= stages <= MOST_MACHINES:
            raise InvalidInput(f"expected 1 to {MOST_MACHINES}, not {stages}", key="--stages")
        own, guest = KeyPair.make(), KeyPair.make()
        token = secrets.token_hex(TOKEN_BYTES)
        host, port = listening_at(listen)
        self._lines = Lines(
            LENT,
            bytes.fromhex(token),
            listen=(host, port, Keys(own, {BACKBONE: own.public, GUEST: guest.public})),
            max_message_bytes=MOST_MESSAGE_BYTES,
            most_unread_bytes=MOST_HELD_BYTES,
            most_queued_bytes=MOST_HELD_BYTES,
            most_bytes=MOST_HELD_BYTES,
        )
        shown = f"[{host}]" if ":" in host else host
        found = tuple(addresses) or (f"{shown}:{self._lines.port}",)
        self.given = Invitation(found, own.public, guest.public, guest.secret, token, code_hash)
        """What machines are given to come here."""
        self.stages = stages
        self._tell, self._now, self._stop = tell, now, stop
        self._machines: dict[int, _Machine] = {}
        self._spans: list[tuple[int, int]] = []
        self._turns: dict[int, _Turn] = {}
        self._events: deque[LineEvent] = deque()  # that have come and were not looked at
        self._asked, self._got = 0, dict[str, Tensor]()  # how often was asked; what has come of the last time, by name
        self._next = 0

    def __enter__(self) -> "LentMachines":
        return self

    def __exit__(self, *_: object) -> None:
        for line in self._machines:
            self._lines.send(line, ThanksMessage())
        ends_s = self._now() + THANKS_S
        with suppress(RavnestError):
            while self._machines and self._now() < ends_s:  # each hangs up once it has heard it
                self._hear()
        self._lines.close()

    # Who is there.

    @property
    def complete(self) -> bool:
        """Whether each stage is held by a machine that has made it."""
        return len(self._placed()) == self.stages and all(
            one.ready for one in self._machines.values() if one.place is not None
        )

    def assemble(self, model: LentModel) -> list[tuple[int, int]]:
        """Wait until each stage has its machine, give those that lack one what they need, and return the spans.

        Raises InvalidInput where the model does not fit them, RunFailed when machines do not come in COME_S.
        """
        self._turns.clear()
        ends_s, told = self._now() + COME_S, -1
        while not self.complete:
            if self._stop():
                raise RunFailed("stopped while machines were waited for")
            if self._now() > ends_s:
                lacking = self.stages - sum(one.ready for one in self._machines.values())
                self._let_go(lambda one: not one.ready, "it did not make its stage")
                raise RunFailed(f"{lacking} machines did not come in {COME_S:.0f} s, or did not make their stages")
            self._hear()
            waiting = [one for one in self._machines.values() if one.power is not None and one.place is None]
            missing = [place for place in range(self.stages) if place not in self._placed()]
            if not self._spans and len(waiting) >= self.stages:
                powers = [one.power for one in waiting[: self.stages] if one.power is not None]
                self._spans = spans_for(model.captured.units, powers, model.micro_batch)
            if self._spans:
                for place, machine in zip(missing, waiting, strict=False):
                    self._give(machine, place, model)
            elif len(waiting) != told:
                told = len(waiting)
                self._tell(f"{told} of {self.stages} machines are here; others come by the line in the file")
        return list(self._spans)

    def _placed(self) -> dict[int, _Machine]:
        return {one.place: one for one in self._machines.values() if one.place is not None}

    def _give(self, machine: _Machine, place: int, model: LentModel) -> None:
        machine.place = place
        start, end = self._spans[place]
        for path, data in model.files.items():
            self._lines.send(machine.line, CodeMessage(path=path, data=data))
        target: TargetForm = "tensor" if isinstance(model.target, Tensor) else "tuple"
        keys: tuple[str, ...] = ()
        if isinstance(model.target, dict):
            target, keys = "dict", tuple(map(str, model.target))
        by_name = isinstance(model.sample, dict)
        said = StageMessage(
            job=model.job,
            start=start,
            end=end,
            keywords=tuple(map(str, model.sample)) if by_name else None,
            target=target,
            target_keys=keys,
            fingerprint=model.captured.costs.fingerprint,
            seed=(model.seed + place) % (1 << 63),
            total_steps=model.total_steps,
        )
        sample = tuple(model.sample.values()) if isinstance(model.sample, dict) else model.sample
        self._lines.send(machine.line, said, sample)
        assert machine.power is not None
        self._tell(f"{machine.power.name} holds units {start} to {end}")

    # Micro-batches.

    def begin(self, inputs: Sequence[Tensor], target: Target) -> int:
        """A micro-batch enters the first stage; returns the number of its turn."""
        turn, self._next = self._next, self._next + 1
        self._turns[turn] = _Turn()
        self._say(self.stages - 1, TargetMessage(turn=turn), target_tensors(target))
        self._say(0, ForwardMessage(turn=turn), inputs)
        return turn

    def finished(self, turn: int) -> float | None:
        """Wait for a turn's whole backward; returns its loss, None where it or a gradient is not finite.

        Raises RunFailed where a machine is lost or silent.
        """
        state = self._turns[turn]
        self._until(lambda: state.ended)
        del self._turns[turn]
        return state.loss if state.finite else None

    def count(self, turn: int, samples: int) -> None:
        """Add the gradient of a finished turn to the sums."""
        self._to_all(CountMessage(turn=turn, samples=samples))

    def drop(self, what: Dropped) -> None:
        """Forget all turns, or the sums."""
        if what == "turns":
            self._turns.clear()
        self._to_all(DropMessage(what=what))

    # Vectors.

    def ask(self, what: Asked, names: Mapping[str, Sequence[int]], likes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Ask the stages (by name) for vectors; returns them by name, those of several stages added up.

        `likes`: by name, a tensor of the same dtype and as many elements. Raises RunFailed where a machine is lost or
        silent.
        """
        found: dict[str, Tensor] = {}
        for turn in range(max(map(len, names.values()), default=0)):
            asked = [name for name, places in names.items() if len(places) > turn]
            self._asked, self._got = self._asked + 1, {}
            for name in asked:
                self._machine(names[name][turn]).answers.ask(what, name, likes[name], self._asked)
                self._say(names[name][turn], AskMessage(what=what, name=name))
            self._until(partial(self._has_got, len(asked)))
            for name, vector in self._got.items():
                found[name] = found[name] + vector if name in found else vector
        return found

    def _has_got(self, vectors: int) -> bool:
        return len(self._got) == vectors

    def put(self, places: Sequence[int], what: VectorKind, name: str, vector: Tensor, key: str = "") -> None:
        """Send a vector to these stages."""
        for place in places:
            send_vector(self._lines, self._machine(place).line, what, name, vector, key)

    def clear(self, step: int) -> None:
        """A state of that step follows."""
        self._turns.clear()
        self._to_all(ClearMessage(step=step))

    def step(self) -> None:
        """All stages make a step of the means that they were put."""
        self._to_all(StepMessage())

    # Lines.

    def _machine(self, place: int) -> _Machine:
        found = self._placed().get(place)
        if found is None:
            raise RunFailed(f"stage {place} is held by no machine")
        return found

    def _say(self, place: int, message: Message, tensors: Sequence[Tensor] = ()) -> None:
        self._lines.send(self._machine(place).line, message, tensors)

    def _to_all(self, message: Message) -> None:
        for place in range(self.stages):
            self._say(place, message)

    def _until(self, holds: Callable[[], bool]) -> None:
        heard_s = self._now()
        while not holds():
            if not self.complete:
                raise RunFailed("a machine that holds a stage was lost")
            if self._stop():
                raise RunFailed("stopped while stages computed")
            if self._hear():
                heard_s = self._now()
            elif self._now() > heard_s + SILENT_S:
                self._let_go(lambda _: True, "silent")  # all: those that still work come back by themselves
                raise RunFailed(f"no machine that holds a stage said anything for {SILENT_S:.0f} s")

    def _let_go(self, which: Callable[[_Machine], bool], reason: str) -> None:
        """Hang up on those that hold a stage and of which this is so: others take their places."""
        for machine in self._placed().values():
            if which(machine):
                self._lines.hang_up(machine.line, reason)
                self._lost(machine.line, reason)

    def _hear(self) -> bool:
        """Wait for events for IDLE_S at most; returns whether one that holds a stage has said something."""
        heard = False
        self._events.extend(self._lines.take(0.0 if self._events else IDLE_S))
        while self._events:  # an error leaves the others for the next time
            event = self._events.popleft()
            if isinstance(event, LineOpened):
                self._machines[event.line] = _Machine(event.line)
                self._lines.trust(event.line)  # it has the key that only the machines of this volunteer are given
            elif isinstance(event, LineClosed):
                self._lost(event.line, event.reason)
            elif isinstance(event, LineSaid) and event.line in self._machines:
                heard = heard or self._machines[event.line].place is not None
                try:
                    self._take(self._machines[event.line], event)
                except InvalidInput as error:
                    self._lines.send(event.line, FailedMessage(reason=str(error)[:400]))
                    self._lines.hang_up(event.line, "said what cannot be")
                    self._lost(event.line, str(error))
        return heard

    def _lost(self, line: int, reason: str) -> None:
        gone = self._machines.pop(line, None)
        if gone is not None and gone.power is not None:
            self._tell(f"{gone.power.name} is gone: {reason}")

    def _take(self, machine: _Machine, event: LineSaid) -> None:
        """Raises InvalidInput for what no machine says at this point."""
        message, place = event.message, machine.place
        if isinstance(message, LendMessage) and machine.power is None:
            if message.protocol != LENT_PROTOCOL:
                raise InvalidInput(f"this program speaks version {LENT_PROTOCOL} with its machines")
            machine.power = LentPower(message.name, message.flops_per_s, message.free_bytes)
        elif isinstance(message, FailedMessage):
            self._tell(f"{machine.power.name if machine.power else 'a machine'}: {message.reason}")
            self._lines.hang_up(machine.line, "it has failed")
            self._lost(machine.line, message.reason)
        elif place is None:
            raise InvalidInput(f"{type(message).__name__} from a machine that holds nothing")
        elif isinstance(message, ReadyMessage):
            machine.ready = True
        elif isinstance(message, VectorMessage):
            answer = machine.answers.take(message, event.tensors)
            if answer is not None and answer[0] == self._asked:  # else it was asked for before a machine was lost
                self._got[message.name] = answer[1]
        elif isinstance(message, OutputMessage | LossMessage | GradientMessage):
            self._pass_on(place, message, event.tensors)
        else:
            raise InvalidInput(f"{type(message).__name__} is nothing that a machine says")

    def _pass_on(
        self, place: int, message: OutputMessage | LossMessage | GradientMessage, tensors: tuple[Tensor, ...]
    ) -> None:
        state = self._turns.get(message.turn)
        if state is None:
            return  # it was dropped
        match message:
            case OutputMessage() if place + 1 < self.stages:
                self._say(place + 1, ForwardMessage(turn=message.turn), tensors)
            case LossMessage(loss=loss) if place + 1 == self.stages:
                state.loss, state.ended = loss, loss is None
            case GradientMessage(finite=finite):
                state.finite = state.finite and finite
                if place:
                    self._say(place - 1, BackwardMessage(turn=message.turn), tensors)
                else:
                    state.ended = True
            case _:
                raise InvalidInput(f"{type(message).__name__} from stage {place}")
