"""Contributions that hold what they say pass, and others do not, as far as one micro-batch shows it."""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ravnest.collaboration.spot_checks import LEAST_LOOKS, SpotChecks, nth, spans_of
from ravnest.collaboration.trainer import GRADIENTS, STATISTICS, NotFinite, NotRead, Trainer
from ravnest.errors import InvalidInput
from ravnest.job.config import load_job
from tests.unit.ravnest.collaboration.jobs import job_in

ELEMENTS, COUNT = 4000, 16


def gradient(order: str, number: int) -> Tensor:
    """Nothing in common with any other one."""
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(1000 * len(order) + number))


def checks(share: float = 1.0, again: Callable[[str, int], Tensor] = gradient) -> SpotChecks:
    return SpotChecks(share, 8, again, random.Random(1).random)


def sum_of(order: str, numbers: Iterable[int]) -> Tensor:
    """Over the samples of these micro-batches, 8 each."""
    return 8 * torch.stack([gradient(order, number) for number in numbers]).sum(0)


HONEST = sum_of("a", range(COUNT))


def refusals(total: Tensor, looks: int = 2 * LEAST_LOOKS) -> list[str]:
    """What is said of a person who sends the same sum again and again."""
    made, said = checks(), []
    for _ in range(looks):
        try:
            made.require("lena", "a", [(0, 10), (10, COUNT - 10)], total, 8 * COUNT)
        except InvalidInput as error:
            said.append(str(error))
    return said


def test_an_honest_sum_passes_whichever_micro_batch_is_chosen() -> None:
    assert refusals(HONEST, 200) == []
    assert refusals(HONEST + 0.3 * HONEST.norm() * torch.eye(1, ELEMENTS)[0], 200) == [], "as dropout may turn it"


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(-HONEST, id="sign flip"),
        pytest.param(torch.zeros(ELEMENTS), id="nothing"),
        pytest.param(sum_of("other", range(COUNT)), id="other samples"),
        pytest.param(20 * HONEST, id="scaled"),
        pytest.param(HONEST + 3 * HONEST.norm() * torch.eye(1, ELEMENTS)[0], id="drift"),
    ],
)
def test_a_sum_of_something_else_is_refused_from_the_first_judgement_on(lie: Tensor) -> None:
    said = refusals(lie)
    assert len(said) == LEAST_LOOKS + 1
    assert "it sends something else than it says" in said[0]


def test_each_person_is_judged_by_its_own_sums() -> None:
    made = checks()
    for _ in range(2 * LEAST_LOOKS):
        made.require("lena", "a", [(0, COUNT)], HONEST, 8 * COUNT)
        made.require(f"{random.random()}", "a", [(0, COUNT)], -HONEST, 8 * COUNT)  # a new key each time


def test_so_large_a_share_is_looked_into_and_the_form_of_all() -> None:
    asked: list[int] = []

    def again(order: str, number: int) -> Tensor:
        asked.append(number)
        return gradient(order, number)

    looks = checks(0.25, again)
    for _ in range(400):
        looks.require("lena", "a", [(0, COUNT)], HONEST, 8 * COUNT)
    assert 70 <= len(asked) <= 130
    assert set(asked) == set(range(COUNT))
    with pytest.raises(InvalidInput, match="15 micro-batches are named for 128 samples"):
        looks.require("lena", "a", [(0, COUNT - 1)], HONEST, 8 * COUNT)


@pytest.mark.parametrize("spans", [[(3, 1)] * COUNT, [(0, 10), (9, 6)], [(8, 8), (0, 8)]])
def test_no_micro_batch_stands_for_others(spans: list[tuple[int, int]]) -> None:
    """Who computes one only, and says that it has computed it again and again, would have what is expected in it."""
    with pytest.raises(InvalidInput, match="named twice, or not in their order"):
        checks().require("lena", "a", spans, COUNT * sum_of("a", [3]), 8 * COUNT)


def test_without_a_share_nothing_is_asked() -> None:
    checks(0.0).require("lena", "a", [], -HONEST, 8 * COUNT)


def test_a_micro_batch_that_cannot_be_computed_cannot_be_in_a_sum() -> None:
    def again(order: str, number: int) -> Tensor:
        raise NotFinite("the loss of a micro-batch is nan")

    with pytest.raises(InvalidInput, match="cannot be in a sum: the loss of a micro-batch is nan"):
        checks(again=again).require("lena", "a", [(0, COUNT)], HONEST, 8 * COUNT)


def test_a_micro_batch_that_cannot_be_read_now_is_held_against_nobody() -> None:
    def hangs(order: str, number: int) -> Tensor:
        raise NotRead("the held-out set has been read for 10 s")

    checks = SpotChecks(1.0, 8, hangs, lambda: 0.0)
    for _ in range(100):
        checks.require("a", "o", [(0, 1)], torch.ones(4), 8)


def test_spans_hold_all_numbers_in_order() -> None:
    numbers = [3, 4, 5, 9, 11, 12]
    spans = spans_of(numbers)
    assert spans == [(3, 3), (9, 1), (11, 2)]
    assert [nth(spans, at) for at in range(6)] == numbers


@pytest.mark.parametrize("lie", [None, -1.0])
def test_in_a_training_nobody_honest_is_refused_a_liar_is_and_the_backbone_stays_as_it_is(
    tmp_path: Path, lie: float | None
) -> None:
    """The hardest gradients: few parameters, and a problem that is all but solved in the end."""
    path = job_in(tmp_path, spot_check_share=1.0)
    peers = {order: Trainer(load_job(path), path, order=order) for order in "abc"}
    backbone = Trainer(load_job(path), path)
    looks, refused = SpotChecks(1.0, 8, backbone.again, random.Random(1).random), Counter[str]()
    for step in range(40):
        total, weights = torch.zeros(146), backbone.weights_hash()
        for order, peer in peers.items():
            for number in range(8 * step, 8 * step + 8):
                peer.count(peer.compute(number).samples)
            vector = peer.contribution()[0] * (lie if lie is not None and order == "b" else 1.0)
            try:
                looks.require(order, order, [(8 * step, 8)], vector, 64)
            except InvalidInput:
                refused[order] += 1
            total += vector
        assert backbone.weights_hash() == weights
        for each in (*peers.values(), backbone):
            each.apply({GRADIENTS: total / 192, STATISTICS: torch.zeros(0)})
    assert refused == ({} if lie is None else {"b": 40 - LEAST_LOOKS + 1})
    assert len({each.weights_hash() for each in (*peers.values(), backbone)}) == 1
