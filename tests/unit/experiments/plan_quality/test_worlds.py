from pathlib import Path

import pytest

from experiments.plan_quality.baselines import Site, simple_split
from experiments.plan_quality.worlds import REGIONS, gpt, made_up_regions, read_regions, workload, world


def test_a_file_of_pairs_is_read(tmp_path: Path) -> None:
    path = tmp_path / "regions.yaml"
    path.write_text("within_region: [5, 2.0]\npairs:\n  Oregon-Ohio: [49, 1.10]\n  Ohio-Tokyo: [130, 0.694]\n")
    pairs = read_regions(path)
    assert pairs["Oregon", "Ohio"] == (49.0, 1.1)
    assert pairs["Tokyo", "Tokyo"] == (5.0, 2.0)
    assert len(pairs) == 5
    path.write_text("pairs: {}\n")
    with pytest.raises(ValueError, match="expected `within_region"):
        read_regions(path)


def test_a_made_up_world_joins_every_pair_of_regions() -> None:
    fleet = world(25, made_up_regions())
    assert len(fleet.regions) == REGIONS * (REGIONS + 1) // 2
    assert fleet == world(25, made_up_regions())


def test_a_way_that_does_not_fit_is_worth_nothing() -> None:
    site = Site(world(6, made_up_regions()), gpt(), workload())
    assert site.objective([site.cut_by(site.fleet.names[:2], [1.0, 1.0])]) == 0.0
    stages = site.cut_by(site.fleet.names, [1.0, 2.0, 1.0, 1.0, 1.0, 1.0])
    assert [b - a for a, b in (stage.units for stage in stages)] == [7, 14, 8, 7, 7, 7]
    assert simple_split(site, "memory") > 0
