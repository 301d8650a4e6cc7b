from ravnest.pipeline.events import BackwardFinished, ForwardFinished
from ravnest.pipeline.instructions import RunForward


def test_records_are_equal_by_kind_and_value_and_hashable() -> None:
    assert ForwardFinished(3) == ForwardFinished(3) != ForwardFinished(4)
    assert ForwardFinished(3) != BackwardFinished(3)
    assert len({RunForward(1), RunForward(1), RunForward(2)}) == 2
    assert not hasattr(RunForward(1), "__dict__")
