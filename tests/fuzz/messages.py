"""The messages that are fuzzed: frames, stage and control messages, chunks, lines, records, and heads of shared memory.

Targets named `…_fields` change the fields of valid messages of all kinds instead of bytes, since few mutated bytes are
MessagePack still (documents.py).
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType

import msgspec
import torch

from ravnest.collaboration import lent_messages as lent
from ravnest.collaboration import messages as collaboration
from ravnest.collaboration.giving import Giving
from ravnest.collaboration.helper_lines import HelperLines
from ravnest.collaboration.helping import Helping
from ravnest.collaboration.packing import Packing
from ravnest.collaboration.shares import in_part
from ravnest.collaboration.taking import Taking
from ravnest.collaboration.transfers import Form, Incoming, Said, pieces
from ravnest.collaboration.visitor import Visitor
from ravnest.dht import messages as table
from ravnest.dht.records import Record
from ravnest.errors import InvalidInput
from ravnest.experts import messages as experts
from ravnest.experts.claims import Kept
from ravnest.experts.config import ExpertsConfig, build_expert
from ravnest.experts.expert import HostedExpert
from ravnest.experts.grid import Claimed, ClaimedBlock, Grid, HostNews, Listens, encoded
from ravnest.experts.request_work import RequestWork
from ravnest.stage import messages as stage
from ring_allreduce import InvalidMessage
from ring_allreduce.group import control_messages as control
from ring_allreduce.group.owner import GroupOwner
from ring_allreduce.ring.wire_forms import decode
from ring_allreduce.rounds.deadlines import Patience
from ring_allreduce.transport import Codec, KeyPair, Keys, LineOpened, LineSaid, Message
from ring_allreduce.transport.envelope import Envelope
from ring_allreduce.transport.lines import parts_of
from ring_allreduce.transport.shared.channel import Head
from tests.fuzz.documents import EDITS, PACKED, edited, example_of
from tests.fuzz.target import MOST_BYTES, Target

TOKEN = b"0123456789abcdef"


def _frames(data: bytes) -> list[memoryview]:
    """Frames as they may come: each begins with two bytes that say how long it is."""
    frames, rest = [], memoryview(bytearray(data))
    while len(rest) > 2:
        end = 2 + int.from_bytes(rest[:2])
        frames.append(rest[2:end])
        rest = rest[end:]
    return frames


def _sealed(message: Message, *tensors: torch.Tensor, envelope: Envelope | None = None) -> bytes:
    frames, _ = (envelope or _ENVELOPE).seal("c0.s0", 1, message, tensors)
    return b"".join(len(frame := bytes(each)).to_bytes(2) + frame for each in frames)


_ENVELOPE = Envelope(stage.codec(), TOKEN, MOST_BYTES)
_COLLABORATION = Envelope(collaboration.COLLABORATION, TOKEN, MOST_BYTES)
_LENT = Envelope(lent.LENT, TOKEN, MOST_BYTES)
_EXPERTS = Envelope(experts.codec(), TOKEN, MOST_BYTES)

_FORMS = [Form("gradients", torch.float32, 300, "int8"), Form("statistics", torch.float32, 2)]
_PACKING = Packing(_FORMS)


def _messages(data: bytes, envelope: Envelope) -> Iterator[tuple[Message, tuple[torch.Tensor, ...]]]:
    """Messages one after another: each is one byte that says of how many frames, and the frames."""
    rest = data
    while rest:
        frames = _frames(rest[1:])[: rest[0] % 16]
        opened = envelope.open(frames)
        yield opened.message, opened.tensors
        rest = rest[1 + sum(2 + len(frame) for frame in frames) :]
        if not frames:
            return


def _contribution(data: bytes) -> object:
    """What a volunteer may send when it has joined. Whatever comes whole is finite, and bounded in its samples."""
    visitor = Visitor(1, 0.0)
    for message, tensors in _messages(data, _COLLABORATION):
        if isinstance(message, collaboration.TransferMessage):
            visitor.begin(message, _PACKING, 64)
        elif isinstance(message, collaboration.TensorMessage | collaboration.PieceMessage):
            whole = visitor.take(message, tensors)
            if whole is not None and not (
                0 < whole.samples <= 64 and all(bool(one.isfinite().all()) for one in whole.vectors.values())
            ):
                raise AssertionError(f"a contribution of {whole.samples} samples: {whole.vectors}")
    return None


def _one_after_another(said: Iterable[tuple[Message, tuple[torch.Tensor, ...]]], envelope: Envelope) -> bytes:
    sent = b""
    for message, tensors in said:
        frames, _ = envelope.seal("c0.s0", 1, message, tensors)
        sent += bytes([len(frames)]) + b"".join(len(bytes(one)).to_bytes(2) + bytes(one) for one in frames)
    return sent


def _contributions() -> list[bytes]:
    vectors = [(form, torch.linspace(-1, 1, form.elements)) for form in _FORMS]
    return [_one_after_another(pieces("contribution", 3, 8, vectors, 8.0), _COLLABORATION)]


class _NoLines:
    """Lines that keep what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Message]] = []

    def dial(self, *_: object) -> int:
        return 1

    def send(self, line: int, message: Message, tensors: Sequence[torch.Tensor] = ()) -> None:
        self.sent.append((line, message))

    def hang_up(self, line: int, reason: str) -> None:
        pass

    def trust(self, line: int) -> None:
        pass


