"""The public surface: what is exported is exactly what `__all__` says, sorted, and all of it is there."""

import ast
import inspect

import ring_allreduce
import ring_allreduce.transport


def _imported(package) -> set[str]:
    tree = ast.parse(inspect.getsource(package))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name for node in imports for alias in node.names}


def test_exported_members():
    for package in (ring_allreduce, ring_allreduce.transport):
        exported = set(package.__all__)
        assert exported == _imported(package)
        assert len(exported) == len(package.__all__)
        assert all(hasattr(package, name) for name in exported)


def test_every_error_is_exported():
    import ring_allreduce.errors as errors

    defined = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert defined <= set(ring_allreduce.__all__)
