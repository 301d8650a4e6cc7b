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

import networkx
import pytest

ROOT = Path(__file__).parents[2]

PACKAGES: Mapping[str, set[str]] = {
    "ravnest_errors": set(),
    "ring_timing": {"ravnest_errors"},
    "cluster_planner": {"ring_timing", "ravnest_errors"},
    "ring_allreduce": {"ring_timing", "ravnest_errors"},
    "ravnest": {"cluster_planner", "ring_allreduce", "ring_timing", "ravnest_errors"},
    "experiments": {"ravnest", "cluster_planner", "ring_allreduce", "ring_timing"},
    "examples": {"ring_allreduce"},
}
"""Package → the other packages of this repository that it may import. Nobody imports tests."""

ACROSS: Mapping[str, str] = {
    "examples/experts/start.py": "ravnest.experts",
    "examples/experts/train.py": "ravnest.experts",
}
"""File → what of another package it may import all the same: an example of a layer that is no run's."""

DOORS = {
    *PACKAGES,
    *("ring_allreduce.ring", "ring_allreduce.rounds", "ring_allreduce.transport", "ring_allreduce.group"),
    "ravnest.experts",
}
"""What callers outside a package import from (decision 58)."""

BEHIND_DOORS = {"experiments"}
"""Packages that may import the modules of others: they measure parts that no door shows."""

LAYERS: Mapping[str, tuple[str, ...]] = {
    "cluster_planner": (
        "errors formatting",
        "inputs",
        "plan rings",
        "predict",
        "pipeline",
        "files",
        "search",
        "advice",
        "planner",
    ),
    "ring_allreduce": (
        "errors",
        "transport rounds",
        "ring",
        "group",
    ),
    "ravnest": (
        "errors formatting free_memory job_sections pipeline dht templates user_cache",
        "factories recovery",
        "training splitting checkpoints simulator",
        "pictures experts",
        "plan_pictures",
        "job",
        "stage planning collaboration",
        "driver",
        "results rehearsal profiling",
        "page",
        "files",
        "notebook",
        "api machines",
        "cli",
        "__main__",
    ),
}
"""Package → its rooms (folders, and modules beside them), the lowest first. A room imports only from the lines above
its own and from those beside it in its line, and no import is part of a cycle. `__init__` is a package's door: what
lies in the package does not go through it.
"""

CYCLES: list[list[str]] = []
"""Cycles that are still to go."""

FENCES: Mapping[str, tuple[str, ...]] = {
    "ray": ("ravnest/driver/ray/",),
    "zmq": ("ring_allreduce/transport/zmq/", "ring_allreduce/transport/security/"),
    "yaml": ("cluster_planner/files/yaml_files.py",),
    "sklearn": (
        "examples/collaboration/data.py",
        "examples/digits/data.py",
        "examples/experts/train.py",
        "experiments/convergence/data.py",
        "experiments/experts/learning.py",
    ),
    "scipy": (
        "cluster_planner/search/made_clusters.py",
        "cluster_planner/search/starting_groups.py",
        "ring_timing/shares.py",
        "ravnest/collaboration/averaging_plan.py",
        "experiments/convergence/fitting.py",
    ),
    "threadpoolctl": ("experiments/harness/command.py",),
    "networkx": ("cluster_planner/inputs/links.py",),
    "safetensors": (
        "ravnest/checkpoints/checkpoint.py",
        "ravnest/checkpoints/durable_files.py",
        "ravnest/checkpoints/weight_files.py",
        "ravnest/experts/expert_files.py",
    ),
    "transformers": ("ravnest/splitting/model_source.py",),
    "psutil": (
        "ravnest/driver/ray/processes_here.py",
        "ravnest/driver/ray/guard.py",
        "ravnest/driver/ray/local_ray.py",
        "ravnest/free_memory.py",
        "ravnest/profiling/machine_facts.py",
        "ravnest/stage/assembling.py",
        "experiments/",
    ),
    "IPython": ("ravnest/notebook.py",),
    "matplotlib": ("ravnest/pictures.py", "ravnest/plan_pictures.py", "experiments/"),
    "typer": ("ravnest/cli/",),
    "rich": ("ravnest/cli/",),
    "msgspec": (
        "ring_allreduce/",
        "ravnest/checkpoints/manifest.py",
        "ravnest/dht/",
        "ravnest/driver/observe/metrics_file.py",
        "ravnest/driver/run_store.py",
        "ravnest/experts/grid.py",
        "ravnest/page/server.py",
        "ravnest/stage/epoch_messages.py",
        "ravnest/stage/shadow_messages.py",
    ),
    "cryptography": ("ravnest/dht/identity.py",),
    "numpy": (
        "cluster_planner/",
        "ravnest/collaboration/averaging_plan.py",
        "ravnest/collaboration/group_plan.py",
        "ravnest/planning/model_checks.py",  # whether a forward draws from its generator
        "ravnest/training/draws.py",
        "ravnest/training/sampler.py",
        "experiments/",
    ),
    "pydantic": ("cluster_planner/", "ravnest/"),
    "selenium": ("experiments/page/browser.py",),
    "starlette": ("ravnest/page/",),
    "uvicorn": ("ravnest/page/server.py",),
    "wandb": ("ravnest/results/trackers.py",),
    "mlflow": ("ravnest/results/trackers.py",),
    "pydantic_core": ("cluster_planner/files/schema.py", "ravnest/training/optimizer.py"),
    "torch": ("ring_allreduce/", "ravnest/", "experiments/", "examples/"),
    # Run by another environment's interpreter, to compare.
    "hivemind": ("experiments/collaboration/hivemind_averager.py", "experiments/experts/hivemind_nodes.py"),
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
    "pickle": ("ravnest/stage/own_process.py",),  # an argument of Ray, one process further (decision 81)
}
"""What of it somebody must use all the same → the only files that may."""