_DIVIDED = Packing([Form("gradients", torch.float32, 65_536 + 300, "int8"), Form("statistics", torch.float32, 2)])
_BOUNDS = (65_536, 65_536 + 300)
_PART = Form("gradients", torch.float32, 300, "int8")
_STATE = Form("w", torch.float32, 300)
_KEYS = Keys(KeyPair.make(), {})


def _share(data: bytes) -> object:
    """What a volunteer may send to a helper. Whatever it takes, the mean of that is finite. No state is sent without
    a ticket for it."""
    lines = _NoLines()
    giving = Giving(lambda: (3, [(_STATE, torch.zeros(300))]), lambda: 3, lines)  # type: ignore[arg-type]
    helping = Helping(_DIVIDED, 64, lines, 0, lambda: None, lambda: (0, 3), giving, lambda: 0.0)  # type: ignore[arg-type]
    helping.hear(collaboration.HelpMessage(epoch=1, part=1, bounds=_BOUNDS))
    helping.hear(collaboration.AdmitMessage(visit=1, ticket=b"t"))
    helping.hear(collaboration.GiveMessage(visit=2, ticket=b"s", step=3))
    helping.take(LineOpened(1, "guest"))
    brought = False
    for message, tensors in _messages(data, _COLLABORATION):
        brought |= isinstance(message, collaboration.TicketMessage) and message.ticket == b"s"
        helping.take(LineSaid(1, message, tensors))
        helping.tend()
    if not brought and any(isinstance(one, collaboration.TransferMessage) for _, one in lines.sent):
        raise AssertionError("a state for nobody")
    came = [message for _, message in lines.sent if isinstance(message, collaboration.PartMessage)]
    for number, part in enumerate(came):
        _COLLABORATION.seal("c0.s0", 1, part, ())
        scale = None if part.refused else 1.0
        helping.hear(collaboration.CountMessage(epoch=1, visit=1, number=number, scale=scale))
    if any(not part.refused for part in came):
        mean = helping.hear(collaboration.MakeMeanMessage(epoch=1, step=3, visits=(1,)))
        if mean is None or not all(bool(one.isfinite().all()) for one in mean.values()):
            raise AssertionError(f"a mean of {came}")
    return None


def _shares() -> list[bytes]:
    ticket = collaboration.TicketMessage(ticket=b"t")
    given = pieces("contribution", 3, 8, [(_PART, torch.linspace(-1, 1, 300))], 8.0)
    other: list[Said] = [(collaboration.TicketMessage(ticket=b"s"), ()), (collaboration.GotMessage(pieces=1), ())]
    return [
        _one_after_another([(ticket, ()), *in_part(list(given), 1, 1)], _COLLABORATION),
        _one_after_another(other, _COLLABORATION),
    ]


