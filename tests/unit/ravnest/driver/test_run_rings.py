"""What stages are told when rings become smaller."""

from ravnest.driver.instructions import ReformRings
from ravnest.driver.run_rings import RunRings
from ravnest.stage import epoch_messages as em
from ring_allreduce.transport import PeerAddress
from tests.support.local import setups_of, tiny_job


def reformed(lost, parts=(2, 1, 3)):
    setups, plan = setups_of(tiny_job(), parts=parts)
    rings = RunRings(plan, setups)
    members = {
        str(segment.ring): tuple(name for name in segment.members if not name.startswith(lost))
        for setup in setups.values()
        for segment in setup.segments
    }
    out = tuple(name for name in setups if name.startswith(lost))
    return setups, rings, rings.reform(ReformRings(3, members, 7, out))


def test_every_stage_that_is_left_is_told_of_each_of_its_rings():
    setups, rings, told = reformed("c1")
    assert set(told) == {name for name in setups if not name.startswith("c1")} == set(rings.setups)
    for name, message in told.items():
        assert isinstance(message, em.RingsReformedMessage)
        assert (message.epoch, message.committed, message.lost) == (3, 7, ("c1.s0",))
        assert [ring.ring for ring in message.rings] == [segment.ring for segment in setups[name].segments]
        assert all(name in ring.members and "c1.s0" not in ring.members for ring in message.rings)


def test_all_members_of_a_ring_are_told_the_same_division():
    _, _, told = reformed("c1")
    said = {}
    for message in told.values():
        for ring in message.rings:
            said.setdefault(ring.ring, set()).add((ring.members, ring.divisions))
    assert all(len(each) == 1 for each in said.values())


def test_each_segment_has_one_keeper_again():
    setups, rings, told = reformed("c0")
    before = {segment.ring for setup in setups.values() for segment in setup.segments}
    keepers = [ring.ring for message in told.values() for ring in message.rings if ring.keeper]
    assert sorted(keepers) == sorted(before)
    held = [segment.ring for setup in rings.setups.values() for segment in setup.segments if segment.keeper]
    assert sorted(held) == sorted(before)


def rejoined():
    """c1 was lost, and is back at other ports: it follows the rounds."""
    setups, plan = setups_of(tiny_job(), parts=(2, 1, 3))
    rings = RunRings(plan, setups, {name: PeerAddress("192.0.2.1", 10 + i, 20) for i, name in enumerate(setups)})
    every = {str(segment.ring): segment.members for setup in setups.values() for segment in setup.segments}
    without = {ring: tuple(name for name in names if name != "c1.s0") for ring, names in every.items()}
    before = rings.reform(ReformRings(3, without, 7, ("c1.s0",)))
    assert all(message.peers == () for message in before.values())
    rings.begin_anew(plan, rings.of_cluster("c1"), {"c1.s0": PeerAddress("192.0.2.9", 77, 78)})
    last = {ring: (*names, "c1.s0") for ring, names in without.items()}
    return setups, rings, rings.reform(ReformRings(4, last, 7, (), ("c1",)))


def test_whoever_comes_is_told_of_all_and_all_are_told_where_it_listens():
    setups, _, told = rejoined()
    assert set(told) == set(setups)
    for message in told.values():
        at = {peer.stage: (peer.host, peer.pipeline_port) for peer in message.peers}
        assert set(at) == set(setups)
        assert at["c1.s0"] == ("192.0.2.9", 77)


def test_a_cluster_that_is_back_has_its_place_in_the_rings_again_and_keeps_nothing():
    setups, rings, told = rejoined()
    for name, message in told.items():
        assert [ring.members for ring in message.rings] == [each.members for each in setups[name].segments]
    assert not any(ring.keeper for ring in told["c1.s0"].rings)
    assert {setup.cluster for setup in rings.training().values()} == {"c0", "c2"}
    rings.trains("c1")
    assert set(rings.training()) == set(setups)


def test_a_stage_tells_of_members_of_its_own_rings_alone():
    setups, rings, _ = reformed("c1")
    name, setup = next((name, setup) for name, setup in rings.setups.items() if name == "c0.s0")
    figures = (1.0, 0.5, 0.9, 8.0)
    own = setup.segments[0]
    elsewhere = next(each.ring for other in setups.values() for each in other.segments if name not in each.members)

    def told(stage, ring, *members, digests=(), epoch=1):
        seen, of = dict.fromkeys(members, figures), dict.fromkeys(digests, ("00",))
        return rings.members_of(stage, em.ContributionsSeen(round=1, ring=ring, epoch=epoch, members=seen, digests=of))

    assert told(name, own.ring, *own.members, digests=own.members) == own.members
    assert told(name, own.ring) == own.members
    assert not told(name, own.ring, *own.members, "c1.s0")  # it has left
    assert not told(name, own.ring, "nobody")
    assert not told(name, own.ring, digests=["nobody"])
    assert not told(name, elsewhere)
    assert not told(name, own.ring, epoch=1000), "it would wipe out what the others tell in this one"
    assert not told("c1.s0", own.ring, *own.members)