DYNAMIC: Mapping[str, tuple[str, ...]] = {
    "importlib.import_module": (
        "ravnest/factories.py",  # the user's own code, which is what it is for
        "ravnest/__init__.py",  # its own modules, by a table
        "ravnest/splitting/__init__.py",  # its own modules, by a table
        "ravnest/splitting/program.py",  # Python's own operators, by a list
    ),
    "importlib.util": (),
    "importlib.machinery": ("ravnest/factories.py",),
    "importlib.reload": (),
    "imp": (),
    "pkgutil": (),
    "runpy": (),
    "__import__": (),
    "eval": (),
    "exec": ("ravnest/splitting/stage_module.py",),  # source that is generated from a graph of known operators
    "compile": ("ravnest/splitting/stage_module.py",),
    "sys.modules": (
        "ravnest/factories.py",
        "ravnest/job/callables.py",  # the module that a callable of the user's says it is from
    ),
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
    "ring_timing/": WORLD | TENSORS | {"msgspec"},
    "cluster_planner/": WORLD | TENSORS | {"msgspec"},
    "ring_allreduce/rounds/": WORLD,  # arithmetic on tensors in two of its files
    "ring_allreduce/transport/emulation/": WORLD | TENSORS,
    "ravnest/pipeline/": WORLD | TENSORS,
    "ravnest/recovery/": WORLD | TENSORS,
    "ravnest/simulator/": WORLD | TENSORS,
}
"""Folder → what no file in it may use."""

CLAIMS: Mapping[re.Pattern[str], set[str]] = {
    re.compile(r"\bpure\b|\bno clock\b", re.IGNORECASE): WORLD,
    re.compile(r"\bsans-i/o\b", re.IGNORECASE): WORLD | TENSORS,
}
"""Words in a module's docstring → what they say that it does not use."""

IMPURE_THERE = (
    "cluster_planner/files/yaml_files.py",  # the planner's door to the disk
    "ravnest/simulator/simulate.py",
    "ravnest/simulator/node_trace.py",
    "ravnest/simulator/scenario.py",
    "ravnest/simulator/simulation_request.py",
)
"""Files of pure folders that are their doors to the world."""

ALLOWED_THERE: Mapping[str, str] = {
    "ring_allreduce/transport/emulation/links.py": "random",  # generators of their own, each with a seed
    "ravnest/profiling/pairing.py": "random",
    "experiments/scale/fleets.py": "random",
    "ravnest/driver/stage_setups.py": "pathlib",  # where a job file is: a path that it does not open
}
"""Pure file → the one thing of the world that it may use all the same."""


# Reading one file.


@cache
def used(file: str, source: str) -> Sequence[tuple[int, str]]:
    """(line, dotted name) of everything that is imported, of every attribute of it that is used, and of built-in
    functions. Relative imports are made absolute, other names (`import torch as t`) are seen through."""
    return sorted(set(_used(file, source)))


def _used(file: str, source: str) -> Iterator[tuple[int, str]]:
    nodes = list(ast.walk(ast.parse(source, filename=file)))
    package = file.split("/")[:-1]
    names = {name: name for name in dir(builtins)}
    for node in nodes:
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
    for node in nodes:
        own = node.arg if isinstance(node, ast.arg) else getattr(node, "name", None)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own = node.id
        if isinstance(own, str) and names.get(own) == own and hasattr(builtins, own):
            del names[own]
    for node in (each for each in nodes if isinstance(each, ast.Attribute | ast.Name)):
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
    if is_of(name, ACROSS.get(file, "nothing")):
        return False
    return theirs != mine and theirs in {*PACKAGES, "tests"} - PACKAGES[mine]


