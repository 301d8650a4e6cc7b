import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cluster_planner import Unit
from ravnest.errors import RunFailed
from ravnest.planning.workload import workload
from ravnest.splitting import ValueSpec
from ravnest.stage.boundary_tensors import Crossing, StageCrossings
from ravnest.training.precision import ring_wire
from tests.support.local import setups_of, tiny_job

HIDDEN = ValueSpec("hidden", torch.float32, (None, 3, 6), needs_gradient=True)
MASK = ValueSpec("mask", torch.bool, (None, 3), needs_gradient=False)
ADDED = ValueSpec("added", torch.float32, (None, 3), needs_gradient=False)
SHORT = ("bfloat16", "float16", "int8", "int4")
RELATIVE = {"bfloat16": 2**-8, "float16": 2**-11, "int8": 0.5 / 127, "int4": 0.5 / 7 * (1 + 2**-8)}
"""The largest error, of a number for the first two down to 2⁻¹⁴ of the largest, of the block's largest else."""


def crossing(wire, *specs):
    return Crossing(specs or (HIDDEN,), wire, "c0.s1", "activations")


def through(wire, tensor, spec=HIDDEN):
    cut = crossing(wire, spec)
    (found,) = cut.unpack(cut.pack([tensor]))
    return found


@pytest.mark.parametrize("wire", ["exact", *SHORT])
def test_a_message_brings_what_it_is_said_to_bring(wire):
    cut = crossing(wire, MASK, HIDDEN, ADDED)
    sent = cut.pack([torch.ones(4, 3, dtype=torch.bool), torch.randn(4, 3, 6), torch.full((4, 3), -3e38)])
    assert len(sent) == len(cut.travelling)
    for tensor, spec in zip(sent, cut.travelling, strict=True):
        assert tensor.dtype == spec.dtype
        assert tensor.is_contiguous()
        assert all(wanted in (None, size) for size, wanted in zip(tensor.shape, spec.shape, strict=True))


@pytest.mark.parametrize("wire", SHORT)
def test_what_needs_no_gradient_travels_exactly(wire):
    cut = crossing(wire, MASK, ADDED)
    mask, added = torch.tensor([[True, False, True]]), torch.tensor([[0.1, torch.finfo(torch.float32).min, -0.0]])
    sent = cut.pack([mask, added])
    assert sent[0] is mask
    assert sent[1] is added
    assert cut.unpack(sent)[1] is added


@given(
    wire=st.sampled_from(SHORT),
    exponent=st.integers(-80, 90),
    batch=st.integers(1, 40),
    seed=st.integers(0, 1000),
)
def test_a_short_form_keeps_numbers_of_any_magnitude(wire, exponent, batch, seed):
    """Gradients as small as 1e-24 do not vanish, nor do large ones overflow."""
    draw = torch.Generator().manual_seed(seed)
    tensor = torch.randn(batch, 3, 6, generator=draw) * 2.0**exponent
    error = (through(wire, tensor) - tensor).abs()
    largest = tensor.abs().max()
    allowed = RELATIVE[wire] * (largest if wire.startswith("int") else tensor.abs()) + largest * 2**-24
    assert bool((error <= allowed * (1 + 1e-6)).all())


@pytest.mark.parametrize("wire", SHORT)
def test_zeros_and_nothing_at_all_travel(wire):
    assert torch.equal(through(wire, torch.zeros(2, 3, 6)), torch.zeros(2, 3, 6))
    scalar = ValueSpec("one", torch.float32, (), needs_gradient=True)
    assert through(wire, torch.tensor(-0.75), scalar).item() == pytest.approx(-0.75, rel=0.01)


@pytest.mark.parametrize("wire", SHORT)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused_with_the_stage_s_name(wire, bad):
    tensor = torch.ones(2, 3, 6)
    tensor[1, 2, 3] = bad
    with pytest.raises(RunFailed, match=r"^c0\.s1 sent activations whose 'hidden' cannot be read: .*diverged\?"):
        through(wire, tensor)


def test_scales_for_another_number_of_blocks_are_refused():
    cut = crossing("int8")
    values, scales = cut.pack([torch.randn(100, 3, 6)])
    with pytest.raises(RunFailed, match=r"^c0\.s1 sent activations whose 'hidden' cannot be read: scales"):
        cut.unpack([values, scales[:-1]])


