"""The fences of the house, walked with ast: which room imports which, where a third party may appear, what is pure.

The tables come first; each entry of `FINDERS` holds the whole house to one of them. A name counts wherever it is
imported or used: inside a function, under TYPE_CHECKING, and as an attribute of an imported module too.
"""

import ast
import builtins
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PACKAGES: Mapping[str, set[str]] = {
    "cluster_planner": set(),
    "ring_allreduce": set(),
    "ravnest": {"cluster_planner", "ring_allreduce"},
    "experiments": {"ravnest", "cluster_planner", "ring_allreduce"},
    "examples": {"ring_allreduce"},
}
"""Package → the other packages of this repository that it may import. Nobody imports tests."""

ROOMS: Mapping[str, set[str]] = {
    "errors": set(),
    "free_memory": set(),
    "plain": set(),
    "words": set(),
    "pictures": {"plain", "errors", "words"},
    "factories": {"errors", "training"},
    "training": {"errors", "plain", "factories"},
    "splitting": {"errors", "factories"},
    "pipeline": {"errors"},
    "simulation": {"errors", "pipeline"},
    "simulation_picture": {"pictures", "simulation"},
    "job": {"errors", "factories", "training"},
    "materials": {"errors", "factories", "job", "runtime", "splitting", "training"},
    "pretrained": {"errors", "job", "materials", "splitting", "training"},
    "trial": {"errors", "factories", "job", "materials", "splitting", "training", "words"},
    "workload": {"errors", "job", "training"},
    "runtime": {"errors", "factories", "splitting", "training", "pipeline", "materials", "job", "words"},
}
"""Room of ravnest → the rooms that it may import. One that is not here (launch, cli, …) may import all but cli."""

FENCES: Mapping[str, tuple[str, ...]] = {
    "ray": ("ravnest/launch/ray_session.py",),
    "zmq": ("ring_allreduce/transport/",),
    "yaml": ("cluster_planner/files.py",),
    "sklearn": ("cluster_planner/clustering.py", "examples/digits/data.py", "experiments/convergence/data.py"),
    "scipy": ("ring_allreduce/shares.py", "experiments/convergence/fitting.py"),
    "threadpoolctl": ("cluster_planner/clustering.py",),
    "networkx": ("cluster_planner/graph.py",),
    "safetensors": (
        "ravnest/training/checkpoint.py",
        "ravnest/training/durable.py",
        "ravnest/training/weight_files.py",
    ),
    "transformers": ("ravnest/splitting/model_source.py",),
    "psutil": ("ravnest/free_memory.py", "ravnest/machines/facts.py", "ravnest/runtime/process.py", "experiments/"),
    "matplotlib": ("ravnest/pictures.py", "experiments/"),
    "typer": ("ravnest/cli/",),
    "rich": ("ravnest/cli/",),
    "msgspec": ("ring_allreduce/", "ravnest/training/manifest.py"),
    "numpy": ("cluster_planner/", "ravnest/training/sampler.py", "experiments/"),
    "pydantic": ("cluster_planner/", "ravnest/"),
    "pydantic_core": ("ravnest/training/optimizer.py",),
    "torch": ("ring_allreduce/", "ravnest/", "experiments/", "examples/"),
}
"""Third party → the only files, or folders, where it may be used. One that is not here may be used nowhere."""

UNPICKLERS = {
    *("pickle", "_pickle", "cPickle", "pickletools", "copyreg", "marshal", "shelve", "dbm", "dill", "cloudpickle"),
    *("joblib", "multiprocessing", "torch.load", "torch.save", "torch.serialization", "torch.jit.load"),
    *("torch.export.load", "torch.package", "torch.hub", "torch.multiprocessing", "torch.distributed", "numpy.load"),
}
"""What runs code that it reads, or speaks to others in its own way. Nowhere: bytes travel as typed headers and raw
tensors, weights rest in safetensors (design §8, §11.5)."""

