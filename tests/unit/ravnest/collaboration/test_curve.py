import json

import pytest

from ravnest.collaboration.curve import Curve, samples_by


def test_a_step_s_loss_is_weighted_by_samples_and_the_next_one_begins_anew() -> None:
    curve = Curve(1000, 5.0)
    curve.heard(2, 2.0, 10)
    curve.heard(3, 9.0, 40)
    curve.heard(2, 1.0, 30)
    entry = curve.committed(3, {"a": 100, "b": 28}, 0.5, 7.5)
    told = {key: entry.fields[key] for key in ("step", "seconds", "samples", "samples_in_all", "peers", "loss")}
    assert told == {"step": 3, "seconds": 2.5, "samples": 128, "samples_in_all": 1128, "peers": 2, "loss": 1.25}
    assert entry.line == "step 3: 128 samples of 2 volunteers, loss 1.2500, 2.5 s"
    assert curve.committed(4, {"a": 100}, 0.5, 8.0).fields["loss"] == 9.0  # told before the step began
    assert curve.committed(5, {"a": 100}, float("inf"), 8.0).fields["loss"] is None


def test_an_entry_is_json_whatever_was_said() -> None:
    curve = Curve(0, 0.0)
    for _ in range(1000):
        curve.heard(0, 1e30, 1 << 53)
    json.dumps(dict(curve.committed(1, {}, float("inf"), 1.0).fields), allow_nan=False)


@pytest.mark.parametrize(
    ("step", "samples"),
    [(0, 0), (1, 70), (2, 150), (3, 215), (4, 279), (6, 407)],
    ids=["before the first", "first", "made again", "last", "after the last", "long after the last"],
)
def test_samples_are_counted_on_from_the_last_line_of_a_step(step: int, samples: int) -> None:
    made = [(1, 70), (2, 999), (3, 9999), (2, 150), (3, 215)]
    lines = [json.dumps({"step": at, "samples_in_all": in_all}).encode() for at, in_all in made]
    others = [b'{"step": 3, "held_out": {"loss": 1.0}}', b'{"step": 3, "samples_in', b"[3]", b"[" * 100_000]
    assert samples_by(step, [*lines, *others], 64) == samples
