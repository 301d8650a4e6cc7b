"""What is fuzzed: each reader of bytes from elsewhere, the errors that it declares, and valid inputs to begin with.

A target takes any bytes and returns, or raises an error that its reader declares. Anything else is a defect.

Files of YAML are fuzzed as documents: the bytes choose keys of a valid document and what stands there instead, since
few mutated bytes are still YAML.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
import yaml

import ravnest
from cluster_planner import predicted_again, save_plan
from ravnest.checkpoints.manifest import FileEntry, Manifest, decode_manifest, encode_manifest
from ravnest.checkpoints.weight_files import headers
from ravnest.collaboration import messages as collaboration
from ravnest.collaboration.invitation import Invitation, read_invitation
from ravnest.collaboration.packing import Packing
from ravnest.collaboration.transfers import Form, pieces
from ravnest.collaboration.visitor import Visitor
from ravnest.dht import messages as table
from ravnest.dht.records import Record
from ravnest.driver.observe.metrics_file import read_metrics
from ravnest.errors import InvalidInput
from ravnest.experts import messages as experts
from ravnest.experts.claims import Kept
from ravnest.experts.config import ExpertsConfig, build_expert
from ravnest.experts.expert import HostedExpert
from ravnest.experts.grid import Claim, Grid, HostNews, Listens, encoded
from ravnest.experts.request_work import RequestWork
from ravnest.pipeline import parse_trace
from ravnest.simulator.scenario import load_scenario
from ravnest.stage import messages as stage
from ring_allreduce import InvalidMessage
from ring_allreduce.group.control_messages import CONTROL, FrameReader, JoinMessage, MemberAddress, framed
from ring_allreduce.ring.wire_forms import decode
from ring_allreduce.transport import Message
from ring_allreduce.transport.envelope import Envelope
from ring_allreduce.transport.lines import parts_of
from ring_allreduce.transport.security.keys import KeyPair, read_allow_list, read_key_pair
from ring_allreduce.transport.shared.channel import Head
from tests.unit.ravnest.simulator.test_fleet import home_plan

EXAMPLES = Path(__file__).parents[2] / "examples"
TOKEN = b"0123456789abcdef"
MOST_BYTES = 1 << 16
"""The longest input. Everything here reads more, but nothing more happens there."""


@dataclass(frozen=True)
class Target:
    """A reader of bytes, the errors that it may raise, and inputs to begin with."""

    read: Callable[[bytes], object]
    declared: tuple[type[Exception], ...]
    seeds: Sequence[bytes]
    slowness: int = 1
    """How many times longer an input takes than the quickest target's, roughly: so many fewer are tried."""

    def takes(self, data: bytes) -> None:
        """Read `data`. What is raised is a defect."""
        with contextlib.suppress(*self.declared):
            self.read(data)


# Files are read by their path: each target has a name of its own in one folder.

