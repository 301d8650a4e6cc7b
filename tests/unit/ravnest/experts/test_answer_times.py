from random import Random

from ravnest.experts.answer_times import FIRST_S, LEAST_S, MOST_REST_S, MOST_S, REST_S, ROW, AnswerTimes


def test_answers_that_come_together_do_not_hide_how_different_others_are() -> None:
    """A host with 64 requests answers them in batches of 8, each of which takes another time."""
    alone, many = AnswerTimes(), AnswerTimes()
    slow, late = (0.6, 1.8), 0
    for batch in range(200):
        for _ in range(8):
            seconds = slow[batch % 2]
            late += seconds > many.deadline_s and batch > 50
            alone.answered(seconds)
            many.answered(seconds, under_way=64)
    assert late == 0
    assert many.deadline_s > slow[1] + 0.5
    assert alone.deadline_s < many.deadline_s


def test_of_answers_with_exponential_delays_few_are_late() -> None:
    times, drawn, late = AnswerTimes(), Random(0), 0
    for answer in range(20_000):
        seconds = 1.0 + drawn.expovariate(1.0)
        late += seconds > times.deadline_s and answer > 50
        times.answered(seconds, under_way=64)
    assert late < 20_000 / 400


def test_the_deadline_follows_what_was_measured_within_bounds() -> None:
    times = AnswerTimes()
    assert (times.deadline_s, times.mean_s) == (FIRST_S, None)
    times.answered(0.01)
    assert times.deadline_s == LEAST_S
    for _ in range(100):
        times.answered(2.0)
    assert times.mean_s is not None
    assert 1.9 < times.mean_s < times.deadline_s < 2.2
    for _ in range(100):
        times.answered(100.0)
    assert times.deadline_s == MOST_S


def test_late_answers_make_the_deadline_longer() -> None:
    times = AnswerTimes()
    for _ in range(50):
        times.answered(1.0)
    before_s = times.deadline_s
    times.answered(2.0)
    assert times.deadline_s > before_s


def test_a_silence_doubles_the_deadline_until_an_answer_comes() -> None:
    times = AnswerTimes()
    times.answered(0.01)
    deadlines = []
    for silence in range(20):
        times.failed(float(silence), silence + 0.5)
        deadlines.append(times.deadline_s)
    assert deadlines[:3] == [2 * LEAST_S, 4 * LEAST_S, 8 * LEAST_S]
    assert deadlines[-1] == MOST_S
    times.answered(0.01)
    assert times.deadline_s == LEAST_S


def test_a_host_that_fails_in_a_row_rests_longer_each_time() -> None:
    times, now_s = AnswerTimes(), 0.0
    for _ in range(ROW - 1):
        times.failed(now_s, now_s)
    assert not times.rests(now_s)
    times.answered(0.1)
    for _ in range(ROW - 1):
        times.failed(now_s, now_s)
    assert not times.rests(now_s)
    rests = []
    for _ in range(8):
        times.failed(now_s, now_s)
        end_s = now_s
        while times.rests(end_s):
            end_s += 1.0
        rests.append(end_s - now_s)
        now_s = end_s
    assert rests[:3] == [REST_S, 2 * REST_S, 4 * REST_S]
    assert rests[-1] == MOST_REST_S
    times.answered(0.1)
    assert not times.rests(now_s)


def test_requests_of_one_silence_are_one_failure() -> None:
    times = AnswerTimes()
    for late in range(64):
        times.failed(0.0, 10.0 + late)
    assert not times.rests(80.0)
    for sent_s in (80.0, 90.0):
        times.failed(sent_s, sent_s + 1.0)
    assert times.rests(91.0)
    assert not times.rests(91.0 + REST_S)
