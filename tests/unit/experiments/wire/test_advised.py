from experiments.wire.advised import ADVISED, QUARTER, WAYS, run
from experiments.wire.forms import EXACT
from ravnest.planning.bottleneck_advice import PART, SHORTEST


def test_what_is_trained_is_what_a_plan_advises() -> None:
    assert [way.narrows for way in WAYS.values()] == [False, True, True]
    assert {way.width * PART for name, way in WAYS.items() if name != EXACT} == {64}
    assert (WAYS[QUARTER].wire, WAYS[ADVISED].wire) == (EXACT, SHORTEST)
    assert WAYS[ADVISED].ratio > 30
    assert all(way.alike for name, way in WAYS.items() if name != EXACT)


def test_what_int4_adds_is_judged() -> None:
    part = run(quick=True)
    (claim,) = part.claims
    assert claim.held is not None
    assert [row[0] for row in part.tables[0].rows] == list(WAYS)
    assert part.tables[0].rows[0][3] == 0
