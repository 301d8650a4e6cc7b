import math

import pytest
import torch

from examples.home.data import OTHER, VOCAB, Windows, bigram_loss, decode, encode, pydoc_text
from examples.home.model import gpt
from examples.home.sample import generate


def test_text_survives_its_ids() -> None:
    assert decode(encode("a ~\nB")) == "a ~\nB"
    assert encode("é").tolist() == [OTHER]
    assert decode(encode("é")) == "?"


def test_windows_shift_the_target_by_one() -> None:
    windows = Windows(torch.arange(10), context=3, stride=3)
    assert len(windows) == 3
    inputs, target = windows[2]
    assert inputs.tolist() == [6, 7, 8]
    assert target.tolist() == [7, 8, 9]
    with pytest.raises(IndexError):
        windows[3]


@pytest.mark.parametrize(("length", "stride", "count"), [(4, 1, 1), (5, 1, 2), (6, 3, 1), (7, 3, 2)])
def test_windows_are_all_whole(length: int, stride: int, count: int) -> None:
    assert len(Windows(torch.arange(length), context=3, stride=stride)) == count


def test_train_and_held_out_do_not_overlap() -> None:
    text = pydoc_text(context=64)
    whole = len(text.train.ids) + len(text.held_out.ids)
    assert len(text.train.ids) == whole * 9 // 10
    assert int(text.train.ids.max()) < VOCAB
    assert text.held_out.stride == text.context  # no character is a target twice


def test_bigram_loss_is_that_of_a_proper_distribution() -> None:
    """Of uniform random text, no model does better than log V by more than chance."""
    draw = torch.Generator().manual_seed(0)
    train, held_out = torch.randint(VOCAB, (2, 200_000), generator=draw)
    assert bigram_loss(train, held_out) == pytest.approx(math.log(VOCAB), rel=0.03)
    assert bigram_loss(train, held_out) > math.log(VOCAB)


def test_bigram_loss_by_hand() -> None:
    """P(b | a) = (n(a, b) + k(a)·P(b)) / (n(a) + k(a)) with P the add-one unigram."""
    train = torch.tensor([0, 1, 0, 1, 0, 2])
    unigram = (2 + 1) / (6 + VOCAB)
    expected = -math.log((2 + 2 * unigram) / (3 + 2))
    assert bigram_loss(train, torch.tensor([0, 1])) == pytest.approx(expected)


def test_no_position_sees_the_future() -> None:
    torch.manual_seed(0)
    model = gpt(VOCAB, layers=2, width=16, heads=2, context=8).eval()
    tokens = torch.randint(VOCAB, (1, 8))
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % VOCAB
    same = (model(tokens) == model(changed)).all(dim=2)[0]
    assert same.tolist() == [True] * 5 + [False] * 3


def test_a_sample_is_printable_and_repeats() -> None:
    torch.manual_seed(0)
    text = pydoc_text(context=8)
    model = gpt(VOCAB, layers=1, width=16, heads=2, context=8)
    first, second = generate(model, text, 50), generate(model, text, 50)
    assert first == second
    assert len(first) == 50