BASELINES: Mapping[str, tuple[str, ...]] = {
    "torch.distributed": ("experiments/allreduce/gloo.py",),  # gloo's all_reduce, on numbers that are our own
}
"""What of it an experiment must run, to compare with it → the only files that may."""

DYNAMIC: Mapping[str, tuple[str, ...]] = {
    "importlib.import_module": (
        "ravnest/factories.py",  # the user's own code, which is what it is for
        "ravnest/splitting/__init__.py",  # its own modules, by a table
        "ravnest/splitting/operations.py",  # Python's own operators, by a list
    ),
    "importlib.util": (),
    "importlib.machinery": ("ravnest/factories.py",),
    "importlib.reload": (),
    "imp": (),
    "pkgutil": (),
    "runpy": (),
    "__import__": (),
    "eval": (),
    "exec": ("ravnest/splitting/codegen.py",),  # source that is generated from a graph of known operators
    "compile": ("ravnest/splitting/codegen.py",),
    "sys.modules": ("ravnest/factories.py",),
}
"""Ways around an import statement → the only files that may use them."""

WORLD = {
    *("asyncio", "concurrent", "ctypes", "datetime", "fcntl", "fileinput", "getpass", "glob", "http", "inspect", "io"),
    *("logging", "mmap", "os", "pathlib", "platform", "psutil", "queue", "random", "ray", "requests", "sched"),
    *("secrets", "select", "selectors", "shutil", "signal", "socket", "socketserver", "sqlite3", "ssl", "subprocess"),
    *("sys", "tempfile", "threading", "_thread", "time", "urllib", "uuid", "yaml", "zmq"),
    *(f"numpy.random.{name}" for name in ("choice", "normal", "permutation", "rand", "randint", "randn", "random")),
    *("numpy.random.seed", "numpy.random.shuffle", "numpy.random.uniform"),
    *("torch.rand", "torch.randn", "torch.randint", "torch.randperm", "torch.manual_seed", "torch.Generator"),
    *("open", "input", "print", "breakpoint"),
}
"""Clocks, chance, files, threads, sockets: what no pure module may use."""

TENSORS = {"torch", "safetensors", "transformers"}

