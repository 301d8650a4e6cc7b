import torch

from ravnest.stage import messages as m
from ravnest.stage.outbox import Outbox
from ring_allreduce.transport import InProcessNetwork, Lane, TransportLimits


def test_each_peer_is_sent_what_it_takes_in_order_and_none_waits_for_another():
    network = InProcessNetwork(limits=TransportLimits(queue_messages=2))
    driver, slow, quick = (network.endpoint(name, m.codec()) for name in ("driver", "slow", "quick"))
    network.connect_all()
    outbox = Outbox(driver)
    for number in range(5):
        outbox.put("slow", m.StateTensor(part="weight", name=str(number)), torch.tensor([number]))
    outbox.put("quick", m.StateTensor(part="weight", name="q"), torch.zeros(1))
    assert outbox.flush() == 3
    assert outbox.flush() == 0
    assert not outbox.empty
    assert [each.message.name for each in quick.poll(0.0)] == ["q"]
    seen = []
    for expected in (2, 1, 0):
        seen += [(each.message.name, each.tensors[0].item()) for each in slow.poll(0.0)]
        assert outbox.flush() == expected
    assert seen == [(str(number), number) for number in range(5)]
    assert outbox.empty


def test_state_travels_in_the_bulk_lane():
    network = InProcessNetwork()
    driver, stage = network.endpoint("driver", m.codec()), network.endpoint("stage", m.codec())
    network.connect_all()
    outbox = Outbox(driver)
    outbox.put("stage", m.StateSent(round=1, tensors=0))
    outbox.flush()
    assert (stage.inbox_length(Lane.BULK), stage.inbox_length(Lane.PIPELINE)) == (1, 0)
