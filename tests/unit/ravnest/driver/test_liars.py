"""Who is found to lie by what members see of contributions, in rules and in whole runs in one thread."""

from dataclasses import replace

import msgspec
import pytest
import torch

from ravnest.driver.liars import LOOKED_AT, STRIKES, LiarWatch, agreed_on, odd_ones
from ravnest.stage.epoch_messages import ContributionsSeen, MemberRefused
from ravnest.stage.messages import RingFinishedMessage
from ring_allreduce.ring import Chunk, ContributionFigures
from ring_allreduce.transport import Lane
from ring_allreduce.transport.in_process import InProcessEndpoint
from tests.support.local import local_run, tiny_job

STAGES = [f"c{number}.s0" for number in range(6)]
HONEST = ContributionFigures(norm=1.0, distance=0.4, cosine=0.9, weight=8.0)
TURNED = replace(HONEST, cosine=-0.9)
LONG = replace(HONEST, norm=9.0)


def ring_of(**changed):
    return {stage: changed.get(stage[:2], HONEST) for stage in STAGES}


def said(figures):
    return {name: (each.norm, each.distance, each.cosine, each.weight) for name, each in figures.items()}


def seen(number, members, digests=None, epoch=0):
    return ContributionsSeen(round=number, ring=0, epoch=epoch, members=members, digests=digests or {})


class Watched:
    """A watch that is told rounds by all stages alike, or by `tellers`."""

    def __init__(self):
        self.watch = LiarWatch(lambda stage: stage.partition(".")[0])
        self.round = 0

    def commit(self, figures, tellers=STAGES, told=None):
        self.round += 1
        for teller in tellers:
            members = said((told or {}).get(teller, figures))
            self.watch.saw(teller, seen(self.round, members), STAGES)
        self.watch.committed(self.round)
        return [(stage, reason) for stage, reason, _ in self.watch.found()]


@pytest.mark.parametrize(
    ("figures", "why"),
    [
        (LONG, "its norm was 9, theirs 1"),
        (TURNED, "its direction had the cosine -0.90 with theirs, which agreed by 0.90"),
        (replace(HONEST, norm=0.01, cosine=0.0), None),  # who has made little is short
        (replace(HONEST, norm=9.0, weight=32.0), None),  # who has made much is long,
        (replace(HONEST, norm=30.0, weight=1e12), "its norm was 30, theirs 1"),  # and a claim excuses no more than that
        (replace(HONEST, norm=9.0, weight=0.0), None),  # who has no weight has no part
    ],
)
def test_what_is_odd_about_one_contribution(figures, why):
    assert odd_ones(ring_of(c2=figures)) == ({} if why is None else {"c2.s0": why})


def test_nobody_is_odd_where_the_others_do_not_agree_or_are_too_few():
    apart = {stage: replace(HONEST, cosine=0.1) for stage in STAGES}
    assert odd_ones({**apart, "c2.s0": TURNED}) == {}
    assert odd_ones({stage: LONG if stage == "c2.s0" else HONEST for stage in STAGES[:3]}) == {}
    still = replace(HONEST, norm=0.0)
    assert odd_ones({stage: HONEST if stage == "c2.s0" else still for stage in STAGES}) == {}


def test_a_cluster_is_found_out_after_several_odd_rounds_and_once():
    rounds = Watched()
    for _ in range(STRIKES - 1):
        assert rounds.commit(ring_of(c2=LONG)) == []
    assert rounds.commit(ring_of()) == []  # one that is as it should be proves nothing either
    ((stage, reason),) = rounds.commit(ring_of(c2=TURNED))
    assert stage == "c2.s0"
    assert reason.startswith("its contributions to 3 of its last 4 rounds were not like the others': its direction had")
    assert rounds.watch.shut_out == {"c2"}
    assert rounds.commit(ring_of(c2=TURNED)) == []


