"""The processes of `experiments.experts`, few of them: they make one table, and what is killed is gone."""

import pytest

from experiments.experts.table import Nodes

pytestmark = pytest.mark.timeout(60)


def test_processes_with_nodes_are_one_table_that_outlives_some_of_them() -> None:
    nodes = Nodes(2, 3)
    try:
        nodes.open()
        keys = [f"key {number}" for number in range(6)]
        assert nodes.ask(0, kind="store", keys=keys)["kept"] == [5] * 6
        got = nodes.ask(1, kind="get", keys=[*keys, "nothing"])
        assert (got["found"], len(got["seconds"]), got["hops"][-1]) == (6, 7, None)
        assert nodes.ask(0, kind="health")["contacts"] == [5, 5, 5]
        nodes.kill(1)
        assert nodes.ask(0, kind="get_together", keys=[*keys, "nothing"])["found"] == 6
    finally:
        nodes.close()