def _from_giver(data: bytes) -> object:
    """What may come to a volunteer from where it is to take the state, while averages begin to come from the backbone.
    It is a state of that form, or the backbone is asked for it, once."""
    lines = _NoLines()
    taking = Taking(lambda step: [_STATE], 300, lines, 0, _KEYS, lambda _: None, lambda: 0.0)  # type: ignore[arg-type]
    taking.told(collaboration.TakeMessage(address="b:1", ticket=b"t", step=3))
    state: Incoming | None = None
    for message, tensors in _messages(data, _COLLABORATION):
        average = isinstance(message, collaboration.TransferMessage) and message.what == "average"
        if average:
            taking.holds(LineSaid(0, message, tensors))
        elif taking.line is not None and state is None:
            state = taking.hear(LineSaid(1, message, tensors))
    asked = [message for _, message in lines.sent if isinstance(message, collaboration.TookMessage)]
    if len(asked) != (taking.line is None):
        raise AssertionError(f"the backbone is told {asked}")
    if state is not None and (state.step < 3 or not bool(state.vectors["w"].isfinite().all())):
        raise AssertionError(f"a state of step {state.step}")
    return None


def _states() -> list[bytes]:
    alive: Said = collaboration.AliveMessage(step=3), ()
    average = next(pieces("average", 3, 8, [(_PART, torch.zeros(300))]))
    state = list(pieces("state", 4, 0, [(_STATE, torch.linspace(-1, 1, 300))]))
    return [_one_after_another([alive, average, *state[:2], average, *state[2:]], _COLLABORATION)]


def _from_helper(data: bytes) -> object:
    """What a helper may send to a volunteer. It is a part of an average, or the helper is lost."""
    helpers = HelperLines(_DIVIDED, _NoLines(), 0, _KEYS, lambda _: None, lambda: 0.0)  # type: ignore[arg-type]
    helpers.told(collaboration.SharesMessage(epoch=1, bounds=_BOUNDS, addresses=("b:1",), ticket=b"t"))
    for message, tensors in _messages(data, _COLLABORATION):
        helpers.hear(LineSaid(1, message, tensors), 3)
    if helpers.averages.ready(3) is not None:
        raise AssertionError("an average that the backbone has not made")
    helpers.averages.made(3)
    helpers.averages.put(3, 1, 0, {"gradients": torch.zeros(65_536), "statistics": torch.zeros(2)})
    mean = helpers.averages.ready(3)
    if mean is not None and not all(bool(one.isfinite().all()) for one in mean.values()):
        raise AssertionError("an average that is not finite")
    return None


def _means() -> list[bytes]:
    alive: Said = collaboration.AliveMessage(step=3), ()
    mean = pieces("average", 3, 8, [(_PART, torch.linspace(-1, 1, 300))])
    return [_one_after_another([alive, *in_part(list(mean), 1, 1)], _COLLABORATION)]


def _answered(data: bytes) -> object:
    """What a lent machine may send that was asked for two vectors. What is taken is one of them."""
    answers, likes = lent.Answers(), [torch.zeros(300), torch.zeros(2, dtype=torch.int64)]
    for number, like in enumerate(likes):
        answers.ask("weight", f"w{number}", like, number)
    for message, tensors in _messages(data, _LENT):
        if isinstance(message, lent.VectorMessage) and (whole := answers.take(message, tensors)) is not None:
            like = likes[whole[0]]
            if (whole[1].shape, whole[1].dtype) != (like.shape, like.dtype):
                raise AssertionError(f"{whole[1]} as the weight that was asked for")
    return None


def _answers() -> list[bytes]:
    vectors = [torch.linspace(-1, 1, 300), torch.arange(2)]
    said: list[tuple[Message, tuple[torch.Tensor, ...]]] = [
        (lent.VectorMessage(what="weight", name=f"w{at}", start=0, elements=len(one), key=""), (one,))
        for at, one in enumerate(vectors)
    ]
    return [_one_after_another(said, _LENT), _one_after_another(said[:1], _LENT)]


