"""The keys of an encrypted run: new ones for a new session, or those that another driver has written down.

In: the names of all members. Out: by name, a key pair and the allow-list that all share.
"""

from collections.abc import Sequence

from cluster_planner import Plan
from ravnest.driver.run_store import DriverState
from ravnest.pipeline import spare_name, stage_name
from ravnest.recovery import further_clusters
from ring_allreduce.transport import KeyPair, Keys


def possible_stages(plan: Plan) -> list[str]:
    """The names of all stages that a run of the plan can have, and of their warm spares: a cluster may get a stage for
    each segment."""
    clusters = [*(cluster.name for cluster in plan.clusters), *further_clusters(plan)]
    stages = [stage_name(cluster, index) for cluster in clusters for index in range(len(plan.rings))]
    return [*stages, *map(spare_name, stages)]


def run_keys(names: Sequence[str]) -> dict[str, Keys]:
    """Keys for one run: a new pair for each name, and an allow-list of all of them."""
    pairs = {name: KeyPair.make() for name in names}
    allowed = {name: pair.public for name, pair in pairs.items()}
    return {name: Keys(pair, allowed) for name, pair in pairs.items()}


def kept_keys(state: DriverState) -> dict[str, Keys] | None:
    """The keys of an encrypted run, by member; None for one that is not. Raises InvalidInput for what are no keys."""
    if state.keys is None:
        return None
    allowed = {name: public for name, (public, _) in state.keys.items()}
    return {name: Keys(KeyPair(public, secret), allowed) for name, (public, secret) in state.keys.items()}
