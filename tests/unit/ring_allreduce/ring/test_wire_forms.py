"""What travels and what the receiver makes of it: error bounds, the residual, and everything that is refused."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ring_allreduce.errors import InvalidInput
from ring_allreduce.ring.wire_forms import (
    BLOCK,
    KEPT,
    WIRES,
    bytes_per_element,
    check_wire,
    decode,
    encode,
    is_finite,
    most_of_part,
    why_not_summed,
)

COMPRESSED = [wire for wire in WIRES if wire != "exact"]
SIZES = st.one_of(st.integers(0, 3 * BLOCK + 5), st.sampled_from([BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK]))
WEIGHTS = st.one_of(st.just(0.0), st.floats(0.01, 1e6), st.sampled_from([1.0, 5e-324, 1e300]))


def numbers(seed, elements, magnitude=1.0):
    """Normal numbers, magnitudes spread over six decades, a few exact zeros."""
    generator = torch.Generator().manual_seed(seed)
    spread = 10.0 ** torch.randint(-6, 1, (elements,), generator=generator)
    values = torch.randn(elements, generator=generator) * spread * magnitude
    values[torch.rand(elements, generator=generator) < 0.05] = 0.0
    return values


def through(wire, vector, weight=1.0, residual=None):
    return decode(wire, encode(wire, vector, weight, residual), vector.numel(), weight, vector.dtype)


def allowed_error(wire, vector, weight):
    """How far from `vector` its copy may be, each element."""
    if wire == "exact":
        return torch.zeros_like(vector)
    if wire == "bfloat16":
        return vector.abs() * 2.0**-8 + 1e-38
    if wire == "float16":
        least = weight if 1e-30 <= weight <= 1e30 else 1.0
        return vector.abs() * 2.0**-10 + least * 2.0**-24
    block, step = {"int8": (BLOCK, 1 / 127 + 2e-6), "int4": (64, (1 + 2**-8) / 7), "sparse": (BLOCK, 2.0)}[wire]
    largest = torch.zeros_like(vector)
    for start in range(0, vector.numel(), block):
        largest[start : start + block] = vector[start : start + block].abs().max()
    return largest * 0.5 * step + 2e-36


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(WIRES), st.integers(0, 2**32), SIZES, WEIGHTS, st.sampled_from([1e-6, 1e-3, 1.0, 30.0]))
def test_what_arrives_is_within_the_error_of_the_form(wire, seed, elements, weight, magnitude):
    vector = numbers(seed, elements, magnitude)
    arrived = through(wire, vector, weight)
    assert arrived.dtype == torch.float32
    assert arrived.shape == vector.shape
    assert bool(((arrived - vector).abs() <= allowed_error(wire, vector, weight)).all())


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(COMPRESSED), st.integers(0, 2**32), SIZES, WEIGHTS)
def test_the_residual_grows_by_exactly_what_did_not_arrive(wire, seed, elements, weight):
    vector, before = numbers(seed, elements), numbers(seed + 1, elements, 1e-3)
    residual = before.clone()
    arrived = through(wire, vector, weight, residual)
    assert torch.equal(residual, before + (vector - arrived))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(COMPRESSED), st.integers(0, 2**32), SIZES)
def test_fed_back_errors_do_not_accumulate(wire, seed, elements):
    sent = torch.zeros(elements, dtype=torch.float64)
    arrived = torch.zeros(elements, dtype=torch.float64)
    carry = torch.zeros(elements)
    bound = torch.zeros(elements)
    for round_ in range(20):
        vector = numbers(seed + round_, elements)
        sent += vector
        with_carry = vector + carry
        carry = torch.zeros(elements)
        arrived += through(wire, with_carry, 3.0, carry)
        bound = torch.maximum(bound, allowed_error(wire, with_carry, 3.0))
    # One step's error, and float32's rounding of the 20 additions; twenty steps' would be far more.
    assert bool(((sent - arrived).abs() <= bound + 1e-5).all())


@pytest.mark.parametrize("wire", WIRES)
def test_encoding_leaves_the_sum_alone(wire):
    vector = numbers(0, 600)
    before = vector.clone()
    encode(wire, vector, 7.0, torch.zeros(600))
    assert torch.equal(vector, before)


def test_exact_is_no_copy_and_keeps_no_residual():
    vector, residual = numbers(0, 300), torch.zeros(300)
    (sent,) = encode("exact", vector, 3.0, residual)
    assert sent is vector
    assert decode("exact", [sent], 300, 3.0, torch.float32).data_ptr() == vector.data_ptr()
    assert not residual.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_exact_carries_every_floating_dtype(dtype):
    vector = torch.arange(5).to(dtype)
    assert torch.equal(through("exact", vector), vector)


@pytest.mark.parametrize("wire", COMPRESSED)
def test_what_takes_less_room_says_how_much(wire):
    vector = numbers(0, 4 * BLOCK)
    carried = sum(tensor.numel() * tensor.element_size() for tensor in encode(wire, vector, 1.0, None))
    assert carried == bytes_per_element(wire) * vector.numel()
    assert bytes_per_element("exact", torch.float64) == 8


def test_sums_over_many_samples_fit_a_float16():
    vector = torch.full((10,), 3.0e6)
    assert torch.allclose(through("float16", vector, 1.0e6), vector, rtol=1e-3)
    with pytest.raises(InvalidInput, match="beyond float16"):
        through("float16", vector, 1.0)


@pytest.mark.parametrize(("wire", "levels"), [("int8", 127), ("int4", 7)])
def test_blocks_of_zeros_and_of_next_to_nothing_arrive_as_zeros(wire, levels):
    for filling in (0.0, -0.0, 1e-45, -1e-38 * levels, 8e-39 * levels):
        vector = torch.full((BLOCK + 3,), filling)
        residual = torch.zeros_like(vector)
        assert not through(wire, vector, 1.0, residual).any()
        assert torch.equal(residual, vector)


def test_int8_a_block_has_its_own_scale_and_a_short_last_one_too():
    vector = torch.cat([torch.full((BLOCK,), 100.0), torch.full((BLOCK,), 1e-3), torch.full((7,), -1e-6)])
    values, scales = encode("int8", vector, 1.0, None)
    assert values.tolist() == [127] * (2 * BLOCK) + [-127] * 7
    assert torch.allclose(scales * 127, torch.tensor([100.0, 1e-3, 1e-6]))
    assert torch.allclose(through("int8", vector), vector, rtol=1e-6)


@pytest.mark.parametrize("elements", [64, 65, 66, 131])
def test_int4_a_byte_has_two_numbers_and_the_last_may_have_one(elements):
    vector = torch.arange(elements).remainder(15).sub(7).float() * 0.5  # the levels, where a scale of 0.5 is exact
    vector[63:] = 0.0
    vector[64:] = -3.5
    values, scales = encode("int4", vector, 1.0, None)
    assert (values.dtype, values.numel()) == (torch.uint8, (elements + 1) // 2)
    assert scales.tolist() == [0.5] * scales.numel()
    assert values[0].item() == 1 + (2 << 4)
    assert torch.equal(through("int4", vector), vector)


def test_sparse_keeps_the_largest_of_each_block_and_leaves_the_others_to_the_residual():
    vector = torch.zeros(BLOCK + 20)
    large = torch.arange(3, 3 + 20 * KEPT, 20)
    vector[large] = torch.arange(1.0, KEPT + 1) * torch.tensor([1.0, -1.0]).repeat(KEPT // 2)
    vector[BLOCK:] = 0.01
    residual = torch.zeros_like(vector)
    arrived = through("sparse", vector, 1.0, residual)
    assert torch.allclose(arrived[large], vector[large], atol=0.51 * KEPT / 7)
    assert arrived[:BLOCK].count_nonzero() == (arrived[large] != 0).sum()
    assert arrived[BLOCK:].count_nonzero() == KEPT
    assert torch.equal(residual, vector - arrived)


@pytest.mark.parametrize("places", [[0] * KEPT, [1, 0, *range(2, KEPT)], [255, *range(KEPT - 1)]])
def test_sparse_places_that_do_not_rise_are_refused(places):
    _, values, scales = encode("sparse", torch.ones(BLOCK), 1.0, None)
    with pytest.raises(InvalidInput, match="places"):
        decode("sparse", [torch.tensor(places, dtype=torch.uint8), values, scales], BLOCK, 1.0, torch.float32)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, BLOCK, BLOCK + 4])
def test_numbers_that_are_none_are_refused_by_the_receiver(wire, wrong, at):
    vector = torch.ones(BLOCK + 5)
    vector[at] = wrong
    with pytest.raises(InvalidInput, match=r"NaN|scales"):
        through(wire, vector, 2.0)


@pytest.mark.parametrize("wire", ["int8", "int4"])
@pytest.mark.parametrize("scale", [math.nan, math.inf, -1.0, 3e38])
def test_scales_that_nobody_computes_are_refused(wire, scale):
    values, scales = encode(wire, torch.ones(2 * BLOCK), 1.0, None)
    scales[1] = scale
    with pytest.raises(InvalidInput, match="scales must be finite"):
        decode(wire, [values, scales], 2 * BLOCK, 1.0, torch.float32)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(WIRES), st.integers(0, 600), st.integers(0, 600), st.integers(0, 3), st.sampled_from(WIRES))
def test_tensors_of_another_form_are_refused(wire, elements, sent, drop, sent_as):
    tensors = encode(sent_as, torch.ones(sent), 1.0, None)[: 3 - drop]
    whole = {"int8": 2, "int4": 2, "sparse": 3}.get(wire, 1)
    shared = {"int4": 2, "sparse": BLOCK}.get(wire, 1)  # so many numbers are told apart by nobody
    assume(sent == elements or -(-sent // shared) != -(-elements // shared))
    if sent_as == wire and sent == elements and len(tensors) == whole:
        within = 2.0**-8 if wire in ("int4", "sparse") else 1e-5
        arrived = decode(wire, tensors, elements, 1.0, torch.float32)
        expected = arrived.bool().float() if wire == "sparse" else torch.ones(sent)
        assert torch.allclose(arrived, expected, rtol=within)
    else:
        with pytest.raises(InvalidInput, match=r"tensors in a chunk|for torch"):
            decode(wire, tensors, elements, 1.0, torch.float32)


def test_a_matrix_is_refused():
    with pytest.raises(InvalidInput, match=r"\(2, 3\) for torch.float32 \(6,\)"):
        decode("exact", [torch.ones(2, 3)], 6, 1.0, torch.float32)


@pytest.mark.parametrize("wire", COMPRESSED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_only_float32_is_compressed(wire, dtype):
    with pytest.raises(InvalidInput, match="carries float32 vectors only"):
        encode(wire, torch.ones(3, dtype=dtype), 1.0, None)
    with pytest.raises(InvalidInput, match="carries float32 vectors only"):
        decode(wire, [torch.ones(3, dtype=dtype)], 3, 1.0, dtype)


def test_unknown_wires_and_integers_are_refused():
    with pytest.raises(InvalidInput, match="exact, bfloat16, float16, int8, int4, sparse, not 'int3'"):
        check_wire("int3", torch.float32)
    with pytest.raises(InvalidInput, match="only floating"):
        check_wire("exact", torch.int64)


def test_a_sum_that_overflows_is_finite_all_the_same():
    assert is_finite(torch.full((10,), 3e38))
    assert not is_finite(torch.tensor([1.0, math.inf]))
    assert is_finite(torch.empty(0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("members", "weight"), [(2, 1.0), (3, 1.0), (2, 0.0), (8, 640.0)])
def test_parts_that_are_let_through_never_overflow_together(dtype, members, weight):
    most = most_of_part(dtype, members) / max(1.0, weight)
    for sign in (1.0, -1.0):
        vector = torch.tensor([0.0, 0.99 * sign * most], dtype=dtype)
        assert why_not_summed(vector, weight, members) is None
        assert torch.isfinite(sum(weight * vector for _ in range(members))).all()
        reason = why_not_summed(torch.tensor([1.02 * sign * most, 1.0], dtype=dtype), weight, members)
        assert f"{members} parts with weight {weight:g}" in reason


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_part_that_is_not_finite_says_so(wrong):
    assert "NaN or infinite" in why_not_summed(torch.tensor([1.0, wrong]), 1.0, 2)
    assert why_not_summed(torch.empty(0), 1.0, 2) is None
