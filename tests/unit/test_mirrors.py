"""The tests mirror the packages: each module has its test file, each test file has its module, and tests touch nothing
that is private."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.slow_tests import SLOW, SLOW_FILES

ROOT = Path(__file__).parents[2]
UNIT = Path("tests/unit")
MIRRORED = ("cluster_planner", "ring_allreduce", "ravnest", "ring_timing")

MOST_LINES = 400
"""Of a file: one whole idea that a reader can hold."""

TYPES_ONLY = {
    "cluster_planner/search/candidates.py",
    "ravnest/collaboration/messages.py",
    "ravnest/collaboration/step_events.py",
    "ravnest/dht/events.py",
    "ravnest/driver/instructions.py",
    "ravnest/driver/loop_parts.py",
    "ravnest/driver/observe/stage_figures.py",
    "ravnest/pipeline/events.py",
    "ravnest/stage/donor_messages.py",
    "ravnest/stage/epoch_messages.py",
    "ravnest/stage/setup.py",
    "ravnest/stage/shadow_messages.py",
    "ravnest/stage/state_messages.py",
    "ring_allreduce/rounds/events.py",
}
"""Modules that hold only types, and so need no test file."""


def modules(package: str) -> Iterator[Path]:
    """The modules of a package, relative to the root, without the doors of its folders."""
    for path in sorted((ROOT / package).rglob("*.py")):
        if path.name not in {"__init__.py", "__main__.py"}:
            yield path.relative_to(ROOT)


def mirrors(module: Path) -> list[Path]:
    """The test files of a module: `test_<module>.py` and `test_<module>_<aspect>.py` in the mirrored folder."""
    folder = ROOT / UNIT / module.parent
    return [*folder.glob(f"test_{module.stem}.py"), *folder.glob(f"test_{module.stem}_*.py")]


def test_every_module_has_its_test_file() -> None:
    needed = {module.as_posix() for package in MIRRORED for module in modules(package) if not mirrors(module)}
    assert sorted(needed - TYPES_ONLY) == []


def test_every_test_file_has_its_module() -> None:
    """A module, or a folder whose door it tests, is named by the file's name, or by the beginning of that name."""
    found = []
    for package in (*MIRRORED, "experiments"):
        for path in sorted((ROOT / UNIT / package).rglob("test_*.py")):
            folder = path.parent.relative_to(ROOT / UNIT)
            words = path.stem.split("_")[1:]
            names = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
            exists = any((ROOT / folder / f"{name}.py").is_file() or (ROOT / folder / name).is_dir() for name in names)
            if not exists and words != ["init"]:
                found.append(path.relative_to(ROOT).as_posix())
    assert sorted(set(found) - ORPHANS) == []


def test_each_folder_says_what_goes_in_and_what_comes_out() -> None:
    """In a few lines of its `__init__`, so that a reader need not open the files."""
    silent = []
    for package in (*MIRRORED, "experiments"):
        for folder in {path.parent for path in (ROOT / package).rglob("*.py")}:
            said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
            if "In: " not in said or "Out: " not in said:
                silent.append(folder.relative_to(ROOT).as_posix())
    assert sorted(silent) == []


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): lines
        for package in (*MIRRORED, "ravnest_errors", "experiments")
        for path in sorted((ROOT / package).rglob("*.py"))
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MOST_LINES
    }
    assert found == {}


def private_attributes(source: str) -> Iterator[tuple[int, str]]:
    """(line, name) of each attribute `x._name` in `source`, unless `x` is `self` or `cls`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = node.value
            if not (isinstance(owner, ast.Name) and owner.id in {"self", "cls"}):
                yield node.lineno, node.attr


def test_no_test_touches_a_private_attribute() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} uses {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path.relative_to(ROOT).as_posix() not in TO_MEND
        for line, name in private_attributes(path.read_text(encoding="utf-8"))
        if name not in THEIRS
    ]
    assert found == []


THEIRS: set[str] = {"_split_scope", "_asdict", "_replace", "_fields", "_exit"}
"""Names that another library gives to what its users may use."""

ORPHANS = {
    "tests/unit/cluster_planner/test_exported_members.py",
    "tests/unit/experiments/convergence/test_parts.py",
}
"""Test files that have several modules, or none."""

TO_MEND: set[str] = {
    "tests/integration/test_encrypted_streams.py",
    "tests/integration/test_rendezvous.py",
}
"""Files whose tests still use private attributes."""


def test_the_slow_tests_exist() -> None:
    names = {
        node.name
        for path in (ROOT / UNIT).rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    assert sorted(SLOW - names) == []
    assert [start for start in SLOW_FILES if not list(ROOT.glob(f"{start}*"))] == []


def test_quick_tests_start_no_process() -> None:
    """`make quick` leaves out the slow tests: what needs an interpreter of its own is one of them."""
    found = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in sorted((ROOT / UNIT).rglob("test_*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
        and node.name not in SLOW
        and not path.relative_to(ROOT).as_posix().startswith(SLOW_FILES)
        and any(isinstance(part, ast.Name) and part.id in {"subprocess", "multiprocessing"} for part in ast.walk(node))
    ]
    assert found == []


def test_the_lists_name_what_there_is() -> None:
    assert [path for path in sorted(TYPES_ONLY | ORPHANS | TO_MEND) if not (ROOT / path).exists()] == []
