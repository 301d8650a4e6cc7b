import pytest

from ravnest.collaboration.promises import FIRST_PATIENCE_S, LEAST_PATIENCE_S, MOST_BROKEN, RECENT, Asked, Promises


def asked(step: int = 0, samples: int = 20, until_s: float = 10.0, *, alone: bool = False) -> Asked:
    return Asked(step, samples, until_s, alone)


def test_what_is_asked_may_come_until_its_time_is_over() -> None:
    promises = Promises()
    assert not promises.is_asked("a", 0, 0.0)
    promises.ask("a", asked())
    assert promises.is_asked("a", 0, 9.9)
    assert not promises.is_asked("a", 0, 10.0)
    assert not promises.is_asked("a", 1, 9.9)
    assert promises.samples("a") == 20
    assert promises.samples("b") == 0


def test_who_broke_its_word_is_doubted_until_it_has_kept_it_twice_as_often_each_time() -> None:
    promises = Promises()
    for broken in (1, 2, 3):
        promises.broke("a")
        for _ in range(2**broken):
            assert promises.doubts("a")
            promises.ask("a", asked())
            promises.came("a", 0, 20, 1.0)
        assert not promises.doubts("a")


def test_a_word_is_broken_by_less_than_was_asked_and_not_kept_by_what_comes_late_or_for_another_step() -> None:
    promises = Promises()
    promises.ask("a", asked())
    promises.came("a", 0, 10, 1.0)
    assert promises.doubts("a")
    for step, now_s in ((0, 11.0), (1, 1.0)):
        for _ in range(5):
            promises.ask("a", asked())
            promises.came("a", step, 20, now_s)
        assert promises.doubts("a")


def test_it_is_told_who_alone_was_asked() -> None:
    promises = Promises()
    promises.ask("a", asked(alone=True))
    assert promises.came("a", 0, 20, 1.0)
    assert not promises.came("a", 0, 20, 1.0)
    promises.ask("b", asked())
    assert not promises.came("b", 0, 20, 1.0)


def test_what_is_refused_breaks_the_word_for_that_step() -> None:
    promises = Promises()
    assert not promises.refused("a", 0)
    promises.ask("a", asked(alone=True))
    assert not promises.refused("a", 1)
    assert promises.refused("a", 0)
    assert promises.doubts("a")
    assert not promises.is_asked("a", 0, 1.0)


def test_what_is_taken_back_is_nobodys_word() -> None:
    promises = Promises()
    promises.ask("a", asked())
    promises.take_back("a")
    assert promises.samples("a") == 0
    assert not promises.came("a", 0, 10, 1.0)
    assert not promises.doubts("a")


def test_doubts_do_not_grow_without_end() -> None:
    promises = Promises()
    for _ in range(MOST_BROKEN + 5):
        promises.broke("a")
    for _ in range(2**MOST_BROKEN):
        promises.ask("a", asked())
        promises.came("a", 0, 20, 1.0)
    assert not promises.doubts("a")


def test_who_has_left_is_not_known_any_more() -> None:
    promises = Promises()
    promises.broke("a")
    promises.ask("a", asked())
    promises.forget("a")
    assert not promises.doubts("a")
    assert promises.samples("a") == 0


@pytest.mark.parametrize(
    ("took_s", "patience_s"),
    [
        ([], FIRST_PATIENCE_S),
        ([("a", 3.0)], 12.0),
        ([("a", 0.1)], LEAST_PATIENCE_S),
        ([("a", 1.0), ("b", 1.0), ("liar", 100.0)], 16.0),
        ([("a", 50.0), *[("a", 2.0)] * RECENT], 8.0),
    ],
)
def test_patience_follows_what_contributions_took(took_s: list[tuple[str, float]], patience_s: float) -> None:
    promises = Promises()
    for peer, seconds in took_s:
        promises.took(peer, seconds)
    assert promises.patience_s == patience_s
