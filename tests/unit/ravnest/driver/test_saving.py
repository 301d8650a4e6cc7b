from ravnest.driver.saving import Saving


def test_the_first_round_is_saved_and_then_one_after_each_so_many_samples():
    saving = Saving(0, 100)
    assert saving.due(0)
    saving.begin(1, ["x"], 10)
    assert not saving.due(500), "one is under way"
    assert saving.sent("x", 1)
    assert not saving.under_way
    assert not saving.due(109)
    assert saving.due(110)


def test_a_checkpoint_is_whole_when_every_stage_has_sent_its_state():
    saving = Saving(0, 100)
    saving.begin(1, ["x", "y"], 0)
    assert saving.expects(1)
    assert not saving.expects(2)
    assert [saving.sent("x", 1), saving.sent("y", 1)] == [False, True]


def test_one_that_is_given_up_is_due_again_at_once_and_what_still_comes_of_it_is_known():
    saving = Saving(0, 100)
    saving.begin(1, ["x", "y", "z"], 0)
    saving.sent("x", 1)
    assert saving.abandon(["y"], 30) == [1]
    assert saving.due(30)
    assert saving.arriving(1)
    assert saving.expects(1)
    assert not saving.sent("z", 1)
    assert not saving.arriving(1)


def test_a_loss_without_a_checkpoint_under_way_changes_nothing():
    saving = Saving(0, 100)
    saving.begin(1, ["x"], 0)
    saving.sent("x", 1)
    assert saving.abandon(["x"], 50) == []
    assert not saving.due(50)


def test_one_that_a_user_asks_for_is_due_with_the_next_round_that_can_be_saved():
    saving = Saving(0, 100)
    saving.begin(1, ["x"], 0)
    saving.ask()
    assert not saving.due(10), "one is under way"
    saving.sent("x", 1)
    assert saving.due(10)
    saving.begin(2, ["x"], 10)
    saving.sent("x", 2)
    assert not saving.due(20)
