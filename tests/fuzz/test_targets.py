"""Without a fuzzer: every reader takes its seeds, what once broke it, and some mutations that a seed draws."""

import random

import pytest

from tests.fuzz.__main__ import FOUND
from tests.fuzz.targets import edited, targets

TARGETS = targets()
MUTATIONS = 60

BYTES = ("message", "stage_message", "control_line", "shared_head", "manifest", "safetensors", "line")
WITH_A_VALID_SEED = (*BYTES, "contribution", "invitation", "experts_request", "experts_record")


def mutated(data: bytes, draw: random.Random) -> bytes:
    """`data` with some bytes replaced, a piece taken out, or a piece doubled."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        start = draw.randrange(len(changed) + 1)
        end = min(len(changed), start + draw.randint(1, 8))
        kind = draw.randrange(3)
        piece = draw.randbytes(end - start) if kind == 0 else bytes(changed[start:end]) * 2 if kind == 1 else b""
        changed[start:end] = piece
    return bytes(changed)


@pytest.mark.parametrize("name", TARGETS)
def test_a_reader_takes_any_bytes_or_refuses_them_as_it_declares(name: str) -> None:
    target, draw = TARGETS[name], random.Random(name)
    broke = [path.read_bytes() for path in sorted((FOUND / name).glob("*"))]
    for data in [b"", *target.seeds, *broke]:
        target.takes(data)
    for _ in range(MUTATIONS):
        target.takes(mutated(draw.choice(target.seeds), draw))


@pytest.mark.parametrize("name", WITH_A_VALID_SEED)
def test_the_first_seed_is_valid(name: str) -> None:
    TARGETS[name].read(TARGETS[name].seeds[0])


def test_bytes_change_a_document_and_leave_the_original() -> None:
    document = {"a": [1, 2], "b": {"c": "d"}}
    seen = {str(edited(document, bytes([0, place, kind, 5]))) for place in range(6) for kind in range(4)}
    assert len(seen) > 10
    assert document == {"a": [1, 2], "b": {"c": "d"}}