def _asked(data: bytes) -> object:
    """What a caller or a host may send to a host of experts: it is computed or refused, and no caller leaves an expert
    that is not finite. (A copy may say anything of an expert that is.)"""
    _EXPERT.restore(_BEFORE, Kept(0, 0))
    work, copied = RequestWork(_GRID, {(0, 0): _EXPERT}), False
    for message, tensors in _messages(data, _EXPERTS):
        if isinstance(message, experts.Forward | experts.Backward):
            work.take("caller", message, tensors, 0.0)
            work.compute(lambda: 1.0)
        elif isinstance(message, experts.Copy) and len(set(message.names)) == len(message.names) == len(tensors):
            with contextlib.suppress(InvalidInput):
                _EXPERT.restore(dict(zip(message.names, tensors, strict=True)), _EXPERT.kept)
                copied = True
    if not copied and not all(bool(one.isfinite().all()) for one in _EXPERT.module.parameters()):
        raise AssertionError("the expert is not finite any more")
    return None


_GRID = ExpertsConfig.model_validate(
    {"name": "g", "grid": [1, 1], "expert": {"factory": "tests.support.experts:block"}, "input_shape": [4],
     "optimizer": {"name": "adam", "lr": 1e-3}, "batch": {"most_samples": 8, "most_wait_ms": 0}}
)  # fmt: skip
_EXPERT = HostedExpert(build_expert(_GRID, (0, 0), ()), _GRID)
_BEFORE = _EXPERT.state()


def _asks() -> list[bytes]:
    samples = torch.linspace(-1, 1, 8).reshape(2, 4)
    _EXPERT.backward(samples, samples, 1)
    state = _EXPERT.state()
    said: list[tuple[Message, tuple[torch.Tensor, ...]]] = [
        (experts.Forward(call=1, expert=(0, 0), training=True), (samples,)),
        (experts.Backward(call=2, expert=(0, 0), updates=0), (samples, samples)),
        (experts.Copy(expert=(0, 0), term=1, updates=2, names=tuple(state)), tuple(state.values())),
    ]
    return [_one_after_another(said, _EXPERTS), *(_one_after_another([one], _EXPERTS) for one in said)]


def _told(data: bytes) -> object:
    """A record of the hash table, as a member of a grid reads it."""
    author = b"a" * 32
    for kind in (Listens, HostNews):
        for token in (None, bytes(16)):
            Grid("g", (4, 4), token).members([Record(b"k", b"s", data, author, 0.0, 1.0, bytes(64))], kind)
    record, host = Record(b"k", data[:4], data, author, 0.0, 1.0, bytes(64)), "host." + author.hex()[:16]
    return Grid("g", (4, 4)).claims((1,), [record], {host})


def _records() -> list[bytes]:
    name = "host." + (b"a" * 32).hex()[:16]
    at = Listens(name, "127.0.0.1", 1, 2)
    return [encoded(one) for one in (ClaimedBlock(name, (Claimed(0, 1, 2),)), at, HostNews(at, 1, 2, 3.0, 0.5, 4))]


_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_WIRES = ("exact", "float16", "bfloat16", "int8")


