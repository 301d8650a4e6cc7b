"""FLOPs and saved bytes, measured on tensors without data, are those of a real forward."""

import pytest
import torch
from torch import Tensor, nn

from ravnest.splitting import capture
from tests.unit.ravnest.splitting.models import (
    CASES,
    captured_case,
    seeded,
)


def test_flops_and_saved_bytes_of_a_linear_layer() -> None:
    model = capture(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), (torch.zeros(5, 4),))
    first, second = model.units
    assert (first.name, second.name) == ("0", "2")
    assert first.flops == 2 * 4 * 6 + 6
    assert second.flops == 2 * 6 * 2
    assert first.saved_bytes == 4 * 4 + 6 * 4  # its input, and what relu returned
    assert second.saved_bytes == 0  # the same memory as relu's result, counted once
    assert first.boundary_bytes == first.boundary_gradient_bytes == 6 * 4


def test_what_operators_move_is_what_they_read_and_write() -> None:
    """Weights count once in a micro-batch of 5 samples, views nothing, and an expanded tensor as what it holds."""
    model = capture(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), (torch.zeros(5, 4),))
    first, second = model.units
    weights = 4 * (4 * 6 + 6)
    assert first.moved_bytes == 4 * (4 + 6) + weights / 5 + 4 * (6 + 6)
    assert second.moved_bytes == pytest.approx(4 * (6 + 2) + 4 * (6 * 2 + 2) / 5, abs=1)

    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(2, 2))

        def forward(self, x: Tensor) -> Tensor:
            return x.view(-1, 2, 2).transpose(1, 2) + x[:, :1, None].expand(-1, 2, 2) + self.shift

    (only,) = capture(Views(), (torch.zeros(5, 4),)).units
    assert only.moved_bytes == pytest.approx(4 * (4 + 4 + 4) + 4 * (4 + 4) + 4 * 4 / 5, abs=1)


def test_saved_bytes_are_those_of_a_real_forward() -> None:
    for name in ("gpt", "cnn", "masked"):
        case = CASES[name]
        kept: dict[int, int] = {}
        held = []
        real = seeded(case)
        ours = {p.untyped_storage().data_ptr() for p in (*real.parameters(), *real.buffers())}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in ours:  # noqa: B023
                kept[storage.data_ptr()] = storage.nbytes()  # noqa: B023
            held.append(tensor)  # noqa: B023
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            real(*case.args, **case.kwargs)
        counted = sum(unit.saved_bytes for unit in captured_case(name).units) * case.args[0].shape[0]
        assert counted == pytest.approx(sum(kept.values()), rel=0.02)
