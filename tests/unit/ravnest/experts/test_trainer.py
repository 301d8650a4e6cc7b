import pytest
import torch
from torch import Tensor, nn

from ravnest.errors import ExpertsUnavailable, InvalidInput, RunFailed
from ravnest.experts.mixture import RemoteMixtureOfExperts
from ravnest.experts.trainer import Trainer
from tests.support.experts import WIDTH, LocalClient, small_grid


def squared(module: nn.Module, batch: object) -> Tensor:
    assert isinstance(batch, Tensor)
    loss: Tensor = (module(batch) - batch.flip(1)).pow(2).mean()
    return loss


def batches(count: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(8, WIDTH, generator=draw) for _ in range(count)]


def test_one_batch_at_a_time_is_a_plain_loop() -> None:
    torch.manual_seed(0)
    module, plain = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    plain.load_state_dict(module.state_dict())
    trainer = Trainer(module, torch.optim.SGD(module.parameters(), 0.1), squared, in_flight=1)
    losses = list(trainer.run(batches(5)))
    optimizer, expected = torch.optim.SGD(plain.parameters(), 0.1), []
    for batch in batches(5):
        optimizer.zero_grad()
        loss = squared(plain, batch)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert losses == expected
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), plain.parameters(), strict=True))
    assert trainer.figures.staleness == {0: 5}


def test_several_batches_at_once_learn_and_their_staleness_is_counted() -> None:
    torch.manual_seed(0)
    module = nn.Linear(WIDTH, WIDTH)
    trainer = Trainer(module, torch.optim.SGD(module.parameters(), 0.2), squared, in_flight=3)
    losses = list(trainer.run(batches(120)))
    figures = trainer.figures
    assert len(losses) == figures.updates == sum(figures.staleness.values())
    # A thread that the system lets wait comes back too stale: its batch is counted, and not applied.
    assert figures.updates + figures.too_stale == 120
    assert sum(losses[-10:]) < 0.2 * sum(losses[:10])


def test_a_module_with_remote_experts_learns() -> None:
    torch.manual_seed(0)
    client = LocalClient(small_grid())
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), RemoteMixtureOfExperts(client, k=2))  # type: ignore[arg-type]
    trainer = Trainer(module, torch.optim.SGD(module.parameters(), 0.2), squared, in_flight=1)
    losses = list(trainer.run(batches(100)))
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])
    assert sum(one.updates for one in client.experts.values()) > 100


def test_weights_are_averaged_every_so_many_updates() -> None:
    module, seen = nn.Linear(WIDTH, WIDTH), []

    def average(weights: list[Tensor]) -> None:
        seen.append(len(weights))
        for one in weights:
            one.zero_()

    trainer = Trainer(module, torch.optim.SGD(module.parameters(), 0.1), squared, average=average, average_every=4)
    list(trainer.run(batches(8)))
    assert (seen, trainer.figures.averages) == ([2, 2], 2)
    assert not bool(module.weight.any())


def test_a_gradient_that_is_too_stale_is_dropped_and_counted() -> None:
    module = nn.Linear(WIDTH, WIDTH)
    trainer = Trainer(module, torch.optim.SGD(module.parameters(), 0.1), squared, in_flight=4, max_staleness=0)
    losses = list(trainer.run(batches(12)))
    assert len(losses) + trainer.figures.too_stale == 12
    assert set(trainer.figures.staleness) == {0}


def test_batches_without_answers_are_counted_and_too_many_end_the_run() -> None:
    module = nn.Linear(WIDTH, WIDTH)

    def loss(replica: nn.Module, batch: object) -> Tensor:
        assert isinstance(batch, Tensor)
        if float(batch[0, 0]) > 0:
            raise ExpertsUnavailable("nobody")
        return squared(replica, batch)

    good, bad = -torch.ones(8, WIDTH), torch.ones(8, WIDTH)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    trainer = Trainer(module, optimizer, loss, in_flight=1, most_failed=2)
    assert len(list(trainer.run([good, bad, good, bad, good]))) == 3
    assert trainer.figures.failed == 2
    with pytest.raises(ExpertsUnavailable):
        list(trainer.run([bad, bad, good]))
    assert len(list(trainer.run([good]))) == 1


def test_a_loss_that_is_not_finite_ends_the_run() -> None:
    module = nn.Linear(WIDTH, WIDTH)
    trainer = Trainer(module, torch.optim.SGD(module.parameters(), 0.1), squared)
    with pytest.raises(RunFailed, match="diverged"):
        list(trainer.run([torch.full((8, WIDTH), float("nan"))]))


def test_impossible_options_are_refused() -> None:
    module = nn.Linear(WIDTH, WIDTH)
    with pytest.raises(InvalidInput) as caught:
        Trainer(module, torch.optim.SGD(module.parameters(), 0.1), squared, in_flight=0)
    assert caught.value.key == "in_flight"
