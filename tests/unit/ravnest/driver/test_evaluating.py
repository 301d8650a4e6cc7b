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
