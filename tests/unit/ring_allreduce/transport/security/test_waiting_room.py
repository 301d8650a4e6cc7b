"""Who is turned away when there are too many: the oldest of the address that has the most."""

import pytest

from ring_allreduce.transport.security.waiting_room import WaitingRoom, give_memory_back


def nobody(number):
    return False


def test_an_address_with_too_many_loses_its_oldest():
    room = WaitingRoom(most_of_address=2, most_in_all=10)
    assert [room.enter(number, "a", nobody) for number in range(3)] == [{}, {}, {0: "a"}]
    assert room.enter(3, "b", nobody) == {}
    assert len(room) == 3


def test_too_many_in_all_are_taken_from_the_fullest_address_and_its_oldest_go():
    room = WaitingRoom(most_of_address=3, most_in_all=4)
    for number, address in enumerate("baaa"):
        assert room.enter(number, address, nobody) == {}
    assert room.enter(4, "c", nobody) == {1: "a"}
    assert room.enter(5, "d", nobody) == {2: "a"}


def test_who_was_admitted_or_has_left_takes_no_place():
    room = WaitingRoom(most_of_address=2, most_in_all=10)
    room.enter(0, "a", nobody)
    room.enter(1, "a", nobody)
    assert room.enter(2, "a", lambda number: number == 0) == {}
    assert room.leave(1)
    assert not room.leave(1)
    assert room.enter(3, "a", nobody) == {}
    assert room.enter(4, "a", nobody) == {2: "a"}


def test_a_number_that_comes_again_is_another_connection():
    room = WaitingRoom(most_of_address=2, most_in_all=2)
    room.enter(7, "a", nobody)
    room.enter(7, "b", nobody)
    assert len(room) == 1


@pytest.mark.parametrize("strangers", [1000])
def test_one_address_never_keeps_out_another(strangers):
    room = WaitingRoom(most_of_address=8, most_in_all=16)
    for number in range(strangers):
        room.enter(number, "a", nobody)
    assert room.enter(strangers, "b", nobody) == {}
    assert len(room) == 9


def test_giving_memory_back_has_no_effect_on_what_is_in_use():
    held = [bytes([number]) * 100_000 for number in range(10)]
    give_memory_back()
    assert [each[99_999] for each in held] == list(range(10))
