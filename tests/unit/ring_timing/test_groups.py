"""Groups of a ring: who sends what to whom, when groups are worth it, and what cannot be."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest_errors import InvalidInput
from ring_timing.division import RingLinks, divide
from ring_timing.groups import Groups, best_groups, grouped_round


def regions(count, near, far):
    """The pair links of `count` members, every third of whom in a row is in a region: (bytes/s, latency in s)."""
    return lambda a, b: near if a * 3 // count == b * 3 // count else far


def links(count, pair):
    hops = [pair(i, (i + 1) % count) for i in range(count)]
    slowest = min(pair(a, b)[0] for a in range(count) for b in range(count) if a != b)
    longest = max(pair(a, b)[1] for a in range(count) for b in range(count) if a != b)
    return RingLinks(tuple(rate for rate, _ in hops), tuple(late for _, late in hops), slowest, longest, pair)


def test_sizes_places_and_owners_also_over_the_end_of_the_order():
    groups = Groups(7, (2, 5))
    assert groups.sizes == (3, 4)
    assert (groups.blocks, groups.cells) == (4, 8)
    assert [groups.place_of(member) for member in range(7)] == [(1, 2), (1, 3), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert [groups.member(1, place) for place in range(4)] == [5, 6, 0, 1]
    assert groups.member(0, 3) == groups.member(0, 0) == 2


@pytest.mark.parametrize("firsts", [(), (1,), (1, 1), (3, 1), (0, 4), (-1, 2)])
def test_groups_that_cannot_be_are_refused(firsts):
    with pytest.raises(InvalidInput, match="two or more ascending places"):
        Groups(4, firsts)


@st.composite
def grouped(draw):
    members = draw(st.integers(2, 12))
    return Groups(members, tuple(sorted(draw(st.sets(st.integers(0, members - 1), min_size=2)))))


@settings(max_examples=100, deadline=None)
@given(grouped())
def test_all_members_together_send_what_a_flat_ring_does(groups):
    sent = groups.traffic(1.0)
    assert sum(sent.values()) == pytest.approx(2 * (groups.members - 1))
    assert all(a != b for a, b in sent)
    for member in range(groups.members):  # everybody gets the mean, and everybody's part goes out
        assert sum(n for (_, b), n in sent.items() if b == member) > 0
        assert sum(n for (a, _), n in sent.items() if a == member) > 0


def test_equal_groups_send_alike_and_share_what_goes_between_them():
    sent = Groups(6, (0, 3)).traffic(6.0)
    assert {member: sum(n for (a, _), n in sent.items() if a == member) for member in range(6)} == dict.fromkeys(
        range(6), pytest.approx(10.0)
    )
    assert [sent[a, a + 3] for a in range(3)] == [2.0] * 3  # a third of the vector, half of it twice


def test_a_round_takes_its_busiest_member_or_a_chunk_s_way():
    near, far = (1e6, 0.001), (1e5, 0.1)
    once = grouped_round(Groups(6, (0, 2, 4)), 6e5, 1e4, regions(6, near, far))
    # Each member: 2 · 1/2 of the vector within its group, and 2 · 2/3 of its half between groups.
    assert once.sending_s == pytest.approx(6e5 / 1e6 + 4e5 / 1e5)
    # A chunk of 10 kB: once around a group of two, and 4/3 times around the three groups.
    assert once.way_s == pytest.approx(2 * 0.011 + 4 / 3 * 3 * 0.2)
    assert once.takes_s == once.sending_s


def test_long_ways_and_slow_links_between_regions_are_worth_groups_and_only_if_asked_for():
    far_apart = links(9, regions(9, (1e7, 0.001), (1e5, 0.05)))
    division = divide(10**6, 4.0, far_apart, hierarchical=True)
    assert division.groups == (0, 3, 6)
    assert divide(10**6, 4.0, far_apart).groups is None
    latent = links(100, lambda a, b: (1e7, 0.02))
    sizes = Groups(100, divide(10**5, 4.0, latent, hierarchical=True).groups).sizes
    assert max(sizes) - min(sizes) <= 1
    assert 5 <= len(sizes) <= 20


def test_where_a_flat_ring_is_as_good_it_stays_and_few_members_form_none():
    alike = links(9, lambda a, b: (1e6, 0.0))
    assert divide(10**6, 4.0, alike, hierarchical=True).groups is None
    assert best_groups(3, 1e6, 1e4, lambda a, b: (1e6, 0.1)) is None
    assert divide(10**6, 4.0, links(9, regions(9, (1e7, 0.001), (1e5, 0.05))), each=True, hierarchical=True).direct
