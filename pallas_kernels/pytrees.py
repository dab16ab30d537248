"""Dataclasses as pytrees whose structure names their class."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax

__all__ = ["pytree"]

Class = TypeVar("Class", bound=type)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def pytree(cls: Class) -> Class:
    """Makes a frozen dataclass of `cls`, and a pytree of it that equals no other class's pytree.

    `jax.tree_util.register_dataclass` compares static fields and children, not classes. Two classes
    with equal fields then have equal structures, and a cache of `jax.jit` returns the program of
    one for the other.

    Args:
      cls: annotated fields. One with `metadata={"static": True}` is part of the structure and must
        be hashable. One with `metadata={"dropped": True}` is not part of the pytree, and has its
        default value after `jax.tree.map`. All others are children.

    Returns:
      `cls`, registered.
    """
    made: Any = dataclasses.dataclass(frozen=True)(cls)
    fields = [f for f in dataclasses.fields(made) if not f.metadata.get("dropped")]
    static = tuple(f.name for f in fields if f.metadata.get("static"))
    children = tuple(f.name for f in fields if not f.metadata.get("static"))
    keys = tuple(jax.tree_util.GetAttrKey(name) for name in children)

    def flatten(value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return (
            tuple(getattr(value, name) for name in children),
            tuple(getattr(value, name) for name in static),
        )

    def flatten_with_keys(value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        values, structure = flatten(value)
        return tuple(zip(keys, values, strict=True)), structure

    def unflatten(structure: tuple[Any, ...], values: Any) -> Any:
        named = dict(zip(children, values, strict=True))
        return made(**named, **dict(zip(static, structure, strict=True)))

    jax.tree_util.register_pytree_with_keys(made, flatten_with_keys, unflatten, flatten)
    return made