def _chunk(data: bytes) -> object:
    """A chunk of a round: one byte says how it travels, one of what numbers, eight the weight; then the numbers."""
    if len(data) < 18:
        return None  # no number of any type
    wire, dtype = _WIRES[data[0] % 4], _DTYPES[data[1] % 4]
    (weight,) = torch.frombuffer(bytearray(data[2:10]), dtype=torch.float64).tolist()
    weight = min(max(abs(weight), 1e-12), 1e12) if weight == weight else 1.0  # the bounds of a message's field
    body = bytearray(data[10:])
    sent = {"exact": dtype, "float16": torch.float16, "bfloat16": torch.bfloat16, "int8": torch.int8}[wire]
    numbers = torch.frombuffer(body, dtype=sent, count=len(body) // sent.itemsize)
    scales = torch.frombuffer(body[: len(body) // 4 * 4], dtype=torch.float32)
    tensors = [numbers, scales[: max(1, len(numbers) // 256)]] if wire == "int8" else [numbers]
    return decode(wire, tensors, len(numbers), weight, dtype, most=1e30)


def _fields(kinds: Sequence[type[Message]], read: Callable[[bytes], object]) -> Target:
    """Messages of all these kinds: the first byte chooses one, the others change its fields."""
    examples = [example_of(kind) for kind in kinds]

    def take(data: bytes) -> object:
        changed = edited(examples[(data or b"\0")[0] % len(examples)], data[1:], PACKED)
        return read(msgspec.msgpack.encode(changed))

    seeds = [bytes([number]) + edit for number in range(len(examples)) for edit in (b"", EDITS[0], EDITS[-1])]
    return Target(take, (InvalidMessage,), seeds, slowness=5)


def _same_again(codec: Codec) -> Callable[[bytes], object]:
    """What is taken can be passed on, and says the same there."""

    def read(data: bytes) -> None:
        taken = codec.decode(data)
        again = codec.decode(codec.encode(taken))
        if codec.encode(again) != codec.encode(taken):  # bytes, since NaN is not equal to itself
            raise AssertionError(f"{taken} is read as {again}")

    return read


_WHERE = control.MemberAddress("127.0.0.1", 4000, 4001)


def _kinds_of(module: ModuleType) -> list[type[Message]]:
    """The kinds of messages that a module has."""
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Message)]
    return [kind for kind in kinds if kind is not Message]


def _told_the_owner(data: bytes) -> None:
    """What a member of a group says to the rendezvous twice, in a group that is complete and in one that waits."""
    message = control.CONTROL.decode(data)
    for size in (3, 4):
        owner = GroupOwner(size, Patience())
        for name in "abc":
            owner.join(control.JoinMessage(name=name, size=size, address=_WHERE), 0.0)
        for now_s in (1.0, 2.0):
            said = owner.take("a", message, now_s)
            for _, answer in owner.lost("a", "it spoke out of turn", now_s) if said is None else said:
                control.framed(answer)
        owner.check(1000.0)


def message_targets() -> Mapping[str, Target]:
    """By name."""
    join = control.JoinMessage(name="desk", size=3, address=_WHERE)
    gradient = stage.Gradient(micro_batch=3, norm_sq=1.0)
    ping = table.Ping(nonce=bytes(table.NONCE_BYTES), sender=bytes(20), listens=True)
    return {
        "message": Target(
            lambda data: _ENVELOPE.open(_frames(data)),
            (InvalidMessage,),
            [_sealed(gradient, torch.arange(6.0).reshape(2, 3)), _sealed(stage.Alive(finished=1, sent_s=1.0))],
        ),
        "stage_message": Target(stage.codec().decode, (InvalidMessage,), [stage.codec().encode(gradient)]),
        "stage_fields": _fields(stage.KINDS, _same_again(stage.codec())),
        "chunk": Target(_chunk, (InvalidInput,), [bytes([wire, 0, *bytes(8), *range(40)]) for wire in range(4)]),
        "control_line": Target(
            lambda data: control.FrameReader().feed(data),
            (InvalidMessage,),
            [control.framed(join), control.CONTROL.encode(join)],
        ),
        "control_fields": _fields(control.FROM_MEMBERS, _told_the_owner),
        "welcome_fields": _fields(control.FROM_RENDEZVOUS, _same_again(control.CONTROL)),
        "shared_head": Target(
            lambda data: Head.unpacked(memoryview(data)), (InvalidMessage,), [Head(1, 2, 1, [3], [4, 5]).packed()]
        ),
        "line": Target(lambda data: parts_of(memoryview(data)), (InvalidMessage,), [b"\0\1\0\0\0\2ab"]),
        "collaboration_fields": _fields(_kinds_of(collaboration), _same_again(collaboration.COLLABORATION)),
        "lent_fields": _fields(_kinds_of(lent), _same_again(lent.LENT)),
        "lent_answers": Target(_answered, (InvalidMessage, InvalidInput), _answers()),
        "share": Target(_share, (InvalidMessage,), _shares(), slowness=20),
        "from_helper": Target(_from_helper, (InvalidMessage,), _means(), slowness=20),
        "from_giver": Target(_from_giver, (InvalidMessage,), _states(), slowness=5),
        "contribution": Target(_contribution, (InvalidMessage, InvalidInput), _contributions(), slowness=5),
        "experts_request": Target(_asked, (InvalidMessage,), _asks(), slowness=20),
        "experts_fields": _fields(experts.CODEC_KINDS, _same_again(experts.codec())),
        "experts_record": Target(_told, (), _records()),
        "hash_table": Target(table.decoded, (), [table.encoded(ping)]),
    }
