"""Without a fuzzer: every reader takes its seeds, what once broke it, and some mutations that a seed draws."""

import random

import pytest

from experiments.attack.fuzzed import FILES, FRAMES
from tests.fuzz.__main__ import CORPUS, FOUND, kept
from tests.fuzz.documents import edited
from tests.fuzz.targets import targets

TARGETS = targets()
MUTATIONS = 60

OF_MESSAGES = (
    "message",
    "stage_message",
    "control_line",
    "shared_head",
    "line",
    "contribution",
    "share",
    "from_helper",
    "from_giver",
)
OF_FILES = ("manifest", "safetensors", "invitation", "trace", "people", "identity", "keyring", "shut_out")
WITH_A_VALID_SEED = (*OF_MESSAGES, *OF_FILES, "experts_record", "experts_request")
UNCHANGED = ("nodes", "job", "collaborative_job", "experts", "plan", "scenario", "checkpoint", "driver_state")
"""Documents: without bytes they are as they were."""


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
    for data in [b"", *target.seeds, *kept(name), *broke]:
        target.takes(data)
    for _ in range(MUTATIONS):
        target.takes(mutated(draw.choice(target.seeds), draw))


@pytest.mark.parametrize("name", WITH_A_VALID_SEED)
def test_the_first_seed_is_valid(name: str) -> None:
    TARGETS[name].read(TARGETS[name].seeds[0])


@pytest.mark.parametrize("name", UNCHANGED)
def test_the_document_is_valid(name: str) -> None:
    TARGETS[name].read(b"")


@pytest.mark.parametrize("name", [name for name in TARGETS if name.endswith("_fields")])
def test_most_kinds_of_message_have_a_valid_example(name: str) -> None:
    numbers = {seed[:1] for seed in TARGETS[name].seeds}
    taken = sum(_is_taken(name, number) for number in numbers)
    assert taken > 0.8 * len(numbers)


def _is_taken(name: str, data: bytes) -> bool:
    try:
        TARGETS[name].read(data)
    except TARGETS[name].declared:
        return False
    return True


def test_the_experiment_tries_all_targets() -> None:
    assert {*FRAMES, *FILES} == set(TARGETS)


def test_each_file_of_the_corpus_has_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)


def test_bytes_change_a_document_and_leave_the_original() -> None:
    document = {"a": [1, 2], "b": {"c": "d"}}
    seen = {str(edited(document, bytes([0, place, kind, 5]))) for place in range(6) for kind in range(4)}
    assert len(seen) > 10
    assert document == {"a": [1, 2], "b": {"c": "d"}}
