from collections.abc import Mapping

from ravnest.experts.claims import (
    CHECKPOINT_LOOKS,
    FRESH_LOOKS,
    OTHERS_LOOKS,
    Claims,
    GiveUp,
    Kept,
    Origin,
    Take,
    rank,
    stand_by,
)
from ravnest.experts.grid import BLOCK, MOST_TERM, Claim, Expert, Grid, block_of

GRID = Grid("test", (2, 2))
EXPERTS = list(GRID.experts())
A, B, C = (f"host.{letter * 16}" for letter in "abc")


def look(
    claims: Claims,
    seen: Mapping[Expert, Claim] | None = None,
    copies: Mapping[Expert, Kept] | None = None,
    checkpoints: Mapping[Expert, Kept] | None = None,
) -> list[Take | GiveUp]:
    return claims.looked(EXPERTS, seen or {}, copies or {}, checkpoints or {})


def test_wanted_experts_are_claimed_at_once_and_others_when_nobody_came() -> None:
    told, free = Claims(A, 3, wanted=[(1, 1)]), Claims(B, 3)
    assert look(told) == [Take((1, 1), Claim(1, 0, A), Origin.FRESH)]
    for host, looks in ((told, OTHERS_LOOKS - 1), (free, FRESH_LOOKS)):
        later = [look(host, dict(host.own)) for _ in range(looks)]
        assert later[:-1] == [[]] * (looks - 1)
        assert {one.origin for one in later[-1] if isinstance(one, Take)} == {Origin.FRESH}
        assert (len(host.own), host.room) == (3, 0)


def test_what_others_host_is_left_to_them() -> None:
    host = Claims(A, 4, wanted=EXPERTS)
    seen = {expert: Claim(1, 0, B) for expert in EXPERTS[:3]}
    assert [one.expert for one in look(host, seen)] == [EXPERTS[3]]


def test_of_two_that_claim_at_once_the_smaller_claim_gives_up() -> None:
    first, second = Claims(A, 4, wanted=[(0, 0)]), Claims(B, 4, wanted=[(0, 0)])
    look(first), look(second)
    seen = {(0, 0): max(first.own[0, 0], second.own[0, 0])}
    assert look(first, seen) == [GiveUp((0, 0), B)]
    assert look(second, seen) == []
    assert (set(first.own), set(second.own)) == (set(), {(0, 0)})


def test_the_newest_copy_of_a_dead_hosts_expert_wins() -> None:
    dead = {(0, 0): Claim(3, 100, C)}
    hosts = {A: Claims(A, 4), B: Claims(B, 4)}
    for host in hosts.values():
        assert look(host, dead) == []
    taken = [look(hosts[A], copies={(0, 0): Kept(3, 150)}), look(hosts[B], copies={(0, 0): Kept(3, 140)})]
    assert taken[0] == [Take((0, 0), Claim(4, 150, A), Origin.COPY)]
    seen = {(0, 0): max(host.own[0, 0] for host in hosts.values())}
    assert look(hosts[A], seen) == []
    assert look(hosts[B], seen) == [GiveUp((0, 0), A)]


def test_a_claim_that_comes_back_is_smaller_than_the_one_that_followed_it() -> None:
    frozen, heir = Claims(C, 4, wanted=[(0, 0)]), Claims(A, 4)
    look(frozen)
    old = frozen.own[0, 0]
    look(heir, {(0, 0): old})
    look(heir, copies={(0, 0): Kept(old.term, 7)})
    assert heir.own[0, 0] > old
    assert look(frozen, {(0, 0): heir.own[0, 0]}) == [GiveUp((0, 0), A)]


def test_a_checkpoint_waits_for_copies_and_is_before_a_fresh_beginning() -> None:
    host = Claims(A, 1)
    looks = [look(host, checkpoints={(0, 1): Kept(2, 9)}) for _ in range(CHECKPOINT_LOOKS)]
    assert looks == [[]] * (CHECKPOINT_LOOKS - 1) + [[Take((0, 1), Claim(3, 9, A), Origin.CHECKPOINT)]]


def test_a_host_that_begins_again_claims_what_the_table_still_has_of_it() -> None:
    host = Claims(A, 4, wanted=[(0, 0)])
    assert look(host, {(0, 0): Claim(5, 0, A)}) == [Take((0, 0), Claim(6, 0, A), Origin.FRESH)]


def test_no_more_than_there_is_room_for() -> None:
    host = Claims(A, 2, wanted=EXPERTS)
    assert len(look(host)) == 2
    host.gave(next(iter(host.own)))
    assert host.room == 1


def test_a_host_claims_neighbours_together_and_another_host_others() -> None:
    experts = list(Grid("test", (4, 2 * BLOCK)).experts())
    taken = {}
    for name in (A, B, C):
        host = Claims(name, 2 * BLOCK)
        for _ in range(FRESH_LOOKS):
            host.looked(experts, {}, {}, {})
        taken[name] = {block_of(expert) for expert in host.own}
        assert (len(host.own), len(taken[name])) == (2 * BLOCK, 2)
    assert len(set.union(*taken.values())) > 2


def test_stand_bys_are_spread_and_change_little() -> None:
    experts = list(Grid("test", (16, 16)).experts())
    of_three = {expert: stand_by(expert, {A: 4, B: 4, C: 4}, A) for expert in experts}
    assert {A, None}.isdisjoint(of_three.values())
    assert 90 < sum(one == B for one in of_three.values()) < 166
    assert all(stand_by(expert, {A: 4, B: 4}, A) == B for expert in experts)
    assert all(stand_by(expert, {A: 4, B: 0}, A) == B for expert in experts)
    assert stand_by((0, 0), {A: 4}, A) is None
    assert rank((0, 0), A) != rank((0, 1), A)


def test_copies_come_to_hosts_in_proportion_to_what_they_take() -> None:
    experts = list(Grid("test", (32, 32)).experts())
    of_two = [stand_by(expert, {A: 1, B: 30, C: 3}, A) for expert in experts]
    assert 60 < of_two.count(C) < 130  # 93 of 1024 are expected


def test_who_claims_by_the_greatest_term_of_all_keeps_an_expert_no_longer_than_its_claim() -> None:
    host = Claims(A, 4, wanted=[(0, 0)])
    look(host)
    assert look(host, {(0, 0): Claim(MOST_TERM, 0, C)}) == [GiveUp((0, 0), C)]
    (taken,) = look(host, copies={(0, 0): Kept(MOST_TERM, 7)})
    assert isinstance(taken, Take)
    assert taken.claim == Claim(MOST_TERM, 7, A)
    assert look(host, {(0, 0): taken.claim}) == []
