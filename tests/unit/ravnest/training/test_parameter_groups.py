"""Each parameter is of the first group that matches its name, and a group without a parameter is refused."""

import pytest

from ravnest.errors import InvalidInput
from ravnest.training.parameter_groups import GroupConfig, check_groups, group_of

GROUPS = [GroupConfig(match="*.bias", weight_decay=0), GroupConfig(match=["head.*", "*.head.*"], lr=0.5)]


def test_the_first_group_that_matches_counts():
    names = ["body.weight", "body.bias", "head.bias", "head.weight", "x.head.w"]
    assert [group_of(GROUPS, name) for name in names] == [2, 0, 0, 1, 1]


def test_a_pattern_without_a_parameter_is_refused():
    check_groups(GROUPS, ["body.weight", "body.bias", "head.weight", "x.head.weight"])
    with pytest.raises(InvalidInput, match=r"^optimizer\.groups\[1\]\.match: '\*\.head\.\*' matches no parameter"):
        check_groups(GROUPS, ["body.bias", "head.weight"])
    shadowed = [GroupConfig(match="*"), GroupConfig(match="*.bias", weight_decay=0)]
    with pytest.raises(
        InvalidInput, match=r"^optimizer\.groups\[1\]\.match: matches only parameters of earlier groups"
    ):
        check_groups(shadowed, ["a.bias"])
