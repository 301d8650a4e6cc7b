from collections import deque
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from ravnest.experts import RemoteMixtureOfExperts
from ravnest.experts.askers import Answers, answers_again, answers_kept, close_grids, open_grid, standing_in
from ravnest.experts.batch_calls import Asker
from ravnest.splitting import CapturedModel, StageModule, capture, verify
from tests.support.experts import WIDTH, LocalClient, small_grid


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.below, self.above = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 3)
        self.mixture = RemoteMixtureOfExperts(small_grid(), k=2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mixed, balance = self.mixture.with_balance(self.below(x))
        return self.above(mixed), balance


@pytest.fixture(scope="module")
def network() -> Network:
    torch.manual_seed(0)
    return Network()


@pytest.fixture(scope="module")
def captured(network: Network) -> CapturedModel:
    return capture(network, (torch.randn(5, 6),))


def test_a_captured_layer_is_one_operation_whose_module_a_stage_imports(captured: CapturedModel) -> None:
    program = captured.span(0, len(captured.units))
    assert program.imports == ("ravnest.experts.operators",)
    asking = [one for one in program.train.operations if one.target == "ravnest.ask_experts.default"]
    assert len(asking) == 1
    assert captured.batch_is_dynamic
    assert len(captured.units) > 1


def test_stages_compute_what_the_model_does_with_stand_ins(network: Network, captured: CapturedModel) -> None:
    with standing_in():
        found = verify(captured, network, (torch.randn(5, 6),))
    assert found.largest_difference == 0.0
    assert found.short_batches


@pytest.mark.parametrize("bfloat16", [False, True])
def test_stages_ask_and_teach_the_experts_of_their_process(
    network: Network, captured: CapturedModel, bfloat16: bool
) -> None:
    weights = dict(network.state_dict())
    first, last = (StageModule(captured.span(*span), weights) for span in ((0, 1), (1, len(captured.units))))
    client = LocalClient(small_grid())
    open_grid("test", Asker(client))
    try:
        samples = torch.randn(4, 6)
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):  # as a job's `precision` computes
            sent = [one.detach().requires_grad_(one.is_floating_point()) for one in first(samples)]
            output, balance = last(*sent)
            expected = network(samples)
        torch.testing.assert_close(output, expected[0])
        assert not any(one.updates for one in client.experts.values())
        (output.sum() + balance).backward()
    finally:
        close_grids()
    assert sum(one.updates for one in client.experts.values()) >= 2
    assert sent[0].grad is not None
    assert float(sent[0].grad.abs().sum()) > 0.0


def test_a_forward_that_is_run_again_gets_the_same_answers_and_asks_nobody(network: Network) -> None:
    client = LocalClient(small_grid())
    open_grid("test", Asker(client))
    answers: Answers = deque()
    samples = torch.randn(4, 6)
    try:
        with answers_kept(answers):
            first, _ = network(samples)
        for expert in client.experts.values():  # by the time of the backward others have taught them
            expert.backward(torch.randn(2, WIDTH), torch.randn(2, WIDTH), 1)
        asked = len(client.calls)
        with answers_again(answers):
            second, balance = network(samples)
        assert len(client.calls) == asked
        assert torch.equal(first, second)
        assert not answers
        assert not torch.equal(network(samples)[0], first)
        (second.sum() + balance).backward()
    finally:
        close_grids()
    taught = [one for one in client.calls if one.updates is not None]
    assert {one.updates for one in taught} == {0}  # staleness counts from the first forward
    with answers_again(answers), pytest.raises(IndexError):
        network(samples)


def test_a_backward_in_another_thread_teaches_whom_its_forward_asked(network: Network) -> None:
    samples = torch.randn(4, 6, requires_grad=True)
    with standing_in():
        output, balance = network(samples)
    with ThreadPoolExecutor(1) as pool:  # as autograd's thread of another device
        pool.submit((output.sum() + balance).backward).result(20)
    assert samples.grad is not None