@pytest.mark.parametrize("shape", [(), (None,), (None, 3, None)])
def test_rows_of_a_changing_length_travel_as_int8_where_int4_is_asked(shape):
    changing = ValueSpec("changing", torch.float32, shape, needs_gradient=True)
    assert crossing("int4", changing).travelling == crossing("int8", changing).travelling
    assert crossing("int4", HIDDEN).travelling[0].shape == (None, 3, 3)


def test_rows_of_an_odd_length_travel_as_int4_too():
    odd, tensor = ValueSpec("odd", torch.float32, (None, 3, 7), needs_gradient=True), torch.randn(5, 3, 7)
    assert crossing("int4", odd).travelling[0].shape == (None, 3, 4)
    found = through("int4", tensor, odd)
    assert found.shape == tensor.shape
    assert found.is_contiguous()
    assert float((found - tensor).abs().max()) <= RELATIVE["int4"] * float(tensor.abs().max())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wire", ["exact", *SHORT])
def test_numbers_of_16_bits_travel_in_forms_that_are_shorter(wire, dtype):
    spec, tensor = ValueSpec("half", dtype, (None, 3, 6), needs_gradient=True), torch.randn(4, 3, 6).to(dtype)
    found = through(wire, tensor, spec)
    assert found.dtype == dtype
    if wire not in ("int8", "int4"):
        assert crossing(wire, spec).travelling == (spec,)
        assert torch.equal(found, tensor)
    else:
        assert crossing(wire, spec).travelling == crossing(wire, HIDDEN_NAMED_HALF).travelling
        error = (found.float() - tensor.float()).abs().max()
        assert float(error) <= (RELATIVE[wire] + torch.finfo(dtype).eps) * float(tensor.abs().max())


HIDDEN_NAMED_HALF = replace(HIDDEN, name="half")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wire", ["float32", "bfloat16", "float16", "int8", "int4"])
def test_a_message_has_the_bytes_that_the_plan_counts(wire, dtype):
    batch, shape = 64, (16, 21)
    spec = ValueSpec("hidden", dtype, (None, *shape), needs_gradient=True)
    size = math.prod(shape) * dtype.itemsize
    narrow = size if dtype == torch.bfloat16 else 0
    sizes = {"boundary_bytes": size, "boundary_gradient_bytes": size, "boundary_narrow_bytes": narrow}
    unit = Unit(name="a", flops=1.0, parameter_bytes=0, saved_bytes=0, **sizes)
    work = workload(tiny_job(wire={"activations": wire, "gradients": wire}, micro_batch=batch))
    sent = sum(each.nbytes for each in crossing(ring_wire(wire), spec).pack([torch.randn(batch, *shape, dtype=dtype)]))
    assert sent == pytest.approx(work.activation_bytes(unit), rel=0.06)  # a row of 21 takes 11 bytes as int4
    assert sent == pytest.approx(work.gradient_bytes(unit), rel=0.06)


def test_other_floats_than_float32_travel_as_they_are():
    double = ValueSpec("double", torch.float64, (None,), needs_gradient=True)
    cut = crossing("int8", double)
    assert cut.travelling == (double,)


def test_a_stage_s_cuts_carry_its_program_and_the_ends_none():
    job = tiny_job(wire={"activations": "bfloat16", "gradients": "int8"})
    setups, _ = setups_of(job, parts=(3,))
    first, middle, last = (StageCrossings(setup) for setup in setups.values())
    assert first.activations_in.travelling == first.gradients_out.travelling == ()
    assert last.activations_out.travelling == last.gradients_in.travelling == ()
    assert first.activations_out.travelling == middle.activations_in.travelling
    assert last.gradients_out.travelling == middle.gradients_in.travelling
    assert {spec.dtype for spec in middle.activations_in.travelling} == {torch.bfloat16}
    crossing = len(setups["c0.s1"].program.inputs)
    assert [spec.dtype for spec in middle.gradients_out.travelling] == [torch.int8, torch.float32] * crossing
    assert middle.held_out.travelling == setups["c0.s1"].program.inputs
