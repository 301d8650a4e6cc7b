"""The fences of the house, walked with ast: which package imports which, and where a third party may appear.

An import counts wherever it stands, inside a function or under TYPE_CHECKING too.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ALLOWED = {
    "cluster_planner": {"cluster_planner"},
    "ring_allreduce": {"ring_allreduce"},
    "ravnest": {"ravnest", "cluster_planner", "ring_allreduce"},
    "experiments": {"experiments", "ravnest", "cluster_planner", "ring_allreduce"},
    "examples": {"examples"},
}
"""Package → the packages of this repository that it may import."""

FENCED = {
    "ray": ("ravnest/launch/",),
    "zmq": ("ring_allreduce/transport/",),
    "yaml": ("cluster_planner/files.py",),
    "sklearn": ("cluster_planner/clustering.py", "examples/digits/data.py"),
    "typer": ("ravnest/cli/",),
    "rich": ("ravnest/cli/",),
    "matplotlib": ("ravnest/pictures.py", "experiments/"),
    "pickle": ("ravnest/launch/",),
}
"""Third party (or module of Python's) → the only files, or folders, where it may be imported."""

SANS_IO = ("ravnest/pipeline/", "ring_allreduce/ring.py", "ring_allreduce/round.py")
IMPURE = {"asyncio", "random", "selectors", "socket", "subprocess", "threading", "time", "zmq", "ray"}


def sources(package: str) -> list[Path]:
    return sorted(path for path in (ROOT / package).rglob("*.py") if "__pycache__" not in path.parts)


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import; relative ones are made absolute."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            yield node.lineno, ".".join([*base, *([node.module] if node.module else [])])


def place(path: Path, line: int, module: str) -> str:
    return f"{path.relative_to(ROOT).as_posix()}:{line} imports {module}"


def is_inside(path: Path, places: tuple[str, ...]) -> bool:
    return path.relative_to(ROOT).as_posix().startswith(places)


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    ours = set(ALLOWED) | {"tests"}
    wrong = [
        place(path, line, module)
        for path in sources(package)
        for line, module in imported(path)
        if module.split(".")[0] in ours - ALLOWED[package]
    ]
    assert wrong == []


@pytest.mark.parametrize("third_party", FENCED)
def test_a_third_party_stays_behind_its_fence(third_party: str) -> None:
    wrong = [
        place(path, line, module)
        for package in ALLOWED
        for path in sources(package)
        for line, module in imported(path)
        if module.split(".")[0] == third_party and not is_inside(path, FENCED[third_party])
    ]
    assert wrong == []


def test_the_planner_knows_no_tensor() -> None:
    wrong = [
        place(path, line, module)
        for path in sources("cluster_planner")
        for line, module in imported(path)
        if module.split(".")[0] in {"torch", "socket", "time", "msgspec"}
    ]
    assert wrong == []


def test_state_machines_are_sans_io() -> None:
    machines = [path for package in ALLOWED for path in sources(package) if is_inside(path, SANS_IO)]
    wrong = [
        place(path, line, module)
        for path in machines
        for line, module in imported(path)
        if module.split(".")[0] in IMPURE
    ]
    assert machines
    assert wrong == []


def test_the_walk_sees_imports_of_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    folder = tmp_path / "ravnest" / "cli"
    folder.mkdir(parents=True)
    path = folder / "some.py"
    path.write_text("import a.b, c\nfrom d.e import f\nfrom . import g\nfrom ..h import i\ndef j():\n    import k\n")
    found = {module for _, module in imported(path)}
    assert found == {"a.b", "c", "d.e", "ravnest.cli", "ravnest.h", "k"}
