"""The doors of the package and of its folders: what they import is what `__all__` says, and all errors are there."""

import ast
import inspect

import pytest

import ring_allreduce
import ring_allreduce.errors
import ring_allreduce.group
import ring_allreduce.ring
import ring_allreduce.rounds
import ring_allreduce.transport

DOORS = (
    ring_allreduce,
    ring_allreduce.group,
    ring_allreduce.ring,
    ring_allreduce.rounds,
    ring_allreduce.transport,
)
MOST_NAMES = 25


@pytest.mark.parametrize("package", DOORS, ids=lambda package: package.__name__)
def test_a_door_exports_what_it_imports(package) -> None:
    tree = ast.parse(inspect.getsource(package))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert sorted(package.__all__) == sorted(alias.asname or alias.name for node in imports for alias in node.names)


def test_the_package_exports_few_names_and_every_error() -> None:
    assert len(ring_allreduce.__all__) <= MOST_NAMES
    errors = {name for name, value in vars(ring_allreduce.errors).items() if inspect.isclass(value)}
    assert errors <= set(ring_allreduce.__all__)
