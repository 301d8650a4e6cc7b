"""What a stage would save, as tensors."""

from torch import Tensor

from ravnest.checkpoints.manifest import SEGMENTS
from ravnest.checkpoints.weight_files import tensors_in
from ravnest.stage.rounds import StageRounds
from ravnest.stage.state_sending import StateFile


def whole(file: StateFile, piece_bytes: int = 4096) -> bytes:
    """All bytes that are left of a file, taken in pieces."""
    data = bytearray()
    while not file.empty:
        data += file.take(piece_bytes).numpy().tobytes()
    return bytes(data)


def saved(rounds: StageRounds) -> tuple[dict[str, Tensor], dict[tuple[str, str], Tensor]]:
    """The weights and buffers that a stage keeps, by name, and its optimizer state by (parameter, key)."""
    weights: dict[str, Tensor] = {}
    optimizer: dict[tuple[str, str], Tensor] = {}
    for file in rounds.state_files():
        held = tensors_in(whole(file))
        if file.name.startswith(SEGMENTS):
            weights |= held
        else:
            optimizer |= {(name.rpartition(".")[0], name.rpartition(".")[2]): held[name] for name in held}
    return weights, optimizer
