import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from ravnest.errors import ExpertsUnavailable, InvalidInput
from ravnest.experts.calls import Call
from ravnest.experts.config import build_expert
from ravnest.experts.mixture import RemoteMixtureOfExperts
from tests.support.experts import WIDTH, LocalClient, small_grid


def layer(fails: Callable[[Call], str | None] = lambda _: None, **options: int) -> RemoteMixtureOfExperts:
    client = LocalClient(small_grid(), fails)
    return RemoteMixtureOfExperts(client, **{"k": 4, **options})  # type: ignore[arg-type]


def plain(mixture: RemoteMixtureOfExperts, samples: torch.Tensor, experts: list[tuple[int, int]]) -> torch.Tensor:
    """The same layer with all its experts at hand."""
    config = mixture.config
    modules = nn.ModuleList(build_expert(config, one, ()) for one in experts)
    numbers = mixture.gate(samples)
    weights = mixture.gate.scores(numbers, torch.tensor([experts] * len(samples))).softmax(-1)
    return sum(weights[:, place, None] * module(samples) for place, module in enumerate(modules))


ALL = [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_outputs_and_gradients_are_those_of_a_layer_whose_experts_are_here() -> None:
    mixture, samples = layer(), torch.randn(6, WIDTH)
    mine, theirs = samples.clone().requires_grad_(), samples.clone().requires_grad_()
    expected = plain(mixture, theirs, ALL)
    output = mixture(mine)
    torch.testing.assert_close(output, expected)
    weight = torch.randn(6, WIDTH)
    (expected * weight).sum().backward()
    of_gate = mixture.gate.linear.weight.grad
    mixture.zero_grad()
    (output * weight).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)
    torch.testing.assert_close(mixture.gate.linear.weight.grad, of_gate)
    assert all(one.updates == 1 for one in mixture.client.experts.values())  # type: ignore[attr-defined]
    assert (mixture.figures.forwards, mixture.figures.backwards) == (4, 4)


def test_who_does_not_answer_is_dropped_out_and_the_others_share_its_weight() -> None:
    mixture = layer(lambda call: "late" if call.expert == (0, 1) else None)
    samples = torch.randn(6, WIDTH)
    torch.testing.assert_close(mixture(samples), plain(mixture, samples, [(0, 0), (1, 0), (1, 1)]))
    assert mixture.figures.dropped == {"forward: late": 1}


def test_a_sample_with_too_few_answers_looks_for_other_experts() -> None:
    first: list[object] = []

    def fails(call: Call) -> str | None:
        if not first:
            first.append(call.expert)
        return "late" if call.expert == first[0] else None

    mixture = layer(fails, k=1)
    samples = torch.randn(1, WIDTH)
    assert mixture(samples).shape == (1, WIDTH)
    assert mixture.figures.searched_again == 1
    assert len({call.expert for call in mixture.client.calls}) == 2  # type: ignore[attr-defined]


def test_when_nobody_answers_forward_raises() -> None:
    with pytest.raises(ExpertsUnavailable, match="3 of 3 samples have fewer than k_min = 1"):
        layer(lambda _: "lost", k=1)(torch.randn(3, WIDTH))


def test_experts_that_fail_in_the_backward_pass_no_gradient_on() -> None:
    def fails(call: Call) -> str | None:
        return "stale" if call.updates is not None and call.expert != (1, 1) else None

    mixture = layer(fails)
    samples = torch.randn(5, WIDTH, requires_grad=True)
    mixture(samples).sum().backward()
    assert mixture.figures.dropped == {"backward: stale": 3}
    assert sum(one.updates for one in mixture.client.experts.values()) == 1  # type: ignore[attr-defined]
    assert float(samples.grad.abs().sum()) > 0.0


def test_samples_below_the_backwards_minimum_pass_no_gradient_on_and_are_counted() -> None:
    def fails(call: Call) -> str | None:
        return "late" if call.updates is not None and call.expert == lost else None

    mixture = layer(fails, k=1)
    with torch.no_grad():
        mixture.gate.linear.weight.zero_()
        mixture.gate.linear.bias.zero_()
        mixture.gate.linear.weight[:2, 0] = torch.tensor([5.0, -5.0])
    samples = torch.tensor([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]], requires_grad=True)
    lost = (0, 1)  # of two with equal scores the later one is chosen
    output = mixture(samples)
    assert {call.expert for call in mixture.client.calls} == {(0, 1), (1, 1)}  # type: ignore[attr-defined]
    output[:, 1].sum().backward()
    assert mixture.figures.samples_without_gradient == 1


