"""What a stage believes of what arrives: from whom each kind may come, and which tensors it must bring. Pure.

Nothing from the network reaches a computation before it has passed here. A mismatch means a peer with another plan, or
a lie: the run ends with both named.
"""

from collections.abc import Sequence

from ravnest.errors import RunFailed
from ravnest.splitting import ValueSpec
from ravnest.stage import messages as m
from ravnest.stage.setup import StageSetup
from ring_allreduce.transport import Delivery, Message


def expected_sender(setup: StageSetup, message: Message) -> str | None:
    """The only peer that may send this kind to this stage; None when nobody may."""
    match message:
        case m.Activation() | m.GlobalNorm() | m.EvaluationActivation() | m.TiedWeights():
            return None if setup.is_first else setup.neighbour(-1)
        case m.Gradient() | m.TiedGradients():
            return None if setup.is_last else setup.neighbour(+1)
        case m.EvaluationCredit():
            return setup.neighbour(setup.stages - 1 - setup.index) if setup.is_first else None
        case (
            m.Alive()
            | m.Go()
            | m.RoundOpened()
            | m.RoundCommitted()
            | m.Drain()
            | m.FinishRounds()
            | m.Evaluate()
            | m.Stop()
        ):
            return m.DRIVER
        case _:
            return None


def check_tensors(delivery: Delivery, specs: Sequence[ValueSpec]) -> None:
    """Raises RunFailed unless the tensors match `specs` in number, dtype and shape.

    A size of None varies with the batch, and any positive size passes.
    """
    kind = type(delivery.message).__name__
    if len(delivery.tensors) != len(specs):
        raise RunFailed(f"{delivery.sender} sent {kind} with {len(delivery.tensors)} tensors, expected {len(specs)}")
    for tensor, spec in zip(delivery.tensors, specs, strict=True):
        fits = tensor.dim() == len(spec.shape) and all(
            size == wanted or (wanted is None and size > 0)
            for size, wanted in zip(tensor.shape, spec.shape, strict=True)
        )
        if tensor.dtype != spec.dtype or not fits:
            raise RunFailed(
                f"{delivery.sender} sent {kind} with {spec.name} as {tensor.dtype} {tuple(tensor.shape)}, expected"
                f" {spec.dtype} {spec.shape}"
            )
