import math

import pytest

from ravnest.errors import RunFailed
from ravnest.profiling.agents import CONNECT_S, AgentCall, LocalAgents, MachineAgent, Unanswered, reach_most_s
from ravnest.profiling.machine_facts import MachineFacts


def test_this_process_answers_for_the_one_node() -> None:
    agents = LocalAgents("desk", 2)
    assert [(node.name, node.address, node.cores) for node in agents.members] == [("desk", None, 2)]
    facts, refused = agents.ask([AgentCall("desk", "facts"), AgentCall("desk", "meet", ({},))], math.inf)
    assert isinstance(facts, MachineFacts)
    assert isinstance(refused, Unanswered)
    assert "desk" in refused.reason


def test_an_agent_that_does_not_listen_cannot_measure_a_link() -> None:
    agent = MachineAgent("desk", "127.0.0.1")
    with pytest.raises(RunFailed):
        agent.ping("laptop", "PIPELINE", 1, 0.0, 1.0)
    agent.close()


def test_the_time_to_reach_peers_grows_with_their_number() -> None:
    assert reach_most_s(0) == 0.0
    assert reach_most_s(8) == CONNECT_S
    assert reach_most_s(9) == 2 * CONNECT_S
