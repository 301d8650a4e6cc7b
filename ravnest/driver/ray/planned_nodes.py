"""Which of Ray's nodes are the nodes of a plan.

In: a plan, and the nodes that Ray lists. Out: Ray's node of a planned one, by its address or by the custom resource
`ravnest-NAME`, and the names of those that can run stages.
"""

from collections.abc import Sequence
from pathlib import Path

from cluster_planner import Plan
from ravnest.driver.ray.session import RESOURCE_PREFIX, RayNode, RaySession
from ravnest.errors import NodeNotThere


def nodes_alive(plan: Plan, address: str | None, log: Path) -> set[str]:
    """The nodes of the plan that can run stages, while no run is in the Ray cluster at `address`.

    With None stages run on this machine, and all are it. Raises RunFailed or InvalidInput where Ray cannot be asked.
    """
    if address is None:
        return nodes_of_plan(plan, None)
    session = RaySession(address, None, log)
    try:
        return nodes_of_plan(plan, session.nodes())
    finally:
        session.close()


def nodes_of_plan(plan: Plan, listed: Sequence[RayNode] | None) -> set[str]:
    """The nodes of the plan that are among the `listed` and alive; None: Ray was started on this machine."""
    here = None if listed is None else [node for node in listed if node.alive]
    return {
        node.name
        for node in plan.fleet.nodes
        if here is None or any(each.is_of(node.name, node.address) for each in here)
    }


def ray_node(plan: Plan, name: str, listed: Sequence[RayNode]) -> RayNode:
    """The live Ray node of a planned node: by its address, or else by the custom resource `ravnest-NAME`."""
    wanted = plan.fleet.node(name).address
    found = next((node for node in listed if node.is_of(name, wanted)), None)
    if found is None:
        here = ", ".join(sorted(node.address for node in listed))
        raise NodeNotThere(
            f"no live Ray node is {name!r} (address {wanted or 'not given'}); Ray has {here}. Start it there with"
            f" `ray start --address … --resources '{{\"{RESOURCE_PREFIX}{name}\": 1}}'`",
            key=f"nodes.{name}.address",
        )
    return found
