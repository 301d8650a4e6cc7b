from ravnest.profiling.probes import LEAST_AHEAD_BYTES, Arrived, Block, Ping, Pong, ProbeMessage, RoundTrips, Transfer
from ring_allreduce.transport import Lane
from tests.support.wire import unbounded


def test_pings_go_one_at_a_time_until_count_and_time_are_reached() -> None:
    task = RoundTrips("b", Lane.PIPELINE, 3, 0.5, 0.0)
    now_s, number = 0.0, 0
    while not task.done:
        sent = task.turn(now_s, 1000.0 + now_s)
        if sent:
            assert sent == [ProbeMessage("b", Lane.PIPELINE, Ping(number=number))]
            assert task.turn(now_s, 0.0) == []
            now_s += 0.01
            task.handle("b", Pong(number=number, wall_s=1002.0 + now_s - 0.005), now_s)
            number += 1
        now_s += 0.001
    assert 0.5 <= now_s < 0.53
    assert len(task.round_trips_s) == number > 3
    assert all(abs(trip - 0.01) < 1e-9 for trip in task.round_trips_s)
    assert all(abs(offset - 2.0) < 1e-6 for offset in task.clock_offsets_s)


def test_answers_of_others_and_old_answers_do_not_count() -> None:
    task = RoundTrips("b", Lane.PIPELINE, 2, 0.0, 0.0)
    task.turn(0.0, 0.0)
    task.handle("c", Pong(number=0, wall_s=0.0), 0.1)
    task.handle("b", Pong(number=5, wall_s=0.0), 0.1)
    assert task.round_trips_s == []
    task.handle("b", Pong(number=0, wall_s=0.0), 0.2)
    task.handle("b", Pong(number=0, wall_s=0.0), 0.3)
    assert len(task.round_trips_s) == 1


def run(task: Transfer, rates: dict[str, float], latency_s: float = 0.02) -> float:
    """Blocks arrive at the peers' `rates`, answers come back at once. Returns when all had arrived."""
    now_s, free = 0.0, dict.fromkeys(rates, 0.0)
    coming: list[tuple[float, str, Arrived]] = []
    while not task.done and now_s < 60.0:
        for each in task.turn(now_s, 0.0):
            assert isinstance(each.message, Block)
            assert each.lane is Lane.BULK
            free[each.peer] = max(free[each.peer], now_s + latency_s) + each.n_bytes / rates[each.peer]
            arrived = Arrived(transfer=each.message.transfer, number=each.message.number)
            coming.append((free[each.peer], each.peer, arrived))
        coming.sort(key=lambda each: each[0])
        if coming:
            now_s, peer, message = coming.pop(0)
            task.handle(peer, message, now_s)
        else:
            now_s = task.due_s(now_s)
    return now_s


def test_a_transfer_keeps_the_link_busy_and_ends_soon_after_its_time() -> None:
    for rate in (1e6, 2e7):
        task = Transfer(1, ["b"], 4.0, 0.0)
        ended_s = run(task, {"b": rate})
        arrivals = task.arrivals["b"]
        late = [total for at_s, total in arrivals if at_s >= 2.0]
        assert (late[-1] - late[0]) / (arrivals[-1][0] - 2.0) > 0.95 * rate
        assert ended_s < 5.5


def test_several_peers_are_served_at_once() -> None:
    task = Transfer(1, ["b", "c"], 4.0, 0.0)
    run(task, {"b": 4e6, "c": 1e6})
    totals = {peer: points[-1][1] for peer, points in task.arrivals.items()}
    assert totals["b"] > 12e6
    assert 3e6 < totals["c"] < 7e6


def test_nothing_is_sent_beyond_what_may_be_on_its_way() -> None:
    task = Transfer(1, ["b"], 4.0, 0.0)
    assert sum(each.n_bytes for each in task.turn(0.0, 0.0)) <= LEAST_AHEAD_BYTES
    assert task.turn(0.1, 0.0) == []
    task.handle("b", Arrived(transfer=2, number=0), 0.1)
    assert task.turn(0.1, 0.0) == []  # of another transfer
    assert task.turn(4.1, 0.0) == []
    assert not task.done


def test_each_field_of_a_message_has_bounds() -> None:
    assert [unbounded(kind) for kind in (Ping, Pong, Block, Arrived)] == [[]] * 4
