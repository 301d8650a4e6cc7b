"""What the owner of a group answers, and that nothing a member says goes unchecked."""

import math

import pytest

from ring_allreduce.group import control_messages as c
from ring_allreduce.group.liveness import Report
from ring_allreduce.group.owner import GroupOwner
from ring_allreduce.rounds.deadlines import Patience

WHERE = c.MemberAddress("127.0.0.1", 1, 2)


def join(name, size=3):
    return c.JoinMessage(name=name, size=size, address=WHERE)


def met(names="abc"):
    owner = GroupOwner(len(names), Patience())
    for name in names:
        reason, _ = owner.join(join(name, len(names)), 0.0)
        assert reason is None
    answer(owner)
    return owner


def answer(owner, epoch=1, forms=None, rounds=None):
    """All answer the last Reformed; what the last one's answer led to."""
    for name in owner.members:
        held = c.HeldMessage(epoch=epoch, rounds=(rounds or {}).get(name, []), form=(forms or {}).get(name, ""))
        said = owner.take(name, held, 1.0)
    return said


def test_the_group_begins_when_all_have_joined():
    owner = GroupOwner(2, Patience())
    assert owner.join(join("b", 2), 0.0) == (None, [])
    assert not owner.begun
    _, ((told, reformed),) = owner.join(join("a", 2), 0.0)
    assert (tuple(told), list(reformed.members), reformed.epoch) == (("a", "b"), ["a", "b"], 1)
    assert owner.join(join("c", 2), 0.0) == ("the group is complete", [])
    said = answer(owner)
    assert said == [([name], c.ResumedMessage(epoch=1, kept=[], hand_on=[], first_round=1)) for name in "ab"]


def test_who_leaves_before_the_group_begins_makes_room():
    owner = GroupOwner(2, Patience())
    owner.join(join("a", 2), 0.0)
    assert owner.take("a", c.AliveMessage(report=Report()), 0.5) == []
    assert owner.lost("a", "it left", 1.0) == []
    assert owner.join(join("a", 2), 2.0) == (None, [])
    assert owner.take("a", c.FinishedMessage(epoch=0, round=1), 3.0) is None, "there is nothing to finish yet"


def test_who_has_left_has_no_say_any_more():
    waiting, complete = GroupOwner(2, Patience()), met()
    waiting.join(join("a", 2), 0.0)
    for owner in (waiting, complete):
        owner.take("a", c.LeavingMessage(reason="enough"), 2.0)
        assert "a" not in owner.members
        for message in (c.AliveMessage(report=Report(round=1)), c.LeavingMessage(reason="again")):
            assert owner.take("a", message, 3.0) is None
        assert owner.check(1000.0) is not None


def test_a_round_is_committed_when_all_have_finished_it():
    owner = met()
    said = [owner.take(name, c.FinishedMessage(epoch=1, round=1), 2.0) for name in "abc"]
    assert said == [[], [], [(("a", "b", "c"), c.CommittedMessage(epoch=1, round=1))]]


def test_who_is_lost_is_told_and_the_others_begin_an_epoch():
    owner = met()
    owner.take("a", c.FinishedMessage(epoch=1, round=1), 2.0)
    (out, put_out), (told, reformed) = owner.lost("b", "killed", 3.0)
    assert (out, put_out) == (["b"], c.PutOutMessage(epoch=2, reason="killed", refused=False))
    assert (tuple(told), reformed.lost, list(reformed.members)) == (("a", "c"), {"b": "killed"}, ["a", "c"])
    (_, first), *_ = answer(owner, 2, rounds={"a": [1]})
    assert (first.kept, first.hand_on) == ([1], [c.HandingOn(1, "a", ["c"])])


def test_a_place_that_became_free_is_taken_by_a_newcomer():
    owner = met()
    owner.take("c", c.LeavingMessage(reason="enough"), 2.0)
    answer(owner, 2)
    reason, ((_, reformed),) = owner.join(join("d"), 3.0)
    assert reason is None
    assert (reformed.epoch, list(reformed.members)) == (3, ["a", "b", "d"])
    assert [said for _, said in answer(owner, 3) if said.first_round == 1]


def test_who_is_odd_in_what_it_averages_is_refused():
    owner = met()
    owner.take("a", c.SuspectedMessage(epoch=1, member="b", reason="5 numbers for 6"), 2.0)
    said = answer(owner, 2, forms={"a": "6", "b": "5", "c": "6"})
    assert said[0] == (["b"], c.PutOutMessage(epoch=3, reason="it averages 5, the others 6", refused=True))


