"""Constructors do many things; what they make is what the recording makes, or it is refused by name."""

import copy
import io
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ravnest.errors import InvalidInput
from ravnest.splitting import initial_weights, record


def both(make: Callable[[], nn.Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What the constructor makes, and what its recording makes."""
    expected, made = initial_weights(make, 0), record(make, 0).make(0)
    assert made.keys() == expected.keys()
    for name, tensor in expected.items():
        found = made[name]
        assert (found.shape, found.dtype, found.stride()) == (tensor.shape, tensor.dtype, tensor.stride()), name
    return expected, made


def module(build: Callable[[nn.Module], None]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        made = nn.Module()
        build(made)
        return made

    return make


def test_values_that_are_read_while_it_is_built_are_the_true_ones() -> None:
    def build(model: nn.Module) -> None:
        model.scaled = nn.Linear(3, 3)
        with torch.no_grad():
            model.scaled.weight /= model.scaled.weight.norm().item()
        rates = [rate.item() for rate in torch.linspace(0, 0.5, 3)]
        model.register_buffer("rates", torch.tensor(rates))
        model.register_buffer("places", torch.nonzero(torch.tensor([1, 0, 2])))
        model.register_buffer("flat", torch.tensor(torch.arange(6).view(2, 3).tolist()).flatten())

    expected, made = both(module(build))
    assert made["scaled.weight"].norm().item() == pytest.approx(1.0)
    assert all(torch.equal(made[name], expected[name]) for name in ("rates", "places", "flat"))


def test_an_initialiser_that_reads_other_parameters_is_repeated_with_what_it_reads() -> None:
    def build(model: nn.Module) -> None:
        model.old = nn.utils.weight_norm(nn.Linear(4, 5))
        model.new = nn.utils.parametrizations.weight_norm(nn.Linear(4, 5))
        model.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 5))
        model.orthogonal = nn.Linear(4, 4)
        nn.init.orthogonal_(model.orthogonal.weight)
        model.taught = nn.Linear(4, 4)
        model.taught.load_state_dict(model.orthogonal.state_dict())
        model.copied = copy.deepcopy(model.orthogonal)

    _, made = both(module(build))
    alone = record(module(build), 0)
    assert torch.equal(made["old.weight_g"].flatten(), made["old.weight_v"].norm(dim=1))
    assert torch.allclose(made["orthogonal.weight"] @ made["orthogonal.weight"].T, torch.eye(4), atol=1e-6)
    for name in ("taught.weight", "copied.weight"):
        assert torch.equal(alone.only([name]).make(0)[name], made["orthogonal.weight"])


def test_other_precisions_views_and_tied_weights() -> None:
    def build(model: nn.Module) -> None:
        model.short, model.long_ = nn.Linear(3, 4).half(), nn.Linear(3, 4).double()
        model.rows = nn.Parameter(model.short.weight.detach().t())  # shares memory
        model.words = nn.Embedding(5, 3, padding_idx=0)
        model.head = nn.Linear(3, 5, bias=False)
        model.head.weight = model.words.weight
        model.assigned = nn.Linear(3, 3)
        model.assigned.weight.data = torch.ones(3, 3) * 2

    expected, made = both(module(build))
    assert torch.equal(made["rows"], made["short.weight"].t())
    assert not made["words.weight"][0].any()
    assert torch.equal(made["assigned.weight"], expected["assigned.weight"])


def test_generators_that_a_constructor_seeds_give_it_their_own_numbers() -> None:
    def build(model: nn.Module) -> None:
        own = torch.Generator().manual_seed(3)
        model.first, model.second = torch.rand(4, generator=own), torch.randn(3, generator=own)
        own.manual_seed(3)
        model.again = torch.rand(4, generator=own)
        model.free = nn.Linear(3, 3)
        torch.manual_seed(1)
        model.a, model.b = nn.Linear(3, 3), nn.Linear(3, 3)
        torch.manual_seed(1)
        model.c = nn.Linear(3, 3)

    expected, made = both(module(build))
    for name in ("first", "second", "again", "a.weight", "b.bias", "c.weight"):
        assert torch.equal(made[name], expected[name]), name
        assert torch.equal(record(module(build), 0).only([name]).make(9)[name], expected[name]), name
    assert not torch.equal(made["free.weight"], record(module(build), 0).make(9)["free.weight"])


def test_small_tables_from_numpy_are_brought_along() -> None:
    def build(model: nn.Module) -> None:
        model.table = nn.Parameter(torch.from_numpy(np.arange(5.0)))
        with torch.no_grad():
            model.table.mul_(2)

    expected, made = both(module(build))
    assert torch.equal(made["table"], expected["table"])
    assert made["table"].tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]


def _from_file() -> nn.Module:
    held = io.BytesIO(_STORED)
    model = nn.Linear(3, 3)
    model.load_state_dict(torch.load(held))
    return model


def _guarded() -> nn.Module:
    try:
        return _from_file()
    except InvalidInput:
        return nn.Linear(3, 3)


def _large() -> nn.Module:
    model = nn.Module()
    model.table = nn.Parameter(torch.from_numpy(np.zeros(3 << 20)))
    return model


_held = io.BytesIO()
torch.save(nn.Linear(3, 3).state_dict(), _held)
_STORED = _held.getvalue()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_from_file, "it reads from a file"),
        (_guarded, "it reads from a file"),
        (_large, r"brings more than .* of numbers along"),
        (lambda: nn.Linear(3, 3, device="meta"), "on the device meta"),
    ],
)
def test_what_no_operator_makes_is_refused(make: Callable[[], nn.Module], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        record(make, 0)


def test_recording_leaves_torch_as_it_was() -> None:
    torch.manual_seed(5)
    expected, swap = torch.rand(1), torch.utils.swap_tensors
    torch.manual_seed(5)
    record(lambda: nn.Linear(3, 3), 0)
    assert torch.equal(torch.rand(1), expected)
    assert torch.utils.swap_tensors is swap
    assert type(nn.Linear(2, 2).weight.data) is Tensor
