from ravnest.dht.contacts import Address
from ravnest.dht.messages import AnyMessage, Find, Message, Ping, Pong
from ravnest.dht.requests import (
    AGAIN_FAILS_AFTER,
    FIRST_TIMEOUT_S,
    LEAST_TIMEOUT_S,
    LIE_S,
    MOST_BLOCKED,
    MOST_WAITING,
    SILENCE_S,
    Blacklist,
    Requests,
)
from ravnest.simulator.hash_table import Drawn

HERE, THERE = Address(bytes([10, 0, 0, 1]), 1), Address(bytes([10, 0, 0, 2]), 1)


class Asker:
    """Asks, and writes down what becomes of it."""

    def __init__(self) -> None:
        self.sent: list[tuple[Address, AnyMessage]] = []
        self.heard: list[str] = []
        self.requests = Requests(Drawn("asker").bytes, lambda to, message: self.sent.append((to, message)))

    def ask(self, address: Address = THERE, now_s: float = 0.0, though_silent: bool = False) -> bool:
        return self.requests.ask(
            address,
            lambda nonce: Ping(nonce=nonce, sender=bytes(20), listens=True),
            now_s,
            expects=Pong,
            on_answer=lambda _, __: self.heard.append("answer"),
            on_failure=lambda _: self.heard.append("failure"),
            on_late=lambda _: self.heard.append("late"),
            though_silent=though_silent,
        )

    def pong(self, which: int = -1) -> Message:
        return Pong(nonce=self.sent[which][1].nonce, sender=bytes(20), public_key=bytes(32), signature=bytes(64))


def test_an_answer_counts_once_from_the_address_that_was_asked_and_of_the_kind_that_was_expected() -> None:
    asker = Asker()
    assert asker.ask()
    pong = asker.pong()
    find = Find(nonce=pong.nonce, sender=bytes(20), listens=True, target=bytes(20))
    assert not asker.requests.arrived(HERE, pong, 0.1)
    assert not asker.requests.arrived(THERE, find, 0.1)
    assert asker.requests.arrived(THERE, pong, 0.1)
    assert not asker.requests.arrived(THERE, pong, 0.1)
    assert asker.heard == ["answer"]
    assert asker.requests.next_s is None


def test_what_is_late_is_sent_again_and_then_given_up() -> None:
    asker = Asker()
    asker.ask()
    assert asker.requests.next_s == FIRST_TIMEOUT_S
    asker.requests.pass_time(FIRST_TIMEOUT_S)
    assert len(asker.sent) == 2
    assert asker.sent[0] == asker.sent[1]
    fails_s = (1 + AGAIN_FAILS_AFTER) * FIRST_TIMEOUT_S
    assert asker.requests.next_s == fails_s
    asker.requests.pass_time(fails_s)
    assert asker.heard == ["late", "failure"]
    assert (len(asker.requests), asker.requests.failed) == (0, 1)


def test_the_time_out_follows_what_was_measured() -> None:
    asker = Asker()
    for number in range(40):
        asker.ask(now_s=float(number))
        asker.requests.arrived(THERE, asker.pong(), number + 0.4)
    assert 0.4 < asker.requests.timeout_s < 0.5
    for number in range(40):
        asker.ask(now_s=float(number))
        asker.requests.arrived(THERE, asker.pong(), number + 0.001)
    assert asker.requests.timeout_s == LEAST_TIMEOUT_S


def test_answers_that_all_come_after_the_time_out_make_it_longer() -> None:
    asker, now_s = Asker(), 0.0
    for _ in range(30):
        asker.ask(now_s=now_s)
        asker.requests.pass_time(now_s + 1.4)
        asker.requests.arrived(THERE, asker.pong(), now_s + 1.5)
        now_s += 2.0
    assert 1.5 < asker.requests.timeout_s < 2.0
    assert asker.heard[-1] == "answer"
    assert "late" not in asker.heard[-5:]


