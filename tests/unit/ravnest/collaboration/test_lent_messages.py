import pytest
import torch

from ravnest.collaboration.lent_messages import PIECE_ELEMENTS, VectorMessage, Vectors, send_vector
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