def of_a_module_behind_a_door(file: str, name: str) -> bool:
    mine, parts = file.partition("/")[0], name.split(".")
    if mine in BEHIND_DOORS or parts[0] == mine or parts[0] not in PACKAGES:
        return False
    prefixes = [parts[:end] for end in range(len(parts), 0, -1)]
    there = (one for one in prefixes if {"/".join(one) + ".py", "/".join(one) + "/__init__.py"} & HOUSE.keys())
    return ".".join(next(there, [])) not in DOORS


def of_a_room_above(file: str, name: str) -> bool:
    package, mine = file.split("/")[0], file.split("/")[1].removesuffix(".py")
    if package not in LAYERS or mine == "__init__" or not name.startswith(f"{package}."):
        return False
    theirs, layers = name.split(".")[1], [line.split() for line in LAYERS[package]]
    level = {room: number for number, rooms in enumerate(layers) for room in rooms}
    return theirs in level and level[theirs] > level[mine]


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
    if lies_in(file, IMPURE_THERE) or is_of(name, ALLOWED_THERE.get(file, "nothing")):
        return False
    banned = {one for place, names in PURE.items() if lies_in(file, (place,)) for one in names}
    return any(is_of(name, one) for one in banned | claimed(file))


@cache
def claimed(file: str) -> frozenset[str]:
    """What a module may not use since its docstring says what it is; what an `__init__` says is of its folder."""
    docstring = ast.get_docstring(ast.parse(HOUSE.get(file, ""))) or ""
    if file.endswith("__init__.py"):
        return frozenset()
    return frozenset().union(*(banned for claim, banned in CLAIMS.items() if claim.search(docstring)))