def test_odd_rounds_that_are_far_apart_find_nobody():
    rounds = Watched()
    for _ in range(4 * STRIKES):
        assert rounds.commit(ring_of(c2=LONG)) == []
        for _ in range(LOOKED_AT // 2):
            assert rounds.commit(ring_of()) == []


def test_two_of_six_that_say_so_have_nobody_shut_out_and_do_not_hide_themselves():
    rounds = Watched()
    lies = ring_of(c1=LONG)
    for number in range(1, LOOKED_AT + 1):
        truth = ring_of(c2=LONG)
        found = rounds.commit(truth, told={"c2.s0": lies, "c3.s0": lies})
        assert [stage for stage, _ in found] == (["c2.s0"] if number == STRIKES else [])


def test_what_one_stage_says_of_itself_does_not_count():
    seen = {"a": {"a": LONG, "b": HONEST}, "b": {"a": HONEST, "b": LONG}}
    assert agreed_on(seen) == {"a": HONEST, "b": HONEST}


def test_half_that_tell_are_too_few():
    rounds = Watched()
    for _ in range(LOOKED_AT):
        assert rounds.commit(ring_of(c2=LONG), tellers=STAGES[:3]) == []


def test_a_liar_that_tells_nothing_hides_nothing_even_in_the_smallest_ring():
    watch = LiarWatch(lambda stage: stage.partition(".")[0])
    few, members = STAGES[:4], said({stage: LONG if stage == "c2.s0" else HONEST for stage in STAGES[:4]})
    for number in range(1, STRIKES + 1):
        for teller in few:
            if teller != "c2.s0":
                watch.saw(teller, seen(number, members), few)
        watch.committed(number)
    assert [stage for stage, *_ in watch.found()] == ["c2.s0"]


def test_the_figures_of_each_committed_round_are_told_once_and_late_ones_are_dropped():
    rounds = Watched()
    rounds.commit(ring_of())
    (line,) = rounds.watch.lines()
    assert (line["round"], line["ring"]) == (1, 0)
    assert line["members"]["c0.s0"] == {"norm": 1.0, "distance": 0.4, "cosine": 0.9, "weight": 8.0}
    rounds.watch.saw("c0.s0", seen(1, said(ring_of(c2=LONG))), STAGES)
    rounds.watch.committed(1)
    assert rounds.watch.lines() == []


def lie(run, stage, change):
    """Have a stage contribute what `change` makes of its progress."""
    rings = run.stages[stage].rings
    honest = rings.contribute
    rings.contribute = lambda number, parts: honest(number, [replace(p, vector=change(p.vector)) for p in parts])


def five_clusters(**averaging):
    """Five clusters of one stage, of which each makes an update in each round."""
    sgd = {"name": "sgd", "lr": 0.2}
    job = tiny_job(averaging=averaging, average_every=60, stop={"samples": 360}, optimizer=sgd)
    return local_run(job, parts=(1,) * 5)


@pytest.fixture(scope="module")
def honest_loss():
    return five_clusters().run().evaluations[-1].loss[0]


@pytest.mark.parametrize("robust", ["trimmed_mean", "centred_clipping"])
def test_a_run_shuts_a_liar_out_and_learns_as_an_honest_one_does(robust, honest_loss):
    run = five_clusters(robust=robust)
    lie(run, "c3.s0", lambda vector: -20.0 * vector)
    result = run.run()
    assert [(lost.cluster, lost.left) for lost in result.lost] == [("c3", ("c0", "c1", "c2", "c4"))]
    assert "not like the others'" in result.lost[0].reason
    assert "c3" not in run.control.clusters
    assert {line["round"] for line in result.contributions} == set(range(1, run.control.rounds_committed + 1))
    first = result.contributions[0]["members"]
    assert first["c3.s0"]["norm"] > 10 * first["c0.s0"]["norm"]
    assert result.evaluations[-1].loss[0] < 1.05 * honest_loss


def test_a_run_without_a_robust_rule_tells_nothing_and_is_ruined(honest_loss):
    run = five_clusters()
    lie(run, "c3.s0", lambda vector: -20.0 * vector)
    result = run.run()
    assert result.contributions == []
    assert result.lost == []
    assert not result.evaluations[-1].loss[0] < 1.5 * honest_loss


def told_by(tellers, **changed):
    """What these stages tell of all contributions in a round; `changed` has what one of them tells of c2's."""
    members = said(ring_of())
    for teller in tellers:
        digests = {stage: (changed.get(teller[:2], "same") if stage == "c2.s0" else "same",) for stage in STAGES}
        yield teller, members, digests


def test_who_is_at_odds_is_found_before_the_commit_and_may_come_back():
    watch = LiarWatch(lambda stage: stage.partition(".")[0])
    for teller, members, digests in told_by(STAGES, c4="other"):
        assert watch.found() == []
        watch.saw(teller, seen(1, members, digests), STAGES)
    ((stage, reason, spoils),) = watch.found()
    assert (stage, spoils) == ("c4.s0", True)
    assert "c2.s0's contribution" in reason
    assert watch.shut_out == set()
    watch.committed(1)
    assert watch.found() == []


def test_a_round_that_starts_again_is_compared_again_and_what_was_told_before_is_forgotten():
    watch = LiarWatch(lambda stage: stage.partition(".")[0])
    told = {teller: (members, digests) for teller, members, digests in told_by(STAGES, c0="x", c1="y", c3="z", c4="w")}
    for teller in STAGES[:5]:
        watch.saw(teller, seen(1, *told[teller]), STAGES)
    for teller, members, digests in told_by(STAGES[:5]):
        watch.saw(teller, seen(1, members, digests, epoch=1), STAGES[:5])
    watch.saw("c5.s0", seen(1, *told["c5.s0"]), STAGES)  # late
    watch.committed(1)
    assert watch.found() == []


def test_what_was_told_of_a_round_stays_where_its_average_is_handed_on_in_the_next_epoch():
    watch = LiarWatch(lambda stage: stage.partition(".")[0])
    for teller, members, digests in told_by(STAGES[:5]):
        watch.saw(teller, seen(1, members, digests), STAGES)
    watch.saw("c5.s0", RingFinishedMessage(round=1, ring=0, epoch=1, hops={}), STAGES)
    watch.committed(1)
    (line,) = watch.lines()
    assert set(line["members"]) == set(STAGES)


def test_nobody_ends_the_comparison_by_naming_nobody_but_itself():
    watch = LiarWatch(lambda stage: stage.partition(".")[0])
    watch.saw("c2.s0", seen(1, said({"c2.s0": HONEST}), {"c2.s0": ("same",)}), STAGES)
    for teller, members, digests in told_by([each for each in STAGES if each != "c2.s0"], c0="x", c1="y"):
        watch.saw(teller, seen(1, members, digests), STAGES)
    assert {stage for stage, *_ in watch.found()} == {"c0.s0", "c1.s0"}


def test_who_tells_nothing_is_compared_before_the_commit_too():
    watch = LiarWatch(lambda stage: stage.partition(".")[0])
    honest = [stage for stage in STAGES if stage != "c2.s0"]
    watch.saw("c2.s0", RingFinishedMessage(round=1, ring=0, epoch=0, hops={}), STAGES)
    for teller, members, digests in told_by(honest, c0="u", c1="v", c3="w", c4="x", c5="y"):
        assert watch.found() == []
        watch.saw(teller, seen(1, members, digests), STAGES)
    assert [(stage, spoils) for stage, _, spoils in watch.found()] == [("c2.s0", True)]


def sends_apart(monkeypatch, stage, to, change=lambda tensor: tensor + 0.01, **fields):
    """Have a stage send the peers `to` other numbers than the rest, in chunks with other `fields`."""
    honest = InProcessEndpoint.send

    def send(self, peer, lane, message, tensors=()):
        if self.name == stage and peer in to and lane is Lane.BULK and isinstance(message, Chunk):
            tensors = [change(tensor) for tensor in tensors]
            message = msgspec.structs.replace(message, **fields)
        honest(self, peer, lane, message, tensors)

    monkeypatch.setattr(InProcessEndpoint, "send", send)


def test_a_run_shuts_out_who_sends_the_others_different_numbers_and_no_average_of_it_is_merged(
    monkeypatch, honest_loss
):
    sends_apart(monkeypatch, "c3.s0", {"c0.s0", "c1.s0", "c2.s0"})
    run = five_clusters(robust="trimmed_mean")
    result = run.run()
    ((lost,),) = [result.lost]
    assert (lost.cluster, lost.left) == ("c3", ("c0", "c1", "c2", "c4"))
    assert "what it says of its contribution" in lost.reason or "different contributions" in lost.reason
    rounds = [line["round"] for line in result.contributions]
    assert rounds[0] == 1
    assert "c3.s0" not in result.contributions[0]["members"]
    assert result.evaluations[-1].loss[0] < 1.05 * honest_loss


def test_a_run_loses_who_was_sent_other_numbers_and_goes_on_where_nobody_knows_which_one_lies(monkeypatch):
    sends_apart(monkeypatch, "c3.s0", {"c0.s0"})
    result = five_clusters(robust="trimmed_mean").run()
    assert [lost.cluster for lost in result.lost] == ["c0"]
    assert "one of the two lies" in result.lost[0].reason
    assert "c0.s0" not in result.contributions[0]["members"]


def not_finite(tensor):
    return torch.full_like(tensor, float("nan"))


@pytest.mark.parametrize("robust", ["none", "trimmed_mean"])
@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (not_finite, {}),
        (torch.Tensor.double, {}),
        (lambda tensor: tensor[1:], {}),
        (torch.clone, {"counters": (7,)}),  # which is judged when the others contribute
        (torch.clone, {"ring": "of nobody"}),
        (torch.clone, {"round": 10**6}),
    ],
)
def test_a_run_loses_who_sends_what_cannot_be_averaged_and_goes_on(monkeypatch, honest_loss, robust, change, fields):
    sends_apart(monkeypatch, "c3.s0", set(STAGES), change, **fields)
    result = five_clusters(robust=robust).run()
    assert [lost.cluster for lost in result.lost] == ["c3"]
    assert "cannot average what it gave" in result.lost[0].reason
    assert result.evaluations[-1].loss[0] < 1.05 * honest_loss


def refuses(member):
    return MemberRefused(round=0, ring=0, epoch=0, member=member, reason="NaN")


def test_who_is_refused_leaves_and_is_shut_out_once_more_say_so_than_can_lie():
    watch = LiarWatch(lambda stage: stage.partition(".")[0])
    for teller in STAGES[:3]:
        watch.saw(teller, refuses("c4.s0"), STAGES)
    ((stage, _, spoils), *_) = watch.found()
    assert (stage, spoils) == ("c4.s0", False)
    assert watch.shut_out == {"c4"}


def test_who_refuses_itself_or_is_in_no_such_ring_is_not_believed():
    watch = LiarWatch(lambda stage: stage.partition(".")[0])
    watch.saw("c1.s0", refuses("c1.s0"), STAGES)
    watch.saw("c1.s0", refuses("c2.s0"), ())
    assert watch.found() == []