@pytest.mark.parametrize(
    "message",
    [
        join("a"),
        c.WelcomeMessage(token=b"", alive_every_s=1.0),
        c.CommittedMessage(epoch=1, round=1),
        c.PutOutMessage(epoch=1, reason="", refused=False),
        c.RefusedMessage(reason=""),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_is_not_a_members_to_say_is_out_of_turn(message):
    assert met().take("a", message, 2.0) is None


@pytest.mark.parametrize(
    "message",
    [
        c.HeldMessage(epoch=1, rounds=[10**9, -1], form=""),
        c.FinishedMessage(epoch=7, round=1),
        c.SuspectedMessage(epoch=1, member="nobody", reason=""),
        c.SuspectedMessage(epoch=-3, member="b", reason=""),
        c.OverdueMessage(round=99, waited_s=1.0),
        c.OverdueMessage(round=1, waited_s=math.nan),
        c.AliveMessage(report=Report(-1, 0, -5, -5, "nobody")),
    ],
    ids=repr,
)
def test_what_means_nothing_changes_nothing(message):
    owner = met()
    assert owner.take("a", message, 2.0) == []
    assert owner.check(2.5) == []
    assert owner.members == ("a", "b", "c")


def test_a_round_that_is_not_open_puts_out_who_reports_it():
    said = met().take("a", c.FinishedMessage(epoch=1, round=5), 2.0)
    assert said[0] == (["a"], c.PutOutMessage(epoch=2, reason="it reported round 5, which is not open", refused=False))


def test_reasons_that_fill_frames_are_cut():
    owner = met()
    said = owner.take("a", c.LeavingMessage(reason="x" * 60_000), 2.0)
    assert all(len(c.framed(message)) < 2000 for _, message in said)


def test_a_silent_member_is_put_out():
    owner = met()
    for now_s in range(2, 40):
        for name in "ab":
            owner.take(name, c.AliveMessage(report=Report()), float(now_s))
        said = owner.check(float(now_s))
        if said:
            break
    assert said[0][0] == ["c"]
    assert said[0][1].reason.startswith("silent for")


def test_forms_are_compared_before_each_commit_and_what_was_made_with_the_odd_one_starts_again():
    owner = met()
    for name, form in (("a", "(2, 3)"), ("b", "(3, 2)")):
        assert owner.take(name, c.FinishedMessage(epoch=1, round=1, form=form), 2.0) == []
    said = owner.take("c", c.FinishedMessage(epoch=1, round=1, form="(2, 3)"), 2.0)
    assert said[0] == (["b"], c.PutOutMessage(epoch=2, reason="it averages (3, 2), the others (2, 3)", refused=True))
    assert not any(isinstance(message, c.CommittedMessage) for _, message in said)
    forms, rounds = dict.fromkeys("ac", "(2, 3)"), {name: [1] for name in "ac"}
    assert answer(owner, 2, forms, rounds) == [
        ([name], c.ResumedMessage(epoch=2, kept=[], hand_on=[], first_round=1)) for name in "ac"
    ]
    said = [owner.take(name, c.FinishedMessage(epoch=2, round=1, form="(2, 3)"), 3.0) for name in "ac"]
    assert said[1] == [(("a", "c"), c.CommittedMessage(epoch=2, round=1))]


def test_what_was_made_with_one_found_odd_at_a_barrier_starts_again():
    owner = met()
    owner.take("a", c.SuspectedMessage(epoch=1, member="b", reason="?"), 2.0)
    answer(owner, 2, dict(zip("abc", "xyx", strict=True)), {name: [1] for name in "abc"})
    said = answer(owner, 3, dict.fromkeys("ac", "x"), {name: [1] for name in "ac"})
    assert [message.kept for _, message in said] == [[], []]


def test_two_who_disagree_are_both_refused_before_the_commit():
    owner = met("ab")
    owner.take("a", c.FinishedMessage(epoch=1, round=1, form="x"), 2.0)
    said = owner.take("b", c.FinishedMessage(epoch=1, round=1, form="y"), 2.0)
    assert [(to, message.refused) for to, message in said] == [(["a"], True), (["b"], True)]


def test_who_is_inside_average_hears_that_the_rendezvous_lives_and_nobody_else():
    owner = met()
    assert owner.take("a", c.AliveMessage(report=Report(1, 1)), 2.0) == [(["a"], c.HeardMessage())]
    assert owner.take("a", c.AliveMessage(report=Report(1, 0)), 2.0) == []


def test_reports_of_no_sense_harm_nobody():
    owner = met()
    assert owner.take("a", c.AliveMessage(report=Report(-1, 10**9, -5, -5, "nobody")), 2.0) == [
        (["a"], c.HeardMessage())
    ]
    assert owner.check(2.5) == []
    assert owner.members == ("a", "b", "c")


def test_refusals_are_cut_to_what_a_frame_takes():
    owner = GroupOwner(2, Patience(), allowed={})
    stranger = c.JoinMessage(name="a", size=2, address=WHERE, allowed={"x" * 60_000: ""})
    reason, said = owner.join(stranger, 0.0)
    assert (len(reason), said, owner.members) == (c.MAX_REASON_CHARACTERS, [], ())
