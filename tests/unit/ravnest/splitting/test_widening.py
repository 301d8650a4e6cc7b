"""Programs and modules in float32 instead of types of 16 bits."""

import torch
from torch import Tensor, nn

from ravnest.splitting import capture
from ravnest.splitting.stage_module import StageModule
from ravnest.splitting.widening import computing_widely, is_narrow_anywhere, narrow_constants, widened, widened_model


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.short = nn.Linear(4, 4, dtype=torch.bfloat16)
        self.long = nn.Linear(4, 4, dtype=torch.float64)
        self.short.weight_again = self.short.weight  # tied
        self.register_buffer("shift", torch.full((4,), 0.5, dtype=torch.float16))
        self.plain = torch.full((4,), 0.25, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.short(x.to(torch.bfloat16)) + self.shift + self.plain
        return self.long(y.double()).to(torch.bfloat16)


def test_a_widened_program_computes_what_the_widened_model_does() -> None:
    model, x = Mixed(), torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    captured = capture(model, (x,))
    program = captured.span(0, len(captured.units))
    assert is_narrow_anywhere(program)
    assert narrow_constants(program) == []
    wide = widened(program)
    assert not is_narrow_anywhere(wide)
    held: list[str] = []

    def hold(name: str, tensor: Tensor) -> Tensor:
        held.append(name)
        return tensor

    twin = widened_model(model, hold)
    assert held == ["short.weight in float32", "short.bias in float32"]
    assert twin.short.weight is twin.short.weight_again
    assert twin.long.weight is model.long.weight
    assert {twin.shift.dtype, twin.plain.dtype, twin.short.weight.dtype} == {torch.float32}
    assert model.short.weight.dtype == torch.bfloat16
    with computing_widely():
        expected = twin(x)
    assert expected.dtype == torch.float32
    values = {name: tensor.detach() for name, tensor in (*twin.named_parameters(), *twin.named_buffers())}
    (found,) = StageModule(wide, values | {"plain": twin.plain})(x)
    assert torch.equal(found, expected)


def test_what_is_long_already_stays_as_it_is() -> None:
    model, x = nn.Linear(4, 4), torch.ones(3, 4)
    program = capture(model, (x,)).span(0, 1)
    assert not is_narrow_anywhere(program)
    assert widened(program) == program
