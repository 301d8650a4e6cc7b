"""Robust averages: exact where nobody lies far away, bounded where somebody does, and what is told of contributions."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ring_allreduce.ring.robust_mean import CLIP, ROBUST_RULES, ContributionFigures, Sums, robust_mean, trimmed

ELEMENTS = 400


def averaged(rule, values, weights=None):
    weights = [1.0] * len(values) if weights is None else weights
    sums = [Sums() for _ in values]
    parts = [value * weight for value, weight in zip(values, weights, strict=True)]
    return robust_mean(rule, parts, weights, sums), [
        each.figures(weight) for each, weight in zip(sums, weights, strict=True)
    ]


def honest(members, seed=0, noise=0.5):
    """Contributions that share a direction, each with noise of its own."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(ELEMENTS, generator=generator)
    return shared, [shared + noise * torch.randn(ELEMENTS, generator=generator) for _ in range(members)]


def lies(kind, truth, seed=9):
    generator = torch.Generator().manual_seed(seed)
    return {
        "sign flip": -truth,
        "noise": 30.0 * torch.randn(ELEMENTS, generator=generator),
        "scaled": 100.0 * truth,
        "drift": truth + 5.0,
        "huge": torch.full((ELEMENTS,), 1e36),
    }[kind]


@pytest.mark.parametrize("rule", ROBUST_RULES)
@pytest.mark.parametrize("kind", ["sign flip", "noise", "scaled", "drift", "huge"])
@pytest.mark.parametrize("liars", [1, 2])
def test_liars_move_the_average_less_than_honest_members_differ(rule, kind, liars):
    shared, values = honest(8)
    apart = max(float((value - shared).norm()) for value in values)
    for number in range(liars):
        values[number] = lies(kind, values[number])
    average, _ = averaged(rule, values)
    assert (average - shared).norm() < apart
    mean = torch.stack(values).mean(0)
    assert (average - shared).norm() < (mean - shared).norm()


def test_centred_clipping_is_the_weighted_mean_where_nobody_is_far_away():
    _, values = honest(6)
    weights = [1.0, 2.0, 2.0, 3.0, 1.0, 4.0]
    average, figures = averaged("centred_clipping", values, weights)
    middle = sorted(each.distance for each in figures)
    assert middle[-1] < CLIP * (middle[2] + middle[3]) / 2
    exact = sum(w * v.double() for w, v in zip(weights, values, strict=True)) / sum(weights)
    torch.testing.assert_close(average.double(), exact, rtol=1e-5, atol=1e-6)


def test_what_is_far_away_is_shortened_to_the_bound():
    values = [torch.tensor([0.0, 1.0]), torch.tensor([0.0, -1.0]), torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0]),
              torch.tensor([100.0, 0.0])]  # fmt: skip
    average, figures = averaged("centred_clipping", values)
    # The median is (0, 0), the distances 1, 1, 0, 1 and 100: the last one counts as (CLIP, 0).
    assert average.tolist() == pytest.approx([(1.0 + CLIP) / 5, 0.0])
    assert [round(each.distance) for each in figures] == [1, 1, 0, 1, 100]


def test_the_trimmed_mean_leaves_out_the_ends_of_each_number_by_itself():
    values = [torch.tensor([1.0, 40.0]), torch.tensor([2.0, 30.0]), torch.tensor([30.0, 2.0]), torch.tensor([4.0, 1.0])]
    average, _ = averaged("trimmed_mean", values, [1.0, 1.0, 1.0, 3.0])
    # 1 and 30 are left out of the first number, and 1 and 40 of the second.
    assert average.tolist() == pytest.approx([(2.0 + 3 * 4.0) / 4, (30.0 + 2.0) / 2])
    assert [trimmed(members) for members in range(9)] == [0, 0, 0, 1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize("rule", ROBUST_RULES)
def test_a_weight_that_nobody_else_has_counts_as_four_times_the_median(rule):
    values = [torch.zeros(4), torch.ones(4), torch.zeros(4), torch.ones(4), torch.ones(4)]
    claimed, _ = averaged(rule, values, [10.0, 10.0, 10.0, 10.0, 1e12])
    bounded, _ = averaged(rule, values, [10.0, 10.0, 10.0, 10.0, 40.0])
    assert torch.equal(claimed, bounded)


@pytest.mark.parametrize("rule", ROBUST_RULES)
def test_two_members_have_their_mean_and_who_has_no_weight_has_no_part(rule):
    values = [torch.tensor([2.0]), torch.tensor([6.0]), torch.tensor([1e30])]
    average, figures = averaged(rule, values, [1.0, 3.0, 0.0])
    assert average.tolist() == [5.0]
    assert figures[2] == ContributionFigures(0.0, 0.0, 0.0, 0.0)
    assert averaged(rule, values, [0.0, 0.0, 0.0])[0].tolist() == [0.0]


@pytest.mark.parametrize("rule", ROBUST_RULES)
@given(
    members=st.integers(1, 9),
    elements=st.integers(0, 33),
    seed=st.integers(0, 999),
    scale=st.sampled_from([1e-20, 1, 1e20]),
)
@settings(max_examples=60, deadline=None)
def test_the_average_is_finite_and_within_what_was_contributed(rule, members, elements, seed, scale):
    generator = torch.Generator().manual_seed(seed)
    values = [scale * torch.randn(elements, generator=generator) for _ in range(members)]
    weights = [float(torch.randint(1, 4096, (), generator=generator)) for _ in range(members)]
    average, _ = averaged(rule, values, weights)
    stacked, room = torch.stack(values), 1e-4 * scale
    assert ((average >= stacked.amin(0) - room) & (average <= stacked.amax(0) + room)).all()


def test_figures_tell_norm_distance_and_direction_over_all_spans():
    _, values = honest(5)
    values[3] = -values[3]
    sums = [Sums() for _ in values]
    for start in range(0, ELEMENTS, 150):
        robust_mean("trimmed_mean", [value[start : start + 150] for value in values], [1.0] * 5, sums)
    centre = torch.stack(values).median(0).values
    for number, value in enumerate(values):
        found = sums[number].figures(1.0)
        assert found.norm == pytest.approx(float(value.norm()), rel=1e-5)
        assert found.distance == pytest.approx(float((value - centre).norm()), rel=1e-4)
        assert found.cosine == pytest.approx(float(torch.cosine_similarity(value, centre, dim=0)), abs=1e-4)
    assert sums[3].figures(1.0).cosine < -0.5 < 0.5 < sums[0].figures(1.0).cosine
    assert not math.isnan(Sums().figures(1.0).cosine)