def test_a_process_that_did_not_run_for_long_still_waits_for_what_it_sends_again() -> None:
    asker = Asker()
    asker.ask()
    asker.requests.pass_time(60.0)
    assert asker.heard == ["late"]
    assert asker.requests.arrived(THERE, asker.pong(), 60.1)
    assert asker.heard == ["late", "answer"]


def test_answers_that_come_after_the_request_has_failed_make_the_time_out_longer_too() -> None:
    asker, now_s = Asker(), 0.0
    for number in range(40):
        asker.ask(now_s=float(number))
        asker.requests.arrived(THERE, asker.pong(), number + 0.001)
    now_s = 100.0
    for _ in range(8):
        asker.ask(now_s=now_s)
        for _ in range(2):
            asker.requests.pass_time(asker.requests.next_s or 0.0)
        asker.requests.arrived(HERE, asker.pong(), now_s + 2.0)  # of nobody who was asked: it counts for nothing
        assert not asker.requests.arrived(THERE, asker.pong(), now_s + 2.0)
        assert not asker.requests.blacklist.is_blocked(THERE, now_s + 2.0)
        now_s += 10.0
    assert asker.heard[-1] == "failure"
    assert asker.requests.timeout_s > 2.0


def test_requests_that_wait_are_limited() -> None:
    asker = Asker()
    assert all(asker.ask() for _ in range(MOST_WAITING))
    assert not asker.ask()
    assert len(asker.sent) == MOST_WAITING


def test_who_is_silent_is_left_alone_longer_each_time_until_it_answers() -> None:
    asker, now_s, pauses = Asker(), 0.0, []
    for _ in range(4):
        while not asker.ask(now_s=now_s):
            now_s += 1
        for _ in range(2):
            now_s = asker.requests.next_s or 0.0
            asker.requests.pass_time(now_s)
        pauses.append(
            next(pause for pause in range(10**4) if not asker.requests.blacklist.is_blocked(THERE, now_s + pause))
        )
    assert pauses == [0, SILENCE_S, 2 * SILENCE_S, 4 * SILENCE_S]
    assert not asker.requests.blacklist.is_unheard(THERE, now_s)
    asker.requests.blacklist.answered(THERE)
    assert not asker.requests.blacklist.is_blocked(THERE, now_s)


def test_many_requests_that_one_silence_leaves_unanswered_count_once_and_a_greeting_is_sent_all_the_same() -> None:
    asker = Asker()
    for silence in range(2):
        began_s = 100.0 * silence
        for number in range(30):
            asker.ask(now_s=began_s + 0.01 * number)
        while asker.requests.next_s is not None:
            now_s = asker.requests.next_s
            asker.requests.pass_time(now_s)
        assert asker.requests.blacklist.is_blocked(THERE, now_s) == (silence == 1)
    assert not asker.requests.blacklist.is_blocked(THERE, now_s + SILENCE_S)
    assert not asker.ask(now_s=now_s)
    assert asker.ask(now_s=now_s, though_silent=True)
    asker.requests.blacklist.lied(THERE, now_s)
    assert not asker.ask(now_s=now_s, though_silent=True)


def test_who_lies_is_not_listened_to_and_no_answer_makes_up_for_it() -> None:
    blacklist = Blacklist()
    blacklist.lied(THERE, 0.0)
    blacklist.answered(THERE)
    assert blacklist.is_unheard(THERE, LIE_S - 1)
    assert not blacklist.is_unheard(THERE, LIE_S)
    blacklist.lied(THERE, LIE_S)
    assert blacklist.is_blocked(THERE, 3 * LIE_S - 1)
    assert (blacklist.blocked(LIE_S), blacklist.blocked(4 * LIE_S)) == (1, 0)


def test_a_flood_of_addresses_does_not_fill_the_list() -> None:
    blacklist = Blacklist()
    for port in range(1, MOST_BLOCKED + 100):
        blacklist.lied(Address(bytes(4), port), 0.0)
    assert len(blacklist) == MOST_BLOCKED
