"""What a process that trains takes of a GPU's memory beside its tensors: CUDA's context, kernels and workspaces.

In: a GPU. Out: bytes. They depend on the card, its driver and torch, and no call of torch's tells them. So a process is
started that trains a model whose tensors are next to nothing, as a stage does, and the memory that is free is read
before and while it is there. Others who use the card meanwhile disturb that; what they free makes it too little.
"""

import select
import subprocess
import sys

import torch
from torch import Tensor, nn
from torch.nn import functional

READY = "trained"
DEADLINE_S = 120.0
"""Importing torch and making a context take seconds, and half a minute on a busy machine."""
_WIDTH, _TOKENS, _SAMPLES = 64, 16, 4


def process_bytes(device: str) -> int | None:
    """The bytes that another process which trains takes of this GPU; None where it fails, or nothing is seen."""
    index = torch.device(device).index or 0
    before = torch.cuda.mem_get_info(index)[0]
    command = [sys.executable, "-m", "ravnest.profiling.gpu_process", device]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as other:
        try:
            assert other.stdout is not None
            heard, _, _ = select.select([other.stdout], [], [], DEADLINE_S)
            if not heard or other.stdout.readline().strip() != READY.encode():
                return None
            taken = before - torch.cuda.mem_get_info(index)[0]
        finally:
            other.kill()
    return taken if taken > 0 else None


def train_a_little(device: str) -> None:
    """Train a few layers of the usual kinds, in float32 and in bfloat16."""
    model = nn.ModuleList(
        [nn.Conv1d(_WIDTH, _WIDTH, 3, padding=1), nn.TransformerEncoderLayer(_WIDTH, 4, 2 * _WIDTH, batch_first=True)]
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    target = torch.zeros(_SAMPLES * _TOKENS, dtype=torch.int64, device=device)
    for narrow in (False, True):
        inputs = torch.ones(_SAMPLES, _WIDTH, _TOKENS, device=device)
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=narrow):
            out: Tensor = model[1](model[0](inputs).transpose(1, 2))
        loss = functional.cross_entropy(out.float().flatten(0, 1), target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    """Train, say so, and stay until the other side is gone."""
    train_a_little(sys.argv[1])
    if torch.device(sys.argv[1]).type == "cuda":
        torch.cuda.synchronize()
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
