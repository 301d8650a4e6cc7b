from ravnest.runtime.pace import Pacer


class Clock:
    def __init__(self):
        self.now_s = 100.0
        self.slept_s = []

    def now(self):
        return self.now_s

    def sleep(self, duration_s):
        self.slept_s.append(duration_s)
        self.now_s += duration_s

    def working(self, duration_s, result=None):
        def work():
            self.now_s += duration_s
            return result

        return work


def test_quick_work_is_padded_to_its_target():
    clock = Clock()
    pacer = Pacer(clock.sleep, clock.now)
    assert pacer.run(2.0, clock.working(0.5, "done")) == "done"
    assert clock.now_s == 102.0
    assert (pacer.padded_s, pacer.late_s) == (1.5, 0.0)


def test_slow_work_is_counted_as_late_and_not_padded():
    clock = Clock()
    pacer = Pacer(clock.sleep, clock.now)
    pacer.run(2.0, clock.working(2.0))
    pacer.run(2.0, clock.working(3.0))
    assert clock.slept_s == []
    assert (pacer.padded_s, pacer.late_s) == (0.0, 1.0)
