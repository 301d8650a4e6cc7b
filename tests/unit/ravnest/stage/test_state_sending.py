import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ravnest.checkpoints.tensor_stream import PIECE_BYTES, TensorForm
from ravnest.checkpoints.weight_files import tensors_in
from ravnest.stage.state_messages import StatePiece, StateSent
from ravnest.stage.state_sending import StateFile, StateSending, StateSource
from tests.support.state import whole


def source(name, tensor, changed_by="never", together=""):
    return StateSource(TensorForm.of(name, tensor), lambda: tensor, changed_by, together)


def test_a_file_is_what_the_library_reads_whatever_the_size_of_pieces():
    tensors = {
        "a.weight": torch.arange(7.0),
        "turned": torch.arange(12.0).view(3, 4).T,
        "count": torch.tensor(3),
        "none": torch.empty(0),
    }
    for piece_bytes in (8, 13, 64, 10_000):
        file = StateFile("f", [source(name, tensor) for name, tensor in tensors.items()])
        held = tensors_in(whole(file, piece_bytes))
        assert held.keys() == tensors.keys()
        assert all(torch.equal(held[name], tensors[name]) for name in tensors)
        assert file.empty


def test_a_file_without_tensors_has_a_head():
    file = StateFile("f", [])
    assert not file.empty
    assert tensors_in(whole(file)) == {}


def test_a_tensor_is_saved_in_the_dtype_of_its_form():
    anchor = torch.arange(100.0)
    file = StateFile("f", [StateSource(TensorForm("x", torch.float64, (10, 10)), lambda: anchor)])
    assert torch.equal(tensors_in(whole(file, 17))["x"], anchor.view(10, 10).double())


def optimizer(count, size):
    """The state of some parameters: two tensors each, which an update changes in place."""
    return {f"p{n}": (torch.zeros(size), torch.zeros(size)) for n in range(count)}


def optimizer_file(state):
    return StateFile(
        "optimizer",
        [
            source(f"{name}.{key}", tensor, "update", name)
            for name, pair in state.items()
            for key, tensor in zip("mv", pair, strict=True)
        ],
    )


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30), st.integers(1, 9), st.sampled_from([16, 24, 40, 100]))
def test_all_state_of_one_parameter_is_of_one_moment(steps, size, piece_bytes):
    """Updates come between pieces, in any number; no parameter is ever saved half before and half after one."""
    state = optimizer(4, size)
    file, data, made, most = optimizer_file(state), bytearray(), 0, 0
    turns = iter(steps)
    while not file.empty:
        data += file.take(piece_bytes).numpy().tobytes()
        for _ in range(next(turns, 0)):
            made += 1
            file.before("update")
            for pair in state.values():
                for tensor in pair:
                    tensor.fill_(made)
        most = max(most, file.kept_bytes)
    held = tensors_in(bytes(data))
    for name in state:
        numbers = torch.cat([held[f"{name}.m"], held[f"{name}.v"]])
        assert torch.equal(numbers, numbers[:1].expand(2 * size))
    assert most <= 2 * size * 4  # the rest of one parameter


@given(st.integers(0, 40), st.sampled_from([16, 100]))
def test_anchors_are_as_of_the_round_however_late_a_merge_comes(after, piece_bytes):
    anchor = torch.arange(30.0)
    expected = anchor.clone()
    views = {f"p{n}": anchor[10 * n : 10 * n + 10] for n in range(3)}
    file, data = StateFile("segment", [source(name, view, "merge") for name, view in views.items()]), bytearray()
    taken = 0
    while not file.empty:
        if taken == after:
            file.before("merge")
            anchor += 1.0
        data += file.take(piece_bytes).numpy().tobytes()
        taken += 1
    held = tensors_in(bytes(data))
    assert torch.equal(torch.cat([held[name] for name in views]), expected)
    assert file.kept_bytes == 0


def test_an_update_copies_nothing_of_a_parameter_that_was_not_begun():
    state = optimizer(3, 100)
    file = optimizer_file(state)
    file.before("update")
    assert file.kept_bytes == 0
    while file.left[0].form.name == "p0.m":
        file.take(64)
    file.before("update")
    assert file.kept_bytes in (400, 800)
    file.before("merge")  # which changes no optimizer's state
    assert file.kept_bytes in (400, 800)


def test_no_more_is_sent_than_there_is_room_for():
    sending = StateSending()
    tensor = torch.arange(1_000_000.0)
    sending.wanted(1, 2)  # the driver's word comes before the round is merged
    assert not sending.ready
    sending.begin(1, [StateFile("a", [source("x", tensor)]), StateFile("b", [])])
    first = list(sending.pieces())
    assert [header.offset for header, _ in first] == [0, PIECE_BYTES]
    assert list(sending.pieces()) == []
    sending.wanted(1, 3)
    *rest, sent = sending.pieces()
    assert [(header.file, header.last) for header, _ in rest] == [("a", False), ("a", True), ("b", True)]
    assert sent == (StateSent(round=1, pieces=5), [])
    assert max(part.nbytes for _, parts in [*first, *rest] for part in parts) == PIECE_BYTES
    assert not sending.ready


def test_rounds_are_sent_one_after_another_with_room_of_their_own():
    sending = StateSending()
    for round_ in (4, 5):
        sending.begin(round_, [StateFile("f", [])])
    sending.wanted(5, 1)
    assert list(sending.pieces()) == []
    sending.wanted(4, 1)
    assert [header.round for header, _ in sending.pieces()] == [4, 4, 5, 5]


def test_nothing_is_read_while_weights_change():
    sending = StateSending()
    sending.begin(1, [StateFile("f", [])])
    sending.wanted(1, 1)
    with sending.changing("update"):
        found = []
        other = threading.Thread(target=lambda: found.extend(sending.pieces()))
        other.start()
        other.join()
        assert found == []
        assert sending.ready
    assert len(list(sending.pieces())) == 2


@pytest.mark.parametrize("change", ["merge", "update"])
def test_what_is_going_to_change_is_copied_once(change):
    sending, tensor = StateSending(), torch.zeros(400_000)
    sending.begin(1, [StateFile("f", [source("x.m", tensor, change, "x")])])
    sending.wanted(1, 1)
    assert len(list(sending.pieces())) == 1
    for _ in range(2):
        with sending.changing(change):
            tensor += 1.0
    assert sending.kept_bytes == tensor.nbytes
    sending.wanted(1, 1)
    pieces = [tensors for header, tensors in sending.pieces() if isinstance(header, StatePiece)]
    assert not pieces[0][0].any()
    assert sending.kept_bytes == 0
