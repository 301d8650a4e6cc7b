import pytest
import torch
from torch import nn

from ravnest.errors import InvalidInput
from ravnest.experts import RemoteMixtureOfExperts
from ravnest.experts.askers import asker_of, close_grids, config_from, open_grid, opened_grids, standing_in, text_of
from ravnest.experts.batch_calls import Asker
from tests.support.experts import WIDTH, LocalClient, small_grid


def test_a_layer_of_a_job_asks_by_the_caller_that_this_process_opened_for_its_grid() -> None:
    config = small_grid()
    layer = RemoteMixtureOfExperts(config, k=2)
    samples = torch.randn(3, WIDTH)
    with pytest.raises(InvalidInput, match="nobody in this process asks the experts of 'test'"):
        layer(samples)
    client = LocalClient(config)
    open_grid("test", Asker(client))
    try:
        with pytest.raises(InvalidInput, match="asks the experts of 'test' already"):
            open_grid("test", Asker(client))
        assert layer(samples).shape == (3, WIDTH)
        assert layer.figures.forwards == len(client.calls) > 0
        assert list(opened_grids()) == ["test"]
    finally:
        assert list(close_grids()) == ["test"]
    assert not opened_grids()


def test_stand_ins_have_the_grids_shapes() -> None:
    for output_shape in (None, [2, 3]):
        layer = RemoteMixtureOfExperts(small_grid(output_shape=output_shape), k=2)
        with standing_in():
            output, balance = layer.with_balance(torch.randn(3, WIDTH))
        assert tuple(output.shape) == (3, *(output_shape or [WIDTH]))
        assert float(balance.detach()) >= 0.0


def test_a_stand_ins_gradient_is_that_of_what_it_computes() -> None:
    for output_shape in (None, [2, 3]):
        layer = RemoteMixtureOfExperts(small_grid(output_shape=output_shape), k=4)
        nn.init.zeros_(layer.gate.linear.weight)  # so that the weights of the mean do not depend on the samples
        samples, step = torch.randn(3, WIDTH, requires_grad=True), 1e-2 * torch.randn(3, WIDTH)
        with standing_in():
            output = layer(samples)
            output.sum().backward()
            moved = layer((samples + step).detach())
        assert samples.grad is not None
        torch.testing.assert_close((moved - output).sum(), (samples.grad * step).sum(), rtol=1e-3, atol=1e-5)


def test_a_layer_with_a_client_of_its_own_has_no_stand_in() -> None:
    layer = RemoteMixtureOfExperts(LocalClient(small_grid()), k=2)
    with standing_in(), pytest.raises(InvalidInput, match="only this process has") as caught:
        layer(torch.randn(2, WIDTH))
    assert caught.value.key == "model"
    assert layer(torch.randn(2, WIDTH)).shape == (2, WIDTH)


def test_a_grid_is_described_by_what_a_caller_has_to_know() -> None:
    config = small_grid(output_shape=[2], copy_every_s=3.0)
    text = text_of(config)
    known = config_from(text)
    assert (known.name, known.grid, known.input_shape, known.out_shape) == ("test", (2, 2), (WIDTH,), (2,))
    assert known.batch == config.batch
    assert text == text_of(small_grid(output_shape=[2], copy_every_s=9.0, seed=4))


def test_what_is_no_longer_open_is_not_found() -> None:
    with pytest.raises(InvalidInput, match="peers: "):
        asker_of("#no-such-layer", text_of(small_grid()))
