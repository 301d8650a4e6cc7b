import copy

import pytest
import torch

from ravnest.errors import ExpertsUnavailable, InvalidInput
from ravnest.experts.beam_search import BeamSearch
from ravnest.experts.calls import Call, Failed
from ravnest.experts.client import ExpertsClient
from ravnest.experts.grid import member_name
from ravnest.experts.messages import codec
from ring_allreduce.transport import InProcessNetwork
from tests.support.experts import WIDTH, TableContents, TableOfTest, small_grid


def client() -> tuple[ExpertsClient, TableOfTest]:
    table = TableOfTest(TableContents())
    endpoint = InProcessNetwork().endpoint(member_name("caller", table.identity.public_key), codec())
    return ExpertsClient(small_grid(), table, endpoint, bytes(16)), table


def test_it_announces_itself_and_withdraws() -> None:
    made, table = client()
    key = made.config.places.callers_key
    assert len(table.run(lambda node: node.get(key)).result().records) == 1
    made.close()
    made.close()
    assert table.run(lambda node: node.get(key)).result().records == ()


def test_calls_of_hosts_that_are_not_known_fail_and_after_closing_all_do() -> None:
    made, _ = client()
    call = Call((0, 0), "nobody", (torch.zeros(1, WIDTH),))
    (future,) = made.call([call])
    assert future.result(10) == Failed("lost")
    assert made.usable() == frozenset()
    assert made.find(BeamSearch([[[0.0, 0.0], [0.0, 0.0]]], width=1, best=1)) == [[]]
    made.close()
    (future,) = made.call([call])
    assert future.result(10) == Failed("closed")
    with pytest.raises(ExpertsUnavailable, match="closed"):
        made.find(BeamSearch([[[0.0, 0.0], [0.0, 0.0]]], width=1, best=1))


def test_experts_that_do_not_come_are_told_by_their_number() -> None:
    made, _ = client()
    try:
        with pytest.raises(ExpertsUnavailable, match=r"0 experts of 'test' can .*: the table names no host"):
            made.wait_for_experts(3, timeout_s=0.01)
        assert copy.deepcopy(made) is made
    finally:
        made.close()


def test_without_a_peer_there_is_no_table_to_join() -> None:
    with pytest.raises(InvalidInput) as caught:
        ExpertsClient.opened(small_grid(), [], token=bytes(16))
    assert caught.value.key == "peers"
