import pytest

from experiments.scale.hierarchy import row_of


def test_a_ring_of_rings_is_set_beside_one_ring() -> None:
    members, megabytes, wire, groups, flat_s, grouped_s, flat_predicted_s, predicted_s, part = row_of(
        60, 200_000, simulated=True
    )
    assert (members, megabytes, wire) == (60, 0.2, "float32")
    assert " of " in groups
    assert flat_s is not None
    assert grouped_s is not None
    assert grouped_s < flat_s / 1.5
    assert grouped_s == pytest.approx(predicted_s, rel=0.3)
    assert flat_s == pytest.approx(flat_predicted_s, rel=0.3)
    assert 0 < part < 1


def test_few_members_stay_one_ring() -> None:
    row = row_of(10, 8_000_000, simulated=False)
    assert row[3:6] == ("one ring", None, None)
    assert row[6] == row[7]


def test_shorter_forms_take_less() -> None:
    exact, int8 = (row_of(10, 8_000_000, simulated=False, wire=wire) for wire in ("float32", "int8"))
    assert int8[7] < exact[7] / 3


def test_one_ring_of_unequal_blocks_is_predicted_with_what_its_hops_wait() -> None:
    *_, flat_s, _, flat_predicted_s, _, _ = row_of(40, 8_000_000, simulated=True)
    assert flat_s == pytest.approx(flat_predicted_s, rel=0.03)
