import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravnest.profiling.pairing import all_pairs, in_rounds, sampled_pairs


def names(count: int) -> list[str]:
    return [f"n{i:03}" for i in range(count)]


@given(st.integers(0, 40))
def test_all_pairs_meet_once_in_the_fewest_rounds(count: int) -> None:
    rounds = all_pairs(names(count))
    met = [frozenset(pair) for round_ in rounds for pair in round_]
    assert len(met) == len(set(met)) == count * (count - 1) // 2
    for round_ in rounds:
        busy = [name for pair in round_ for name in pair]
        assert len(busy) == len(set(busy))
    assert len(rounds) == (0 if count < 2 else count - 1 + count % 2)


@given(st.integers(2, 60), st.integers(2, 8), st.integers(0, 5))
def test_a_sample_is_connected_and_gives_each_node_its_peers(count: int, peers: int, seed: int) -> None:
    everyone = names(count)
    pairs = sampled_pairs(everyone, peers, seed)
    assert len(pairs) == len(set(pairs))
    assert all(a < b for a, b in pairs)
    for name in everyone:
        assert sum(name in pair for pair in pairs) >= min(peers, count - 1)
    reached = {everyone[0]}
    while more := {name for pair in pairs if reached & set(pair) for name in pair} - reached:
        reached |= more
    assert reached == set(everyone)


def test_the_same_seed_gives_the_same_sample() -> None:
    assert sampled_pairs(names(40), 4, 1) == sampled_pairs(names(40), 4, 1) != sampled_pairs(names(40), 4, 2)


def test_near_and_far_peers_are_among_the_sample() -> None:
    place = {name: float(i) for i, name in enumerate(names(50))}
    distances = {(a, b): abs(place[a] - place[b]) for a in place for b in place if a < b}
    pairs = sampled_pairs(names(50), 9, 0, distances)
    assert ("n024", "n025") in pairs  # the nearest
    assert ("n000", "n049") in pairs  # the farthest
    assert len(pairs) < 50 * 49 / 4


@given(st.integers(26, 60), st.integers(2, 8), st.integers(0, 5))
def test_of_known_pairs_alone_each_node_has_its_peers_its_nearest_and_its_farthest(
    n: int, peers: int, seed: int
) -> None:
    known = sampled_pairs(names(n), 24, seed)
    distances = {pair: float(i * 7919 % 104729) for i, pair in enumerate(known)}
    pairs = sampled_pairs(names(n), peers, seed, distances)
    assert set(pairs) <= set(known)
    for name in names(n):
        own = sorted((pair for pair in known if name in pair), key=distances.__getitem__)
        assert sum(name in pair for pair in pairs) >= peers
        assert {*own[: max(1, peers // 3)], own[-1]} <= set(pairs)


@given(st.lists(st.frozensets(st.integers(0, 9), min_size=1, max_size=4), max_size=40), st.integers(1, 5))
def test_rounds_share_no_node_and_lose_no_task(tasks: list[frozenset[int]], at_once: int) -> None:
    rounds = in_rounds(tasks, lambda task: task, at_once)
    assert sorted(map(sorted, tasks)) == sorted(sorted(task) for round_ in rounds for task in round_)
    for round_ in rounds:
        assert 1 <= len(round_) <= at_once
        assert sum(len(task) for task in round_) == len(frozenset().union(*round_))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        all_pairs(["a", "a"])
    with pytest.raises(ValueError, match="2 peers"):
        sampled_pairs(["a", "b"], 1, 0)
    with pytest.raises(ValueError, match="at least one"):
        in_rounds([frozenset("a")], set, 0)
