"""Short trainings, to the last bit: whether two versions of the code train alike, without the hours of quality.py.

    python -m experiments.pipeline.short_trainings > new.txt
    PYTHONPATH=OLD_CHECKOUT python experiments/pipeline/short_trainings.py > old.txt
    diff old.txt new.txt

In: nothing. Out: a line of JSON for each training, its losses as hexadecimal numbers. They depend on the processor too,
so both versions have to run on one machine; no figure here is a timing.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from experiments.pipeline.tasks import SHAKESPEARE, Characters, Digits, Task
from experiments.pipeline.trials import Trial, run

WARMUP = {"warmup_updates": 100}
OPTIMIZERS = {
    "adamw": ({"name": "adamw"}, 0.0056, 0.003),
    "sgd": ({"name": "sgd", "momentum": 0.9}, 0.2, 0.05),
    "nadam": ({"name": "nadam"}, 0.0056, 0.003),
    "soap": ({"name": "soap"}, 0.0056, 0.003),
}
"""By name: the optimizer, and its rates for characters and for digits."""
WAYS = {"synchronous": {}, "none": {"correction": "none"}, "look_ahead": {"correction": "look_ahead"}}
BY_DEPTH = (("adamw", "none"), ("adamw", "look_ahead"), ("soap", "look_ahead"))
UPDATES, DEPTH_UPDATES = 400, 200


def trainings() -> Iterator[tuple[str, Trial]]:
    """Each training with its name: every optimizer with every way to meet a staleness of 1, and deep pipelines."""
    text = SHAKESPEARE if SHAKESPEARE.exists() else Path(__file__).parents[2] / "README.md"
    characters: Task = Characters(text, layers=2, width=32, context=32, batch=16)
    cosine = {"name": "cosine", **WARMUP}
    for name, (optimizer, rate, digits_rate) in OPTIMIZERS.items():
        for way, correction in WAYS.items():
            trained = {**optimizer, "lr": rate, "schedule": cosine, **correction}
            delay = 0 if way == "synchronous" else 1
            yield f"characters, {name}, {way}", Trial(characters, trained, UPDATES, delay=delay)
        trained = {**optimizer, "lr": digits_rate, "schedule": cosine, **WAYS["look_ahead"]}
        yield f"digits, {name}, look_ahead", Trial(Digits(), trained, UPDATES, 1, delay=1)
    for name, correction in BY_DEPTH:
        for stages in (8, 32):
            constant = {"name": "constant", **WARMUP}
            deep = {"name": name, "lr": 0.004, "correction": correction, "schedule": constant}
            trial = Trial(characters, deep, DEPTH_UPDATES, stages=stages, every=50)
            yield f"characters, {name}, {correction}, {stages} stages", trial


if __name__ == "__main__":
    torch.set_num_threads(1)
    for title, training in trainings():
        found = run(training)
        curve = [[update, loss.hex()] for update, loss in found.curve]
        line = {"training": title, "loss": found.loss.hex(), "accuracy": found.accuracy, "curve": curve}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
