import threading

import pytest
import torch
from torch import Tensor

from ravnest.errors import ExpertsUnavailable
from ravnest.experts.batch_calls import HOST, UPDATES, Asker, ask, teach
from tests.support.experts import WIDTH, LocalClient, small_grid


def numbers(count: int) -> torch.Tensor:
    return torch.randn(count, 4)  # of two dimensions with two coordinates each


def test_asked_says_who_answered_and_minus_one_where_nobody_did() -> None:
    asker = Asker(LocalClient(small_grid(), lambda call: "late" if call.expert == (1, 1) else None))
    samples = torch.randn(5, WIDTH)
    outputs, asked = ask(asker, samples, numbers(5), k=4, k_min=1, width=4, training=True)
    assert (tuple(outputs.shape), tuple(asked.shape)) == ((5, 4, WIDTH), (5, 4, 4))
    for row in range(5):
        found = [tuple(one[:HOST]) for one in asked[row].tolist() if one[UPDATES] >= 0]
        assert sorted(found) == [(0, 0), (0, 1), (1, 0)]
    assert asked[:, 3].eq(-1).all()
    assert outputs[:, 3].eq(0).all()


def test_the_backward_goes_to_the_hosts_that_asked_names_in_pieces_of_a_batch() -> None:
    client = LocalClient(small_grid())
    asker = Asker(client)
    samples = torch.randn(20, WIDTH)
    outputs, asked = ask(asker, samples, numbers(20), k=4, k_min=4, width=4, training=True)
    client.calls.clear()
    found = teach(asker, samples, torch.ones_like(outputs), asked, backward_k_min=1)
    assert found.shape == samples.shape
    assert {call.host for call in client.calls} == {"host"}
    assert sum(call.tensors[0].shape[0] for call in client.calls) == 80
    assert max(call.tensors[0].shape[0] for call in client.calls) == 8
    assert {call.updates for call in client.calls} == {0}


def test_silent_backwards_in_a_row_give_no_gradient_until_there_are_too_many() -> None:
    answers: list[str | None] = []
    client = LocalClient(small_grid(), lambda call: None if call.updates is None else answers.pop())
    asker = Asker(client, most_silent=1)
    samples = torch.randn(1, WIDTH)
    outputs, asked = ask(asker, samples, numbers(1), k=1, k_min=1, width=4, training=True)

    def taught(why: str | None) -> Tensor:
        answers.append(why)
        return teach(asker, samples, torch.ones_like(outputs), asked, backward_k_min=1)

    assert taught("late").eq(0).all()
    assert taught(None).ne(0).any()
    assert taught("late").eq(0).all()
    with pytest.raises(ExpertsUnavailable, match="backward_k_min = 1 answers in the backward: late"):
        taught("late")
    assert asker.figures.samples_without_gradient == 2


def test_hosts_keep_their_numbers_whoever_asks() -> None:
    asker = Asker(LocalClient(small_grid()))
    found: list[list[int]] = [[] for _ in range(4)]

    def number(own: list[int]) -> None:
        own += [asker.number_of(f"host{one % 7}") for one in range(70)]

    threads = [threading.Thread(target=number, args=(own,)) for own in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1] == found[2] == found[3]
    assert [asker.host(one) for one in found[0][:7]] == [f"host{one}" for one in range(7)]


def test_figures_are_read_where_they_are_printed() -> None:
    asker = Asker(LocalClient(small_grid()))
    samples = torch.randn(1, WIDTH)
    ask(asker, samples, numbers(1), k=1, k_min=1, width=4, training=True)
    asker.figures.sent([None], "forward")
    assert repr(asker.figures).startswith(
        "MixtureFigures(forwards=2, backwards=0, dropped={'forward: late': 1}, staleness={}, searched_again=0,"
    )