FINDERS: Sequence[Callable[[str, str], bool]] = (
    of_another_package,
    of_a_module_behind_a_door,
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
    gone = [place for place in {*places, *PURE, *IMPURE_THERE, *ALLOWED_THERE} if not (ROOT / place).exists()]
    assert gone == []


@pytest.mark.parametrize("package", LAYERS)
def test_every_room_has_its_layer(package: str) -> None:
    rooms = {path.relative_to(ROOT / package).parts[0] for path in (ROOT / package).rglob("*.py")}
    assert {room.removesuffix(".py") for room in rooms} - {"__init__"} == set(" ".join(LAYERS[package]).split())


def test_no_import_is_part_of_a_cycle() -> None:
    """Not even one that stands in a function or under TYPE_CHECKING."""
    modules = {file.removesuffix(".py").replace("/", "."): file for file in HOUSE if not file.endswith("__init__.py")}
    graph = networkx.DiGraph()
    for module, file in modules.items():
        for _, name in used(file, HOUSE[file]):
            parts = name.split(".")
            ends = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
            target = next((end for end in ends if end in modules and end != module), None)
            if target is not None:
                graph.add_edge(module, target)
    assert sorted(sorted(part) for part in networkx.strongly_connected_components(graph) if len(part) > 1) == CYCLES


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


def test_many_files_claim_to_be_pure() -> None:
    assert sum(bool(claimed(file)) for file in HOUSE) >= 40


# The checker itself.

PROBES = [
    # What a reviewer slipped past an earlier version of this file.
    ("ravnest/pipeline/stage_machine.py", "import torch", "torch"),
    ("ring_allreduce/ring/ring_machine.py", "import torch, os, pathlib, datetime", "torch os pathlib datetime"),
    ("ravnest/driver/control.py", "import ray", "ray"),
    ("ravnest/driver/in_process.py", "import pickle", "pickle"),
    ("ring_allreduce/rounds/progress.py", "import time, socket", "time socket"),
    ("ring_allreduce/ring/reducer.py", "import marshal, shelve, dill", "marshal shelve dill"),
    ("ravnest/checkpoints/checkpoint.py", "from torch import load", "torch.load"),
    (
        "ravnest/stage/runtime.py",
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
    ("ravnest/checkpoints/checkpoint.py", "import torch as t\nt.load('x')", "torch.load"),
    ("ravnest/checkpoints/checkpoint.py", "import torch\nread = torch.serialization.load", "torch.serialization.load"),
    ("ravnest/checkpoints/checkpoint.py", "from torch import *", "torch.*"),
    ("ravnest/driver/ray/stage_actors.py", "from pickle import loads", "pickle.loads"),
    (
        "ravnest/driver/ray/stage_actors.py",
        "from multiprocessing.connection import Client",
        "multiprocessing.connection.Client",
    ),
    ("ravnest/driver/checkpoint_collector.py", "import numpy", "numpy"),
    ("cluster_planner/pipeline/order_and_cuts.py", "import numpy as np\nnp.load('x')", "numpy.load"),
    ("cluster_planner/pipeline/order_and_cuts.py", "import numpy as np\nnp.random.rand()", "numpy.random.rand"),
    ("ravnest/stage/runtime.py", '__import__("ray")', "__import__"),
    ("ravnest/stage/runtime.py", 'import builtins\nbuiltins.__import__("ray")', "__import__"),
    ("ravnest/stage/runtime.py", "from importlib import import_module as get", "importlib.import_module"),
    ("ravnest/stage/runtime.py", 'import sys\nsys.modules["ray"]', "sys.modules"),
    ("ravnest/stage/runtime.py", 'exec("import ray")', "exec"),
    ("ravnest/stage/runtime.py", "import zmq", "zmq"),
    ("ring_allreduce/ring/reducer.py", "import zmq", "zmq"),
    ("ravnest/driver/loop.py", "import ray", "ray"),
    ("ravnest/job/config.py", "import yaml", "yaml"),
    ("cluster_planner/pipeline/order_and_cuts.py", "from sklearn import cluster", "sklearn.cluster"),
    ("ravnest/driver/outcome.py", "from safetensors.torch import save_file", "safetensors.torch.save_file"),
    ("ravnest/driver/outcome.py", "import somebodys_package", "somebodys_package"),
    ("ravnest/driver/control.py", "from time import monotonic", "time.monotonic"),
    ("ravnest/driver/control.py", "def f(path):\n    return open(path)", "open"),
    ("ring_allreduce/rounds/owner.py", "import random", "random"),
    ("ring_allreduce/rounds/progress.py", "import torch\ntorch.randn(3)", "torch.randn"),
    ("cluster_planner/planner.py", "import torch", "torch"),
    ("cluster_planner/planner.py", "from ravnest.job.config import Job", "ravnest.job.config.Job"),
    ("ring_allreduce/ring/ring_machine.py", "import cluster_planner", "cluster_planner"),
    ("ravnest/job/config.py", "from tests.support import local", "tests.support.local"),
    ("examples/home/model.py", "import ravnest", "ravnest"),
    ("ravnest/stage/runtime.py", "from cluster_planner.plan import Plan", "cluster_planner.plan.Plan"),
    (
        "ravnest/stage/runtime.py",
        "from ring_allreduce.transport.zmq import zmq_endpoint",
        "ring_allreduce.transport.zmq.zmq_endpoint",
    ),
    ("ravnest/pipeline/flow.py", "from ravnest.stage import messages", "ravnest.stage.messages"),
    ("ravnest/stage/runtime.py", "from ..driver import control", "ravnest.driver.control"),
    ("ravnest/driver/training_run.py", "from ravnest.cli.views.plan import show", "ravnest.cli.views.plan.show"),
]


@pytest.mark.parametrize(("file", "source", "names"), PROBES)
def test_the_checker_finds(file: str, source: str, names: str) -> None:
    assert (ROOT / file).is_file()
    found = {line.partition(" uses ")[2] for line in wrong(file, source)}
    assert set(names.split()) <= found


ALLOWED = [
    ("ravnest/driver/ray/session.py", "import ray\nray.init()"),
    ("ring_allreduce/transport/zmq/zmq_endpoint.py", "import zmq, socket, time"),
    ("ring_allreduce/rounds/progress.py", "import torch\ntorch.zeros(3)"),
    ("ravnest/factories.py", 'import importlib\nimportlib.import_module("user")\nimportlib.invalidate_caches()'),
    ("ravnest/splitting/stage_module.py", 'exec(compile("", "f", "exec"), {})'),
    ("cluster_planner/files/yaml_files.py", "import os, tempfile, yaml\nfrom pathlib import Path"),
    ("ravnest/pipeline/flow.py", "from collections import deque\nfrom ravnest.pipeline.stage_shape import require"),
    ("ravnest/stage/runtime.py", "class Model:\n    def eval(self): ...\nModel().eval()"),
    ("ravnest/driver/control.py", "def f(open):\n    return open + 1"),
    ("ravnest/stage/runtime.py", "def f(loader):\n    return loader.pickle.load"),
    ("ravnest/__main__.py", "from ravnest.cli.main import main"),
    ("ravnest/stage/runtime.py", "from ring_allreduce.transport import Outbox\nfrom cluster_planner import Plan"),
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