PURE: Mapping[str, set[str]] = {
    "cluster_planner/": WORLD | TENSORS | {"msgspec"},
    "experiments/plan_quality/brute_force.py": WORLD | TENSORS,
    "ring_allreduce/ring.py": WORLD | TENSORS,
    "ring_allreduce/ring_events.py": WORLD | TENSORS,
    "ring_allreduce/early.py": WORLD | TENSORS,
    "ring_allreduce/epoch_member.py": WORLD | TENSORS,
    "ring_allreduce/group_orders.py": WORLD | TENSORS,
    "ring_allreduce/group_owner.py": WORLD | TENSORS,
    "ring_allreduce/membership.py": WORLD | TENSORS,
    "ring_allreduce/patience.py": WORLD | TENSORS,
    "ring_allreduce/round_events.py": WORLD | TENSORS,
    "ring_allreduce/round_member.py": WORLD | TENSORS,
    "ring_allreduce/round_owner.py": WORLD | TENSORS,
    "ring_allreduce/watch.py": WORLD | TENSORS,
    "ring_allreduce/chunks.py": WORLD | TENSORS,
    "ring_allreduce/direct.py": WORLD | TENSORS,
    "ring_allreduce/kept.py": WORLD,
    "ring_allreduce/lines.py": WORLD | TENSORS,
    "ring_allreduce/messages.py": WORLD | TENSORS,
    "ring_allreduce/progress.py": WORLD,  # arithmetic on tensors
    "ring_allreduce/flight.py": WORLD,
    "ring_allreduce/wire.py": WORLD,
    "ring_allreduce/shares.py": WORLD | TENSORS,
    "ring_allreduce/statistics.py": WORLD | TENSORS,
    "ring_allreduce/outer.py": WORLD,
    "ring_allreduce/transport/downlink.py": WORLD | TENSORS,
    "ring_allreduce/transport/emulated_node.py": WORLD | TENSORS,
    "ring_allreduce/transport/emulation.py": (WORLD | TENSORS) - {"random"},  # its jitter has a seed
    "ring_allreduce/transport/inbound.py": WORLD | TENSORS,
    "ravnest/pipeline/": WORLD | TENSORS,
    "ravnest/simulation/scenario.py": WORLD | TENSORS,
    "ravnest/simulation/simulated.py": WORLD | TENSORS,
    "ravnest/simulation/steadiness.py": WORLD | TENSORS,
    "ravnest/simulation/chance.py": (WORLD | TENSORS) - {"random"},  # seeded generators of its own
    "ring_allreduce/records.py": WORLD | TENSORS,
    "ravnest/splitting/units.py": WORLD | TENSORS,
    "ravnest/training/schedule.py": WORLD | TENSORS,
    "ravnest/training/clipping.py": WORLD | TENSORS,
    "ravnest/training/seeds.py": WORLD | TENSORS,
    "ravnest/training/sampler.py": WORLD | TENSORS,
    "ravnest/training/precision.py": WORLD | TENSORS,
    "ravnest/training/matching.py": WORLD | TENSORS,
    "ravnest/training/sharding.py": WORLD | TENSORS,
    "ravnest/training/wires.py": WORLD | TENSORS,
    "ravnest/runtime/messages.py": WORLD | TENSORS,
    "ravnest/runtime/reported.py": WORLD | TENSORS,
    "ravnest/runtime/tied_setup.py": WORLD | TENSORS,
    "ravnest/runtime/timeline.py": WORLD | TENSORS,
    "ravnest/runtime/clocks.py": WORLD | TENSORS,
    "ravnest/runtime/arrivals.py": WORLD | TENSORS,  # it looks at tensors, and names no function of torch
    "ravnest/runtime/deadline.py": WORLD | TENSORS,
    "ravnest/runtime/segments.py": WORLD,
    "ravnest/runtime/crossings.py": WORLD,
    "ravnest/launch/control.py": WORLD | TENSORS,
    "ravnest/launch/orders.py": WORLD | TENSORS,
    "ravnest/launch/membership.py": WORLD | TENSORS,
    "ravnest/launch/times.py": WORLD | TENSORS,
    "ravnest/launch/rehearsal.py": WORLD | TENSORS,
    "ravnest/launch/rings.py": WORLD | TENSORS,
    "ravnest/launch/copies.py": WORLD | TENSORS,
    "ravnest/launch/portions.py": WORLD | TENSORS,
    "ravnest/launch/imitation.py": WORLD | TENSORS,
    "ravnest/launch/in_flight.py": WORLD | TENSORS,
    "ravnest/launch/setups.py": (WORLD | TENSORS) - {"pathlib"},  # where a job file is
    "ravnest/machines/pairing.py": (WORLD | TENSORS) - {"random"},  # its sample has a seed
    "ravnest/machines/estimates.py": WORLD | TENSORS,
    "ravnest/machines/checkup.py": WORLD | TENSORS,
    "ravnest/machines/cut_off.py": WORLD | TENSORS,
    "ravnest/machines/findings.py": WORLD | TENSORS,
    "ravnest/machines/measured_fleet.py": WORLD | TENSORS,
    "ravnest/machines/merging.py": WORLD | TENSORS,
    "ravnest/machines/probes.py": WORLD | TENSORS,
    "ravnest/words.py": WORLD | TENSORS,
    "experiments/fidelity/judging.py": WORLD | TENSORS,
    "experiments/scale/fleets.py": (WORLD | TENSORS) - {"random"},  # seeded generators of its own
    "experiments/convergence/schedule.py": WORLD | TENSORS,
    "experiments/convergence/theorem.py": WORLD | TENSORS,
    "experiments/convergence/fitting.py": WORLD | TENSORS,
}
"""File or folder → what it may not use. A module whose docstring calls it pure or sans-I/O must be here."""

