import pytest

from ravnest.formatting import beside_baselines, clause, duration, harmless, listed, loss_text, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0123, "12.3 ms"), (1.0, "1.0 s"), (59.97, "1 min 00 s"), (245, "4 min 05 s"), (12000, "3 h 20 min")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_sentence_goes_on_without_its_full_stop() -> None:
    assert clause("the disk is full.") == clause("the disk is full") == "the disk is full"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1.9e6, "1.9 MB"), (999_900, "1 MB"), (16e9, "16 GB"), (2e15, "2e+03 TB")],
)
def test_size(count: float, text: str) -> None:
    assert size(count) == text


def test_many_names_are_written_by_the_first_and_the_last() -> None:
    assert listed(["a", "b", "c"]) == "a, b, c"
    assert listed([f"n{i}" for i in range(9)]) == "n0, n1, n2 and 6 more"


def test_loss_may_be_missing() -> None:
    assert [loss_text(None), loss_text(1.23456)] == ["–", "1.235"]


def test_loss_beside_baselines() -> None:
    assert beside_baselines(2.01, {"bigram model": 2.32, "other": 1.9}) == (
        "held-out loss 2.01 · bigram model 2.32 (0.31 better) · other 1.90 (0.11 worse)"
    )
    assert beside_baselines(2.01, {}) == "held-out loss 2.01"


def test_what_others_say_does_nothing_to_a_terminal() -> None:
    assert harmless("é — 3 × 4") == "é — 3 × 4"
    assert harmless("a\x1b]0;title\x07\r\nravnest: done\u202e\ud800") == "a?]0;title?  ravnest: done??"
