import pytest
import torch

from ravnest.collaboration.lent_messages import PIECE_ELEMENTS, Answers, VectorMessage, Vectors, send_vector
from ravnest.errors import InvalidInput
from tests.unit.ravnest.collaboration.lines_twin import LinesTwin


def sent(vector: torch.Tensor) -> list[tuple[VectorMessage, tuple[torch.Tensor, ...]]]:
    lines = LinesTwin()
    send_vector(lines, 0, "weight", "layer.weight", vector)  # type: ignore[arg-type]
    return [(message, tensors) for _, message, tensors in lines.sent if isinstance(message, VectorMessage)]


@pytest.mark.parametrize("elements", [0, 1, PIECE_ELEMENTS, PIECE_ELEMENTS + 3])
def test_a_vector_comes_as_it_was_sent(elements: int) -> None:
    vector = torch.arange(elements, dtype=torch.int64)
    vectors = Vectors()
    found = [vectors.take(*piece) for piece in sent(vector)]
    assert all(one is None for one in found[:-1])
    whole = found[-1]
    assert whole is not None
    assert torch.equal(whole, vector)


def test_pieces_out_of_turn_or_of_another_form_are_refused() -> None:
    first, second = sent(torch.zeros(PIECE_ELEMENTS + 3))
    with pytest.raises(InvalidInput, match="out of turn"):
        Vectors().take(*second)
    vectors = Vectors()
    vectors.take(*first)
    with pytest.raises(InvalidInput, match="out of turn"):
        vectors.take(*first)
    with pytest.raises(InvalidInput, match="another form"):
        vectors.take(second[0], (torch.zeros(2),))
    with pytest.raises(InvalidInput, match="another form"):
        vectors.take(second[0], (torch.zeros(3, dtype=torch.int64),))


def test_only_what_was_asked_for_is_taken_and_in_the_order_of_the_questions() -> None:
    answers, vector = Answers(), torch.arange(3.0)
    (right,) = sent(vector)
    with pytest.raises(InvalidInput, match="not due"):
        answers.take(*right)
    for number in (1, 2):
        answers.ask("weight", "layer.weight", torch.empty(3, 1, device="meta"), number)
    endless = VectorMessage(what="weight", name="layer.weight", start=0, elements=1 << 52)
    for wrong in (endless, VectorMessage(what="sum", name="layer.weight", start=0, elements=3)):
        with pytest.raises(InvalidInput, match="not due"):
            answers.take(wrong, (vector,))
    with pytest.raises(InvalidInput, match=r"is torch\.float32"):
        answers.take(right[0], (vector.double(),))
    for number in (1, 2):
        answer = answers.take(*right)
        assert answer is not None
        assert answer[0] == number
        assert torch.equal(answer[1], vector)