def test_when_nobody_answers_the_backward_it_raises() -> None:
    mixture = layer(lambda call: "late" if call.updates is not None else None)
    with pytest.raises(ExpertsUnavailable, match="backward_k_min = 1"):
        mixture(torch.randn(2, WIDTH)).sum().backward()
    patient = layer(lambda call: "late" if call.updates is not None else None, backward_k_min=0)
    patient(torch.randn(2, WIDTH)).sum().backward()
    assert patient.figures.dropped["backward: late"] > 0


def test_a_plain_loop_that_skips_what_raises_learns_from_the_other_batches_alone() -> None:
    """As docs/experts.md writes it: `zero_grad` also drops what a backward that was cut short has left."""
    batches, fails = torch.randn(3, 6, WIDTH), [False]

    def losses(mixture: RemoteMixtureOfExperts, model: nn.Module, samples: torch.Tensor) -> torch.Tensor:
        return model(samples).pow(2).sum() + mixture(model(samples)).pow(2).sum()

    def trained(which: list[int], failing: int | None) -> tuple[nn.Module, int]:
        torch.manual_seed(3)
        mixture = layer(lambda call: "late" if fails[0] and call.updates is not None else None)
        model, skipped = nn.Linear(WIDTH, WIDTH), 0
        optimizer = torch.optim.SGD([*model.parameters(), *mixture.parameters()], lr=0.01)
        for number in which:
            fails[0] = number == failing
            optimizer.zero_grad()
            try:
                losses(mixture, model, batches[number]).backward()
            except ExpertsUnavailable:
                skipped += 1
                continue
            optimizer.step()
        return nn.ModuleList([model, mixture.gate]), skipped

    (one, skipped), (other, none) = trained([0, 1, 2], 1), trained([0, 2], None)
    assert (skipped, none) == (1, 0)
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_large_batches_are_divided_and_evaluation_trains_nobody() -> None:
    mixture = layer().eval()
    with torch.no_grad():
        mixture(torch.randn(20, WIDTH))
    calls = mixture.client.calls  # type: ignore[attr-defined]
    assert max(call.tensors[0].shape[0] for call in calls) == 8
    assert not any(call.training for call in calls)
    assert mixture.balance is None


def test_experts_learn_when_nothing_below_the_layer_does() -> None:
    mixture = layer()
    mixture.gate.requires_grad_(False)
    mixture.gate.linear.bias.requires_grad_()
    mixture(torch.randn(2, WIDTH)).sum().backward()
    assert any(one.updates for one in mixture.client.experts.values())  # type: ignore[attr-defined]


def test_copies_share_the_client_and_the_figures() -> None:
    mixture = layer()
    mixture(torch.randn(2, WIDTH)).sum().backward()
    twin = copy.deepcopy(mixture)
    assert twin.client is mixture.client
    assert twin.figures is mixture.figures
    assert twin.gate.linear.weight is not mixture.gate.linear.weight


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"k": 0}, "k_min"),
        ({"k": 5}, "k_min"),
        ({"k_min": 5}, "k_min"),
        ({"backward_k_min": 5}, "backward_k_min"),
        ({"width": 0}, "width"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, int], key: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        layer(**options)
    assert caught.value.key == key


@pytest.mark.parametrize("autocast", [False, True])
def test_samples_of_bfloat16_are_computed_in_float32_and_have_gradients_of_their_own_kind(autocast: bool) -> None:
    mixture, samples = layer(), torch.randn(6, WIDTH).bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = mixture(samples)
    torch.testing.assert_close(output, mixture(samples.float()), rtol=0.1, atol=0.1)
    output.sum().backward()
    assert (output.dtype, samples.grad.dtype) == (torch.float32, torch.bfloat16)
    assert float(samples.grad.abs().sum()) > 0.0
    assert all(one.updates for one in mixture.client.experts.values())  # type: ignore[attr-defined]


def test_other_shapes_are_refused() -> None:
    for wrong in (torch.zeros(2, WIDTH + 1), torch.zeros(0, WIDTH), torch.zeros(2, WIDTH, dtype=torch.float64)):
        with pytest.raises(InvalidInput, match="expected float32"):
            layer()(wrong)
