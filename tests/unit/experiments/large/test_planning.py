"""What the figures of planning bear out, and what they do not."""

from typing import Any

from experiments.large.planning import MODELS as ALL
from experiments.large.planning import SMALL, VALUES, Model, Row, claims_of, part_of

LARGE = Model("8 B", 32, 4096, 14_336, 32, 128_256, 24, 24.0, 90.0)


def row(model: Model, check: str, **changes: Any) -> Row:
    found = {
        "units": 10,
        "largest_unit_bytes": 2**30,
        "parameter_bytes": 2**32,
        "stages": 4,
        "with_values": check == VALUES,
        "digests": {"costs": "a", "cuts": "b", "plan": "c"},
        "seconds": 30.0,
        "cpu_s": 20.0,
        "peak_bytes": 2**30,
    }
    return Row(model, check, found | changes)


def verdicts(*rows: Row) -> dict[str, bool | None]:
    return {claim.name: claim.held for claim in claims_of(rows)}


def test_plans_with_and_without_weights_have_to_be_the_same_in_each_part() -> None:
    small = [row(SMALL, check) for check in (VALUES, "full", "sampled", "none")]
    assert verdicts(*small)["same plan"] is True
    for part in ("costs", "cuts", "plan"):
        changed = row(SMALL, "none", digests={**small[0].found["digests"], part: "other"})
        claim = claims_of([*small[:3], changed])[0]
        assert (claim.held, claim.measured) == (False, f"other {part}")


def test_plans_that_were_captured_in_the_same_way_show_nothing() -> None:
    small = [row(SMALL, check) for check in (VALUES, "full", "none")]
    assert verdicts(*small[1:])["same plan"] is None
    assert verdicts(*small[:2])["same plan"] is None
    assert verdicts(small[0], Row(SMALL, "none", {"refused": "no", "seconds": 1.0}))["same plan"] is None
    assert verdicts(row(SMALL, VALUES, with_values=False), *small[1:])["same plan"] is None
    assert verdicts(*small[:2], row(SMALL, "none", with_values=True))["same plan"] is None


def test_time_and_memory_are_held_to_their_bounds() -> None:
    small = row(SMALL, "full")
    good = verdicts(small, row(LARGE, "none", peak_bytes=int(3.5 * 2**30)))
    assert (good["8 B, --check none: time"], good["8 B, --check none: memory"]) == (True, True)
    slow = verdicts(small, row(LARGE, "none", seconds=91.0, peak_bytes=int(3.5 * 2**30) + 1))
    assert (slow["8 B, --check none: time"], slow["8 B, --check none: memory"]) == (False, False)
    assert "0.1 B, --check full: memory" not in good


def test_what_was_refused_is_told_and_proves_nothing() -> None:
    refused = Row(LARGE, "sampled", {"refused": "no room", "seconds": 2.0, "cpu_s": 1.0, "peak_bytes": 2**28})
    part = part_of([row(SMALL, "full"), row(SMALL, "none"), refused])
    assert [claim.held for claim in part.claims if "8 B" in claim.name] == [None]
    assert "8 B, sampled: no room" in part.notes
    assert len(part.tables[0].rows) == 3
    assert all(len(cells) == len(part.tables[0].columns) for cells in part.tables[0].rows)


def test_the_configurations_have_the_parameters_that_they_are_named_after() -> None:
    for model in ALL:
        head, embedding = model.hidden // model.heads, model.vocabulary * model.hidden
        attention = 2 * model.hidden**2 + 2 * model.hidden * head * min(8, model.heads)
        block = attention + 3 * model.hidden * model.intermediate + 2 * model.hidden
        billions = (model.layers * block + 2 * embedding + model.hidden) / 1e9
        assert abs(billions - float(model.name.split()[0])) < 0.6 * float(model.name.split()[0])
