"""Lists of tensors in a row, and back in their places."""

import pytest
import torch

from ring_allreduce.errors import InvalidInput
from ring_allreduce.group.calls import flatten, listed, unflatten


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ([torch.float16, torch.bfloat16], torch.float32),
        ([torch.float32, torch.float64], torch.float64),
        ([], torch.float32),
    ],
)
def test_there_and_back_changes_nothing(dtypes, expected):
    tensors = [torch.arange(6.0).reshape(2, 3).T.to(dtype) for dtype in dtypes]
    before = [tensor.clone() for tensor in tensors]
    vector = flatten(tensors)
    assert (vector.dtype, vector.shape) == (expected, (6 * len(dtypes),))
    unflatten(vector, tensors)
    assert all(torch.equal(tensor, was) for tensor, was in zip(tensors, before, strict=True))


def test_one_tensor_in_a_row_is_not_copied_and_others_are_laid_in_a_row():
    tensor = torch.arange(6.0).reshape(2, 3)
    assert flatten([tensor]).data_ptr() == tensor.data_ptr()
    assert flatten([tensor.T]).tolist() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]


def test_parameters_are_written_in_place():
    parameter = torch.nn.Parameter(torch.zeros(2))
    unflatten(torch.tensor([1.0, 2.0]), [parameter])
    assert parameter.tolist() == [1.0, 2.0]


def test_what_is_not_floating_is_refused():
    with pytest.raises(InvalidInput, match="only floating"):
        flatten([torch.ones(1), torch.tensor([1])])


def test_what_has_several_numbers_in_one_place_is_refused():
    for tensor in (torch.zeros(1).expand(3), torch.zeros(2, 1).expand(2, 3), torch.zeros(9).as_strided((3, 3), (1, 1))):
        with pytest.raises(InvalidInput, match="several numbers in one place"):
            flatten([torch.zeros(2), tensor])
    whole = torch.arange(24.0).reshape(2, 3, 4)
    for tensor in (whole[:, ::2, 1:3], whole.permute(2, 0, 1), torch.zeros(1).expand(1, 1), torch.zeros(1).expand(0)):
        assert flatten([tensor]).numel() == tensor.numel()


def test_an_iterator_of_tensors_is_read_once():
    model = torch.nn.Linear(2, 3)
    assert [*map(id, listed(model.parameters()))] == [*map(id, model.parameters())]


@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros(2),
        "ab",
        {"a": torch.zeros(1)},
        None,
        5,
        [[torch.zeros(1)]],
        [None],
        [torch.zeros(2, device="meta")],
        [torch.eye(2).to_sparse()],
    ],
)
def test_what_is_no_list_of_dense_tensors_is_refused(wrong):
    with pytest.raises(InvalidInput, match=r"a list of tensors is averaged|dense and holds numbers"):
        listed(wrong)
