"""Generated source."""

import math

import torch

from ravnest.splitting.program import (
    Autocast,
    Grad,
    Operation,
    SpanCode,
    StageDevice,
    Symbol,
    SymbolSource,
    Value,
    ValueSpec,
    Weight,
)
from ravnest.splitting.stage_module import compile_span, generate

CPU = torch.device("cpu")


def spec(name: str, *shape: int | None, order: tuple[int, ...] = (), is_int: bool = False) -> ValueSpec:
    dtype = torch.int64 if is_int else torch.float32
    return ValueSpec(name, dtype, shape, needs_gradient=False, is_int=is_int, order=order)


def test_values_are_freed_after_their_last_use_and_contexts_are_entered() -> None:
    code = SpanCode(
        (
            Operation("y", "aten.mul.Tensor", (Value("x"), Weight("w"))),
            Operation("z", "aten.add.Tensor", (Value("y"), 1.5), (("alpha", 2),), (Grad(False),)),
        ),
        (Value("x"),),
        (Value("z"),),
        (),
    )
    source = generate(code, [spec("x", 2)], [spec("z", 2)], ["v", "w"], outputs_travel=True)
    assert source == (
        "def stage(_weights, _device, _inputs):\n"
        "    (v_x, ) = _inputs\n"
        "    del _inputs\n"
        "    v_y = f_aten_mul_Tensor(v_x, _weights[1]); v_x = None\n"
        "    with torch.set_grad_enabled(False):\n"
        "        v_z = f_aten_add_Tensor(v_y, 1.5, alpha=2); v_y = None\n"
        "    return (v_z.contiguous(), )\n"
    )
    run = compile_span(source, code, "test")
    weights = [torch.zeros(()), torch.tensor(2.0, requires_grad=True)]
    (result,) = run(weights, CPU, (torch.tensor([1.0, 2.0]),))
    assert result.tolist() == [5.0, 7.0]
    assert not result.requires_grad


def test_layouts_integers_and_sizes_cross_the_boundary() -> None:
    code = SpanCode(
        (
            Operation("n", "_operator:mul", (Symbol("x.0"), Value("k"))),
            Operation("y", "aten.full.default", ((Value("n"),), math.inf), (("device", StageDevice()),)),
        ),
        (Value("x"), Value("k")),
        (Value("x"), Value("n"), Value("y")),
        (SymbolSource("x.0", 0, 0),),
    )
    inputs = [spec("x", 3, None, order=(1, 0)), spec("k", is_int=True)]
    outputs = [spec("x", 3, None, order=(1, 0)), spec("n", is_int=True), spec("y", None)]
    run = compile_span(generate(code, inputs, outputs, [], outputs_travel=True), code, "test")
    x = torch.arange(6.0).view(3, 2)
    passed, count, infinite = run([], CPU, (x, torch.tensor(5)))
    assert torch.equal(passed, x)
    assert passed.is_contiguous()
    assert (int(count), count.dtype, count.shape) == (10, torch.int64, ())
    assert infinite.tolist() == [math.inf] * 10
    elsewhere = torch.device("meta")
    assert {out.device for out in run([], elsewhere, (x.to(elsewhere), torch.tensor(5)))} == {elsewhere}


def test_autocast_takes_the_kind_of_the_stages_device() -> None:
    code = SpanCode(
        (Operation("y", "aten.mm.default", (Value("x"), Value("x")), (), (Autocast(torch.bfloat16, True, True),)),),
        (Value("x"),),
        (Value("y"),),
        (),
    )
    run = compile_span(generate(code, [spec("x", 2, 2)], [spec("y", 2, 2)], [], outputs_travel=False), code, "test")
    assert run([], CPU, (torch.ones(2, 2),))[0].dtype == torch.bfloat16
