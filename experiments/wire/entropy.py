"""What an entropy coder would still save of the short forms, and what it takes of the processor.

In: activations and gradients at the three cuts of a GPT and of a convolutional network that have learned for a while,
and what they change in the updates of a round, each in the form of a stage or a ring. Out: the bits a byte still holds
(the entropy of its values, which no coder of single bytes undercuts), what zlib's Huffman codes take, and how fast.
Coding takes a processor while the link waits, so it pays only where links are slower than the bytes saved in each
second that it takes.
"""

import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from experiments.harness.report import Cell, Claim, Part, Table, median
from experiments.pipeline.tasks import SHAKESPEARE, Batch, Characters, Digits, Task
from experiments.wire.averaging import flat
from experiments.wire.cuts import CLIP, LR, last_modules
from ravnest.training.precision import RoundWireName, ring_wire
from ring_allreduce.ring import encode

LEARNED = {"characters": 200, "digits": 40}
"""Updates before anything is recorded."""
ROUND = 10
"""Updates of a round."""
REPEATS = 7
LEAST_GAIN = 0.2
"""Of the bytes: less is not worth a form whose size nobody knows before it is made."""
LINK = 50e6
"""Bit/s of the fastest uplink that such forms are made for."""


@dataclass(frozen=True)
class Coded:
    """One kind of numbers in one form."""

    kind: str
    form: RoundWireName
    bytes: int
    entropy: float
    """Bits of a byte, of 8."""
    huffman: float
    """The bytes after coding, of those before."""
    seconds: float
    """Coding and decoding."""

    @property
    def pays_below(self) -> float:
        """The link's rate, in bit/s, at which coding and decoding take as long as the bytes that they save."""
        return 8 * self.bytes * max(0.0, 1.0 - self.huffman) / self.seconds


def run(*, quick: bool) -> Part:
    """Record, encode, and code."""
    torch.set_num_threads(1)
    tasks: dict[str, Task] = {"digits": Digits()}
    if not quick:
        tasks["characters"] = Characters(SHAKESPEARE, layers=4, width=64, context=32, batch=16)
    learned = dict.fromkeys(LEARNED, 2) if quick else LEARNED
    found: dict[str, list[Coded]] = {name: [] for name in tasks}
    for name, task in tasks.items():
        for kind, vector in recorded(task, learned[name]).items():
            forms: Sequence[RoundWireName] = ("int8", "int4", "sparse") if kind == "progress" else ("int8", "int4")
            found[name] += [coded(kind, form, vector) for form in forms]
    sizes = "; ".join(f"{task.name}, after {learned[name]} updates" for name, task in tasks.items())
    return part_of(found, sizes)


def recorded(task: Task, updates: int) -> dict[str, Tensor]:
    """The numbers that cross the cuts in one micro-batch, and what a round's updates change, as flat vectors."""
    model = task.model(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    batches = task.batches(0)

    def learn(some: Sequence[Batch]) -> None:
        for inputs, target in some:
            optimizer.zero_grad()
            task.loss(model(inputs), target).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()

    learn(list(islice(batches, updates)))
    before = flat(model)
    learn(list(islice(batches, ROUND)))
    outputs: list[Tensor] = []

    def record(module: nn.Module, args: object, output: Tensor) -> None:
        output.retain_grad()
        outputs.append(output)

    handles = [module.register_forward_hook(record) for module in last_modules(model)]
    inputs, target = next(batches)
    task.loss(model(inputs), target).backward()  # type: ignore[no-untyped-call]
    for handle in handles:
        handle.remove()
    gradients = [output.grad for output in outputs if output.grad is not None]
    return {
        "activations": torch.cat([output.detach().reshape(-1) for output in outputs]),
        "gradients": torch.cat([gradient.reshape(-1) for gradient in gradients]),
        "progress": flat(model) - before,
    }


def coded(kind: str, form: RoundWireName, vector: Tensor) -> Coded:
    """Encode these numbers, code what that gives, and decode it again."""
    parts = encode(ring_wire(form), vector, 1.0, torch.zeros_like(vector))
    wire = [part.contiguous().view(torch.uint8).numpy().tobytes() for part in parts]
    seconds, packed = [], b""
    for _ in range(REPEATS):
        began_s = time.process_time()
        packs = [huffman(each) for each in wire]
        back = [zlib.decompress(each, -zlib.MAX_WBITS) for each in packs]
        seconds.append(time.process_time() - began_s)
        assert back == wire
        packed = b"".join(packs)
    whole = sum(map(len, wire))
    bits = sum(len(each) * entropy(each) for each in wire) / whole
    return Coded(kind, form, whole, bits, len(packed) / whole, median(seconds))


def huffman(data: bytes) -> bytes:
    """zlib's Huffman codes alone: it looks for no repetitions, of which there are none."""
    coder = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_HUFFMAN_ONLY)
    return coder.compress(data) + coder.flush()


def entropy(data: bytes) -> float:
    """Bits that a byte holds on average, each value by how often it occurs."""
    counts = torch.bincount(torch.frombuffer(bytearray(data), dtype=torch.uint8).long())
    shares = (counts[counts > 0] / len(data)).double()
    return -float((shares * shares.log2()).sum())


def part_of(found: Mapping[str, Sequence[Coded]], sizes: str) -> Part:
    """The part of the report, from what was coded of each task."""
    every = [(name, one) for name, several in found.items() for one in several]
    said = ", ".join(
        f"{name} {1 - best.huffman:.1%} ({best.kind} as {best.form})"
        for name, several in found.items()
        for best in [min(several, key=lambda one: one.huffman)]
    )
    slowest, fastest = (pick(one.pays_below for _, one in every) / 1e6 for pick in (min, max))
    rows: list[list[Cell]] = [
        [
            *(name, one.kind, one.form, one.bytes, one.entropy / 8, one.huffman),
            *(one.bytes / one.seconds / 1e6, one.pays_below / 1e6),
        ]
        for name, one in every
    ]
    columns = ["task", "numbers", "form", "bytes", "by entropy", "by Huffman codes", "coded and decoded, MB/s"]
    columns.append("pays below, Mbit/s")
    return Part(
        "entropy",
        "Entropy coding of what is sent",
        [
            Claim(
                "saves",
                "of the form and the numbers that lose most, Huffman codes take off bytes, in each task",
                f"at least {LEAST_GAIN:.0%}",
                said,
                all(min(one.huffman for one in several) <= 1 - LEAST_GAIN for several in found.values()),
            ),
            Claim(
                "pays",
                "coding and decoding take less time than a link needs for the bytes saved, in every form",
                f"up to {LINK / 1e6:g} Mbit/s",
                f"up to {slowest:.0f} Mbit/s in one form, {fastest:.0f} in another",
                slowest * 1e6 >= LINK,
            ),
        ],
        [Table("Of the bytes of a form: what is left", columns, rows)],
        notes=[
            f"{sizes} of AdamW: one micro-batch at three cuts, and what {ROUND} further updates change. Processor time "
            f"of one core, the median of {REPEATS}. By entropy: of single bytes, with the counts known for nothing.",
        ],
    )
