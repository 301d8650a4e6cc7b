"""The head of a shared line's message comes back as it was, and nothing else is one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ring_allreduce.errors import InvalidMessage
from ring_allreduce.transport.shared.channel import Head

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
SIZES = st.lists(U64, max_size=20)
SIZES_AND_INLINE = SIZES.flatmap(lambda sizes: st.tuples(st.just(sizes), st.integers(0, len(sizes))))


@given(
    U32,
    U64,
    SIZES.flatmap(lambda sizes: st.tuples(st.just(sizes), st.integers(0, len(sizes)))),
    st.lists(U32),
    st.binary(),
)
def test_a_head_comes_back_as_it_was_and_says_where_it_ends(slot, place, sizes_inline, gone, rest):
    sizes, inline = sizes_inline
    packed = Head(slot, place, inline, gone, sizes).packed()
    head, end = Head.unpacked(memoryview(packed + rest))
    assert (head.slot, head.place, head.inline, list(head.gone), list(head.sizes)) == (slot, place, inline, gone, sizes)
    assert end == len(packed)


@given(SIZES, st.lists(U32, max_size=5), st.data())
def test_a_part_of_a_head_is_none(sizes, gone, data):
    packed = Head(0, 0, 0, gone, sizes).packed()
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(InvalidMessage):
        Head.unpacked(memoryview(packed)[:cut])


@given(st.binary(max_size=200))
def test_garbage_never_raises_anything_else(data):
    try:
        head, end = Head.unpacked(memoryview(data))
    except InvalidMessage:
        return
    assert head.inline <= len(head.sizes)
    assert end <= len(data)
