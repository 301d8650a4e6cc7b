import pytest

from experiments.collaboration import joins


def test_who_joins_makes_a_step_and_the_others_are_not_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joins, "WIDTH", 64)
    part = joins.measure(quick=True)
    assert part.claims[0].measured == "0 of 12"
    alone, together = zip(*[row[1:] for row in part.tables[1].rows], strict=True)
    assert max(abs(one - other) for one, other in zip(alone, together, strict=True)) < 1.0
