from ravnest.driver.evaluating import Evaluations


def test_one_is_due_each_time_so_many_samples_are_made_and_one_at_a_time():
    evaluations = Evaluations(["b", "a"], 1000, 100)
    assert not evaluations.due(1099)
    assert evaluations.due(1100)
    assert evaluations.begin(["a", "b"], 1100) == "b"
    assert not evaluations.due(1250)
    evaluations.end()
    assert evaluations.due(1250)
    assert not evaluations.due(1299), "the two that were passed are one"
    assert evaluations.due(1300)


def test_it_is_that_of_the_cluster_that_was_asked_whoever_else_comes_meanwhile():
    evaluations = Evaluations(["b", "a"], 0, 100)
    assert evaluations.begin(["a"], 100) == "a"
    assert evaluations.is_of("a", 1)
    assert not evaluations.is_of("b", 1)
    evaluations.end()
    assert not evaluations.is_of("a", 1)
    assert evaluations.begin(["a", "b"], 140) == "b"
    assert (evaluations.number, evaluations.samples) == (2, 140)


def test_one_that_a_user_asks_for_is_due_at_once_and_moves_no_other():
    evaluations = Evaluations(["a"], 0, 100)
    evaluations.ask()
    assert evaluations.due(30)
    evaluations.begin(["a"], 30)
    evaluations.ask()
    assert not evaluations.due(40), "one is under way"
    evaluations.end()
    assert evaluations.due(41)
    assert not evaluations.due(99)
    assert evaluations.due(100)