_MEMORY = Path("/dev/shm")
_FOLDER = tempfile.TemporaryDirectory(prefix="ravnest-fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None)


def _file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    path = Path(_FOLDER.name, name)
    path.touch(0o600)

    def written(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    return written


# Documents: bytes choose what of a valid one is replaced.

ODD: Sequence[Any] = (
    None, True, False, -1, 0, 1, 10**9, 2**53, 2**63, 10**30, 1e308, -1e308, 5e-324, float("nan"), float("inf"), "",
    "x", "x" * 300, "../../evil", "\u202e", "1", "yes", [], [[]], [None], [1, 2], ["a", "a"], {}, {"": None},
    {"x": {"y": []}}, {1: 2}, b"\x00",
)  # fmt: skip
"""What may stand at any place of a document."""


def places(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything in a document of mappings and lists."""
    entries = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [at, *(path for key, value in entries for path in places(value, (*at, key)))]


def edited(document: Any, data: bytes) -> Any:
    """A copy of `document`, changed as the bytes say: of each four, two choose a place, one what happens there, and
    one what with. A document that is changed at its root is that value alone."""
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(document), strict=False)
    for start in range(0, min(len(data), 32) - 3, 4):
        choice, kind, value = int.from_bytes(data[start : start + 2]), data[start + 2], data[start + 3]
        paths = places(copy)
        path = paths[choice % len(paths)]
        if not path:
            if kind % 16 == 0:  # rarely, since nothing of the document is left
                return deepcopy(ODD[value % len(ODD)])
            continue
        holder = copy
        for key in path[:-1]:
            holder = holder[key]
        if kind % 4 == 0:
            del holder[path[-1]]
        elif kind % 4 == 1 and isinstance(holder, dict):
            holder[f"key{value}"] = holder[path[-1]]
        else:
            holder[path[-1]] = deepcopy(ODD[value % len(ODD)])  # or the next edit would change it for all
    return copy


def _document(name: str, document: Any, read: Callable[[Path], object]) -> Target:
    write = _file(name, read)

    def take(data: bytes) -> object:
        return write(yaml.safe_dump(edited(document, data), allow_unicode=True).encode("utf-8", "surrogatepass"))

    seeds = [bytes([0, place, kind, value]) for place in range(0, 250, 25) for kind in (2, 4) for value in (1, 13, 27)]
    return Target(take, (InvalidInput,), seeds, slowness=100)


SCENARIO: dict[str, Any] = {
    "deaths": [{"node": "old-macbook", "at_s": 10.0}],
    "stalls": [{"node": "school-laptop", "at_s": 5.0, "for_s": 2.0}],
    "bandwidth": [{"at_s": 1.0, "up": 0.5, "nodes": ["old-macbook"]}],
}


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
    return [encoded(one) for one in (Claim(1, 2, name), at, HostNews(at, 1, 2, 3.0, 0.5, 4))]


def _invitations() -> list[bytes]:
    guest = KeyPair.make()
    one = Invitation(("192.0.2.1:7800",), "a" * 64, guest.public, guest.secret, "ab" * 16, "cd" * 32)
    return [one.line().encode()]


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


def _texts(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode("utf-8", "replace"))


def _yaml(path: str) -> Any:
    return yaml.safe_load((EXAMPLES / path).read_text(encoding="utf-8"))


def _plan() -> Any:
    path = Path(_FOLDER.name, "planned.yaml")
    save_plan(predicted_again(home_plan()), path)
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def targets() -> Mapping[str, Target]:
    """All targets by name."""
    join = JoinMessage(name="desk", size=3, address=MemberAddress("127.0.0.1", 4000, 4001))
    gradient = stage.Gradient(micro_batch=3, norm_sq=1.0)
    entry = FileEntry(bytes=8, sha256="0" * 64)
    manifest = Manifest(
        round=3, samples=100, versions={"c0": 5}, made_with={"seed": "0"}, files={"segment-000.safetensors": entry}
    )
    return {
        "message": Target(
            lambda data: _ENVELOPE.open(_frames(data)),
            (InvalidMessage,),
            [_sealed(gradient, torch.arange(6.0).reshape(2, 3)), _sealed(stage.Alive(finished=1, sent_s=1.0))],
        ),
        "stage_message": Target(stage.codec().decode, (InvalidMessage,), [stage.codec().encode(gradient)]),
        "chunk": Target(_chunk, (InvalidInput,), [bytes([wire, 0, *bytes(8), *range(40)]) for wire in range(4)]),
        "control_line": Target(
            lambda data: FrameReader().feed(data), (InvalidMessage,), [framed(join), CONTROL.encode(join)]
        ),
        "shared_head": Target(
            lambda data: Head.unpacked(memoryview(data)), (InvalidMessage,), [Head(1, 2, 1, [3], [4, 5]).packed()]
        ),
        "line": Target(lambda data: parts_of(memoryview(data)), (InvalidMessage,), [b"\0\1\0\0\0\2ab"]),
        "contribution": Target(_contribution, (InvalidMessage, InvalidInput), _contributions(), slowness=5),
        "invitation": Target(_texts(read_invitation), (InvalidInput,), _invitations()),
        "experts_request": Target(_asked, (InvalidMessage,), _asks(), slowness=20),
        "experts_record": Target(_told, (), _records()),
        "hash_table": Target(
            table.decoded,
            (),
            [table.encoded(table.Ping(nonce=bytes(table.NONCE_BYTES), sender=bytes(20), listens=True))],
        ),
        "manifest": Target(decode_manifest, (ValueError,), [encode_manifest(manifest)]),
        "safetensors": Target(
            _file("w.safetensors", headers),
            (InvalidInput,),
            [b"\x40" + bytes(7) + b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'.ljust(64) + bytes(8)],
            slowness=10,
        ),
        "metrics": Target(
            _file("metrics.jsonl", read_metrics),
            (InvalidInput,),
            [b'{"kind": "phase", "time": 1.0, "name": "x"}\n'],
            slowness=10,
        ),
        "key_pair": Target(_file("a.key", read_key_pair), (InvalidInput,), [b"public: 00\nsecret: 00\n"], slowness=10),
        "allow_list": Target(
            _file("allowed.keys", read_allow_list), (InvalidInput,), [b"desk " + b"0" * 64 + b"\n"], slowness=10
        ),
        "instructions": Target(_texts(parse_trace), (ValueError,), [b"F0 B0 W0"]),
        "nodes": _document("nodes.yaml", _yaml("home/nodes.yaml"), ravnest.load_fleet),
        "job": _document("job.yaml", _yaml("home/job.yaml"), ravnest.load_job),
        "plan": _document("plan.yaml", _plan(), ravnest.load_plan),
        "scenario": _document("scenario.yaml", SCENARIO, load_scenario),
        "yaml": Target(
            _file("any.yaml", ravnest.load_fleet), (InvalidInput,), [b"nodes: [{name: a}]", b"&a [*a]"], slowness=100
        ),
    }
