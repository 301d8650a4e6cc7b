from ravnest.stage import messages as m
from ring_allreduce.transport import Message


def test_every_kind_that_is_defined_is_registered():
    defined = {kind for kind in vars(m).values() if isinstance(kind, type) and issubclass(kind, Message)}
    assert defined - {Message} <= set(m.KINDS)
    assert len(m.KINDS) == len(set(m.KINDS))
