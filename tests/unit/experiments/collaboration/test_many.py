import numpy as np
import pytest

from experiments.collaboration.many import most_partners, staged, world
from ravnest.collaboration.group_plan import best_group_plan, layout


def test_what_links_carry_is_what_the_plan_says_and_nobody_speaks_to_all() -> None:
    given, hidden = world(400)
    plan = best_group_plan(given, hidden)
    laid = layout(plan)
    stages = staged(given, plan, laid)
    up, down = (sum(stage[way] for stage in stages) for way in (0, 1))
    assert float(sum(up)) == pytest.approx(float(sum(down)))
    rates = np.array([(peer.up_bytes_per_s, peer.down_bytes_per_s) for peer in given.peers])
    busiest = float(np.maximum(up / rates[:, 0], down / rates[:, 1]).max())
    assert busiest * plan.averages_per_s == pytest.approx(1.0, abs=1e-3)
    assert not plan.shares[list(hidden)].any()
    assert most_partners(plan, laid) < 400