IMPURE_THERE = ("cluster_planner/files.py",)
"""Files of a pure folder that are its door to the world."""


# Reading one file.


@cache
def used(file: str, source: str) -> Sequence[tuple[int, str]]:
    """(line, dotted name) of everything that is imported, of every attribute of it that is used, and of built-in
    functions. Relative imports are made absolute, other names (`import torch as t`) are seen through."""
    return sorted(set(_used(file, source)))


def _used(file: str, source: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(source, filename=file)
    package = file.split("/")[:-1]
    names = {name: name for name in dir(builtins)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
                names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            for alias in node.names:
                name = ".".join([*base, *([node.module] if node.module else []), alias.name])
                yield node.lineno, name
                names[alias.asname or alias.name] = name
    # A name that the module gives to something of its own is no built-in function.
    for node in ast.walk(tree):
        own = node.arg if isinstance(node, ast.arg) else getattr(node, "name", None)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own = node.id
        if isinstance(own, str) and names.get(own) == own and hasattr(builtins, own):
            del names[own]
    for node in ast.walk(tree):
        path, inner = [], node
        while isinstance(inner, ast.Attribute):
            path.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and inner.id in names:
            yield node.lineno, ".".join(part for part in [names[inner.id], *reversed(path)] if part != "builtins")


def is_of(name: str, fence: str) -> bool:
    """Whether `name` is `fence` or lies in it; `import *` brings everything."""
    everything = name.endswith(".*") and f"{fence}.".startswith(name[:-1])
    return name == fence or name.startswith(f"{fence}.") or everything


def lies_in(file: str, places: Sequence[str]) -> bool:
    return any(file == place or (place.endswith("/") and file.startswith(place)) for place in places)


# What is wrong in one file, by the tables above: the names that it may not use.


def of_another_package(file: str, name: str) -> bool:
    mine, theirs = file.partition("/")[0], name.partition(".")[0]
    return theirs != mine and theirs in {*PACKAGES, "tests"} - PACKAGES[mine]


def of_a_room_above(file: str, name: str) -> bool:
    if not (file.startswith("ravnest/") and name.startswith("ravnest.")):
        return False
    mine, theirs = file.split("/")[1].removesuffix(".py"), name.split(".")[1]
    if theirs == mine or not ((ROOT / "ravnest" / theirs).is_dir() or (ROOT / "ravnest" / f"{theirs}.py").is_file()):
        return False
    return theirs not in ROOMS[mine] if mine in ROOMS else theirs == "cli" and mine != "__main__"


def of_a_third_party_fenced_off(file: str, name: str) -> bool:
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top in {*PACKAGES, "tests", "_typeshed"} or hasattr(builtins, top):
        return False
    if file.startswith("examples/") and (ROOT / file).with_name(f"{top}.py").is_file():
        return False  # a neighbour in the folder that a user copies
    return not lies_in(file, FENCES.get(top, ()))


def of_an_unpickler(file: str, name: str) -> bool:
    return any(is_of(name, fence) and not lies_in(file, BASELINES.get(fence, ())) for fence in UNPICKLERS)


def of_a_way_around_import(file: str, name: str) -> bool:
    return any(is_of(name, fence) and not lies_in(file, places) for fence, places in DYNAMIC.items())


def of_the_world_in_a_pure_module(file: str, name: str) -> bool:
    if lies_in(file, IMPURE_THERE):
        return False
    return any(lies_in(file, (place,)) and any(is_of(name, one) for one in banned) for place, banned in PURE.items())


FINDERS: Sequence[Callable[[str, str], bool]] = (
    of_another_package,
    of_a_room_above,
    of_a_third_party_fenced_off,
    of_an_unpickler,
    of_a_way_around_import,
    of_the_world_in_a_pure_module,
)


def wrong(file: str, source: str, finders: Sequence[Callable[[str, str], bool]] = FINDERS) -> list[str]:
    """Every name in the file that some finder refuses, with its place."""
    found = [(line, name) for line, name in used(file, source) if any(finder(file, name) for finder in finders)]
    return [f"{file}:{line} uses {name}" for line, name in found]


# The house.


def sources() -> dict[str, str]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


HOUSE = sources()


@pytest.mark.parametrize("finder", FINDERS, ids=lambda finder: finder.__name__)
def test_no_file_uses_a_name(finder: Callable[[str, str], bool]) -> None:
    found = [line for file, source in HOUSE.items() for line in wrong(file, source, [finder])]
    assert not found, "\n".join(found)


def test_the_tables_name_what_there_is() -> None:
    places = {place for table in (FENCES, DYNAMIC, BASELINES) for several in table.values() for place in several}
    gone = [place for place in {*places, *PURE, *IMPURE_THERE} if not (ROOT / place).exists()]
    assert gone == []
    assert [room for room in ROOMS if not any((ROOT / "ravnest").glob(room + end) for end in ("", ".py"))] == []


def test_every_fence_is_crossed_by_its_own_file() -> None:
    """A fence around a file that no longer uses the thing would let it come back unseen."""
    idle = [
        (fence, place)
        for table in (FENCES, DYNAMIC, BASELINES)
        for fence, places in table.items()
        for place in places
        if place.endswith(".py") and not any(is_of(name, fence) for _, name in used(place, HOUSE[place]))
    ]
    assert idle == []


def test_what_calls_itself_pure_is_held_to_it() -> None:
    claims = [
        file
        for file, source in HOUSE.items()
        if re.search(r"\bpure\b|\bsans-i/o\b|\bno clock\b", ast.get_docstring(ast.parse(source)) or "", re.IGNORECASE)
        and not file.endswith("__init__.py")
    ]
    assert len(claims) >= 8
    assert [file for file in claims if not lies_in(file, tuple(PURE))] == []


# The checker itself.

PROBES = [
    # What a reviewer slipped past an earlier version of this file.
    ("ravnest/pipeline/stage_machine.py", "import torch", "torch"),
    ("ring_allreduce/ring.py", "import torch, os, pathlib, datetime", "torch os pathlib datetime"),
    ("ravnest/launch/control.py", "import ray", "ray"),
    ("ravnest/launch/local.py", "import pickle", "pickle"),
    ("ring_allreduce/progress.py", "import time, socket", "time socket"),
    ("ring_allreduce/reducer.py", "import marshal, shelve, dill", "marshal shelve dill"),
    ("ravnest/training/checkpoint.py", "from torch import load", "torch.load"),
    (
        "ravnest/runtime/stage.py",
        'import importlib\nimportlib.import_module("ray")',
        "importlib.import_module",
    ),
    # The same in other words.
    ("ravnest/pipeline/flow.py", "def f():\n    from torch.nn import functional", "torch.nn.functional"),
    (
        "ravnest/pipeline/flow.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch import nn",
        "torch.nn",
    ),
    ("ravnest/training/checkpoint.py", "import torch as t\nt.load('x')", "torch.load"),
    ("ravnest/training/checkpoint.py", "import torch\nread = torch.serialization.load", "torch.serialization.load"),
    ("ravnest/training/checkpoint.py", "from torch import *", "torch.*"),
    ("ravnest/launch/actor.py", "from pickle import loads", "pickle.loads"),
    ("ravnest/launch/actor.py", "from multiprocessing.connection import Client", "multiprocessing.connection.Client"),
    ("ravnest/launch/collect.py", "import numpy", "numpy"),
    ("cluster_planner/cuts.py", "import numpy as np\nnp.load('x')", "numpy.load"),
    ("cluster_planner/cuts.py", "import numpy as np\nnp.random.rand()", "numpy.random.rand"),
    ("ravnest/runtime/stage.py", '__import__("ray")', "__import__"),
    ("ravnest/runtime/stage.py", 'import builtins\nbuiltins.__import__("ray")', "__import__"),
    ("ravnest/runtime/stage.py", "from importlib import import_module as get", "importlib.import_module"),
    ("ravnest/runtime/stage.py", 'import sys\nsys.modules["ray"]', "sys.modules"),
    ("ravnest/runtime/stage.py", 'exec("import ray")', "exec"),
    ("ravnest/runtime/stage.py", "import zmq", "zmq"),
    ("ring_allreduce/reducer.py", "import zmq", "zmq"),
    ("ravnest/launch/actor.py", "import ray", "ray"),
    ("ravnest/job.py", "import yaml", "yaml"),
    ("cluster_planner/order.py", "from sklearn import cluster", "sklearn.cluster"),
    ("ravnest/launch/outcome.py", "from safetensors.torch import save_file", "safetensors.torch.save_file"),
    ("ravnest/launch/outcome.py", "import somebodys_package", "somebodys_package"),
    ("ravnest/launch/control.py", "from time import monotonic", "time.monotonic"),
    ("ravnest/launch/control.py", "def f(path):\n    return open(path)", "open"),
    ("ring_allreduce/round_owner.py", "import random", "random"),
    ("ring_allreduce/progress.py", "import torch\ntorch.randn(3)", "torch.randn"),
    ("cluster_planner/planner.py", "import torch", "torch"),
    ("cluster_planner/planner.py", "from ravnest.job import JobConfig", "ravnest.job.JobConfig"),
    ("ring_allreduce/ring.py", "import cluster_planner", "cluster_planner"),
    ("ravnest/job.py", "from tests.support import local", "tests.support.local"),
    ("examples/home/model.py", "import ravnest", "ravnest"),
    ("ravnest/pipeline/flow.py", "from ravnest.runtime import messages", "ravnest.runtime.messages"),
    ("ravnest/runtime/stage.py", "from ..launch import control", "ravnest.launch.control"),
    ("ravnest/launch/driver.py", "from ravnest.cli.plan_view import show", "ravnest.cli.plan_view.show"),
]


@pytest.mark.parametrize(("file", "source", "names"), PROBES)
def test_the_checker_finds(file: str, source: str, names: str) -> None:
    assert (ROOT / file).is_file()
    found = {line.partition(" uses ")[2] for line in wrong(file, source)}
    assert set(names.split()) <= found


ALLOWED = [
    ("ravnest/launch/ray_session.py", "import ray\nray.init()"),
    ("ring_allreduce/transport/zmq_endpoint.py", "import zmq, socket, time"),
    ("ring_allreduce/progress.py", "import torch\ntorch.zeros(3)"),
    ("ravnest/factories.py", 'import importlib\nimportlib.import_module("user")\nimportlib.invalidate_caches()'),
    ("ravnest/splitting/codegen.py", 'exec(compile("", "f", "exec"), {})'),
    ("cluster_planner/files.py", "import os, tempfile, yaml\nfrom pathlib import Path"),
    ("ravnest/pipeline/flow.py", "from collections import deque\nfrom ravnest.pipeline.shape import require"),
    ("ravnest/runtime/stage.py", "class Model:\n    def eval(self): ...\nModel().eval()"),
    ("ravnest/launch/control.py", "def f(open):\n    return open + 1"),
    ("ravnest/runtime/stage.py", "def f(loader):\n    return loader.pickle.load"),
    ("ravnest/__main__.py", "from ravnest.cli.main import main"),
]


@pytest.mark.parametrize(("file", "source"), ALLOWED)
def test_the_checker_lets_pass(file: str, source: str) -> None:
    assert wrong(file, source) == []


def test_imports_of_every_form_are_seen() -> None:
    source = (
        "import a.b, c as sea\nfrom d.e import f\nfrom . import g\nfrom ..h import i as eye\ndef j():\n"
        "    import k\nsea.x.y\neye.z\na.b.q()\n"
    )
    found = {name for _, name in used("ravnest/cli/some.py", source)}
    imported = {"a.b", "c", "d.e.f", "ravnest.cli.g", "ravnest.h.i", "k"}
    assert found >= imported | {"c.x.y", "ravnest.h.i.z", "a.b.q"}
