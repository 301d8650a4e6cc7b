from ravnest.experts.request_queue import RequestQueue


def queue() -> RequestQueue[str, int]:
    return RequestQueue(most_samples=10, most_wait_s=1.0, most_waiting=30)


def test_a_batch_waits_for_a_time_or_a_size() -> None:
    waiting = queue()
    assert waiting.due_s() is None
    assert waiting.put("a", 1, 4, 0.0)
    assert (waiting.due_s(), waiting.take(0.9)) == (1.0, None)
    assert waiting.take(1.0) == ("a", [1])
    waiting.put("a", 2, 4, 2.0)
    waiting.put("a", 3, 6, 2.1)
    assert waiting.take(2.1) == ("a", [2, 3])
    assert (waiting.take(9.0), waiting.waiting) == (None, 0)


def test_a_batch_is_not_larger_than_allowed_unless_one_item_is() -> None:
    waiting = queue()
    for number, samples in enumerate((6, 6, 12)):
        waiting.put("a", number, samples, 0.0)
    assert [waiting.take(0.0), waiting.take(0.0), waiting.take(0.0)] == [("a", [0]), ("a", [1]), ("a", [2])]


def test_the_oldest_request_comes_first_however_full_another_batch_is() -> None:
    waiting = queue()
    waiting.put("alone", 1, 1, 0.0)
    waiting.put("busy", 2, 10, 0.5)
    assert waiting.take(0.6) == ("busy", [2])
    waiting.put("busy", 3, 10, 0.7)
    assert waiting.take(1.0) == ("alone", [1])


def test_what_does_not_fit_is_refused_and_dropping_makes_room() -> None:
    waiting = queue()
    assert [waiting.put("a", 1, 20, 0.0), waiting.put("b", 2, 11, 0.0), waiting.put("b", 3, 10, 0.0)] == [
        True,
        False,
        True,
    ]
    assert sorted(waiting.pending()) == ["a", "b"]
    assert (waiting.drop("a"), waiting.drop("a"), waiting.waiting) == ([1], [], 10)
    assert waiting.put("b", 2, 11, 0.0)
