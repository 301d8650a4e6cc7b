"""How many bits bytes hold, and what their coding is worth."""

import zlib

import pytest
import torch

from experiments.pipeline.tasks import Digits
from experiments.wire.entropy import Coded, coded, entropy, huffman, part_of, recorded


def test_entropy_is_the_bits_of_a_byte() -> None:
    assert entropy(bytes(range(256)) * 4) == pytest.approx(8)
    assert entropy(b"\0\1" * 8) == pytest.approx(1)
    assert entropy(b"\0" * 9) == 0


def test_huffman_codes_give_the_bytes_back_and_are_no_shorter_than_entropy() -> None:
    numbers = torch.randn(1 << 14, generator=torch.Generator().manual_seed(0)).mul(20).to(torch.int8)
    data = numbers.numpy().tobytes()
    packed = huffman(data)
    assert zlib.decompress(packed, -zlib.MAX_WBITS) == data
    assert entropy(data) / 8 < len(packed) / len(data) < entropy(data) / 8 + 0.02


def test_what_training_sends_is_recorded_and_coded() -> None:
    numbers = recorded(Digits(batch=4), 1)
    assert set(numbers) == {"activations", "gradients", "progress"}
    assert all(vector.dim() == 1 and vector.abs().max() > 0 for vector in numbers.values())
    found = coded("progress", "int8", numbers["progress"])
    assert found.bytes == pytest.approx(numbers["progress"].numel() * (1 + 4 / 256), rel=1e-3)
    assert found.entropy / 8 < found.huffman < 1.05


def test_coding_pays_where_the_link_takes_longer_for_what_it_saves() -> None:
    one = Coded("progress", "int8", 1_000_000, 7.0, 0.9, 0.02)
    assert one.pays_below == pytest.approx(8 * 100_000 / 0.02)
    slow = Coded("progress", "int4", 1_000_000, 5.0, 0.75, 1.0)
    claims = {claim.name: claim.held for claim in part_of({"digits": [one, slow], "characters": [one]}, "").claims}
    assert claims == {"saves": False, "pays": False}
