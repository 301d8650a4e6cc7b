import pytest
import torch

from ravnest.collaboration import transfers
from ravnest.collaboration.average_parts import MOST_AHEAD, MOST_EPOCHS, AverageParts
from ravnest.collaboration.messages import TransferMessage
from ravnest.collaboration.packing import Packing
from ravnest.collaboration.transfers import Form
from ravnest.errors import InvalidInput

BOUNDS = (16, 32, 40)


@pytest.fixture
def averages(monkeypatch: pytest.MonkeyPatch) -> AverageParts:
    monkeypatch.setattr(transfers, "PIECE_BYTES", 64)
    found = AverageParts(Packing([Form("g", torch.float32, 40), Form("s", torch.float32, 1)]))
    found.know(7, BOUNDS)
    return found


def part(number: int, value: float) -> dict[str, torch.Tensor]:
    """A part whose numbers are all `value`."""
    sizes = [one - before for before, one in zip((0, *BOUNDS), BOUNDS, strict=False)]
    vectors = {"g": torch.full((sizes[number],), value)}
    return vectors if number else vectors | {"s": torch.tensor([value])}


def test_parts_are_an_average_once_all_are_there_and_the_word_has_come(averages: AverageParts) -> None:
    for number in (2, 0, 1):
        assert averages.ready(3) is None
        averages.put(3, 7, number, part(number, float(number)))
    assert averages.ready(3) is None
    averages.made(3)
    found = averages.ready(3)
    assert found is not None
    assert found["g"].tolist() == [0.0] * 16 + [1.0] * 16 + [2.0] * 8
    assert averages.ready(3) is None  # it was taken


def test_a_whole_average_counts_at_once_and_instead_of_parts(averages: AverageParts) -> None:
    averages.put(3, 7, 1, part(1, 5.0))
    averages.put(3, 0, 0, {"g": torch.zeros(40), "s": torch.zeros(1)})
    found = averages.ready(3)
    assert found is not None
    assert found["g"].tolist() == [0.0] * 40


def test_parts_of_an_epoch_that_is_over_count_only_where_the_average_is_made(averages: AverageParts) -> None:
    for step in (3, 4):
        averages.put(step, 7, 0, part(0, 1.0))
    averages.made(3)
    averages.not_made(7)
    assert averages.is_made(3)
    assert averages.lacking() == [(3, 7, 1), (3, 7, 2)]
    averages.made(4)
    assert [step for step, _, _ in averages.lacking()] == [3, 3]


def test_what_is_no_transfer_of_an_average_is_refused(averages: AverageParts) -> None:
    def began(step: int = 3, epoch: int = 7, number: int = 0, tensors: int = 2) -> TransferMessage:
        return TransferMessage(what="average", step=step, tensors=tensors, samples=1, epoch=epoch, part=number)

    assert averages.incoming(began(), 3).part == 0
    assert averages.incoming(began(step=1), 3).step == 1  # a part that has come from elsewhere, too
    assert averages.incoming(began(step=2, epoch=0), 3).step == 2  # the state has it, which came from elsewhere
    for wrong in (
        began(epoch=8),
        began(number=3),
        began(tensors=1),
        began(step=3 + MOST_AHEAD),
        began(step=3 - MOST_AHEAD - 1),
    ):
        with pytest.raises(InvalidInput):
            averages.incoming(wrong, 3)


def test_the_ranges_of_the_last_epochs_are_remembered_and_no_others(averages: AverageParts) -> None:
    for epoch in range(8, 8 + MOST_EPOCHS):
        averages.know(epoch, (16, 40))
    with pytest.raises(InvalidInput):
        averages.division(7)
    assert averages.division(8).parts == 2


def test_a_late_part_by_an_epoch_that_was_given_up_changes_no_average_that_is_made(averages: AverageParts) -> None:
    averages.put(3, 0, 0, {"g": torch.zeros(40), "s": torch.zeros(1)})
    averages.put(3, 7, 1, part(1, 5.0))
    found = averages.ready(3)
    assert found is not None
    assert found["g"].tolist() == [0.0] * 40
