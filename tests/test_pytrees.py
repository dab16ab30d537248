"""Pytrees of different classes have different structures."""

import dataclasses
import importlib
import inspect
import itertools
import pkgutil
import re

import jax
import pytest
from flax import nnx

import jaxgraph
import pallas_kernels
from pallas_kernels.pytrees import pytree

LIBRARY = "jaxgraph.ops.cpu.kernels"
"""A shared library, which Python mistakes for a module by its name."""


def dataclasses_of_the_library() -> set[type]:
    found: set[type] = set()
    for package in (jaxgraph, pallas_kernels):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if module.name == LIBRARY:
                continue
            members = inspect.getmembers(importlib.import_module(module.name), inspect.isclass)
            found |= {c for _, c in members if dataclasses.is_dataclass(c)}
    own = {c for c in found if c.__module__.split(".")[0] in ("jaxgraph", "pallas_kernels")}
    # A graph refuses to be a pytree, with advice.
    return own - {jaxgraph.Graph}


def structure_of_equal_fields(cls: type):
    value = object.__new__(cls)
    for field in dataclasses.fields(cls):
        object.__setattr__(value, field.name, 0)
    return jax.tree.structure(value)


def test_no_two_classes_have_equal_structures():
    leaf = jax.tree.structure(0)
    structures = {c: structure_of_equal_fields(c) for c in dataclasses_of_the_library()}
    pytrees = {c: s for c, s in structures.items() if s != leaf}
    assert len(pytrees) > 20
    equal = [(a, b) for a, b in itertools.combinations(pytrees, 2) if pytrees[a] == pytrees[b]]
    assert not equal


def test_a_pytree_keeps_static_fields_and_forgets_dropped_ones():
    @pytree
    class Example:
        child: object
        static: int = dataclasses.field(metadata={"static": True})
        dropped: int | None = dataclasses.field(default=None, metadata={"dropped": True})

    example = Example((1, 2), 3, 4)
    assert jax.tree.leaves(example) == [1, 2]
    assert jax.tree.map(lambda x: x + 1, example) == Example((2, 3), 3, None)
    assert jax.tree.structure(example) != jax.tree.structure(Example((1, 2), 4))
    (path, _), *_ = jax.tree_util.tree_leaves_with_path(example)
    assert jax.tree_util.keystr(path) == ".child[0]"
    with pytest.raises(dataclasses.FrozenInstanceError):
        example.static = 5  # pyright: ignore[reportAttributeAccessIssue]


def test_functions_words_and_switches_are_static_fields():
    """As leaves they would be arguments of compiled programs, which must be arrays."""
    leaf = jax.tree.structure(0)
    switches = [
        (cls.__name__, field.name)
        for cls in dataclasses_of_the_library()
        if structure_of_equal_fields(cls) != leaf and not issubclass(cls, nnx.Module)
        for field in dataclasses.fields(cls)
        if re.match(r"(Callable|str|bool|int|float)\b(?!.*(Array|ndarray))", str(field.type))
        and not (field.metadata.get("static") or field.metadata.get("dropped"))
    ]
    assert not switches
