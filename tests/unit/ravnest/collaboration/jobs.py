"""A small collaborative job in a folder of its own, for tests."""

import hashlib
from pathlib import Path

CODE = """
import torch
from torch.utils.data import TensorDataset


class Data:
    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        inputs = torch.randn(256, 6, generator=draw)
        self.train = TensorDataset(inputs, (inputs[:, 0] > 0).long())
        self.held_out = TensorDataset(inputs[:32], (inputs[:32, 0] > 0).long())


def data() -> Data:
    return Data()


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
"""

JOB = """
mode: collaborative
target_batch: 64
model: {{factory: {module}:model}}
data: {{factory: {module}:data}}
metrics: [accuracy]
micro_batch: 8
optimizer: {optimizer}
averaging: {{wire: {wire}}}
stop: {{samples: {samples}}}
spot_check_share: {spot_check_share}
delayed_step: {delayed_step}
gradient_rank: {gradient_rank}
evaluate_every: {evaluate_every}
"""


def job_in(
    folder: Path,
    *,
    optimizer: str = "{name: adamw, lr: 1.0e-2}",
    wire: str = "float32",
    samples: int = 640,
    spot_check_share: float = 0.0,
    delayed_step: bool = False,
    gradient_rank: int | None = None,
    evaluate_every: int = 64,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    module = "parts_" + hashlib.sha256(str(folder).encode()).hexdigest()[:12]  # no two folders share a module
    (folder / f"{module}.py").write_text(CODE)
    path = folder / "job.yaml"
    given = {"optimizer": optimizer, "wire": wire, "samples": samples, "spot_check_share": spot_check_share}
    given["evaluate_every"] = evaluate_every
    given["gradient_rank"] = "null" if gradient_rank is None else gradient_rank
    given["delayed_step"] = "true" if delayed_step else "false"
    path.write_text(JOB.format(module=module, **given))
    return path
