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
