"""Compiled functions of graphs, which forget the programs of all but the latest shapes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax

SHAPES = 8
"""The number of shapes used last for which a function's compiled programs are cached."""


class LatestPrograms:
    """`jax.jit` of a function, with a bound on the shapes for which it holds programs."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self._static: tuple[int, ...] = options.get("static_argnums", ())

        # JAX caches the programs of a function as long as the function lives: each shape has a
        # function of its own.
        @lru_cache(maxsize=SHAPES)
        def of_shapes(key: tuple[Any, ...]) -> Any:
            return jax.jit(partial(function), **options)

        self._of_shapes = of_shapes

    def __call__(self, *arguments: Any) -> Any:
        return self._of(arguments)(*arguments)

    def lower(self, *arguments: Any) -> jax.stages.Lowered:
        """Lowers a call; see `jax.jit`."""
        return self._of(arguments).lower(*arguments)

    def _of(self, arguments: tuple[Any, ...]) -> Any:
        """The function for arguments of these shapes."""
        static = tuple(arguments[index] for index in self._static)
        moving = [each for i, each in enumerate(arguments) if i not in self._static]
        leaves, structure = jax.tree.flatten(moving)
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        return self._of_shapes((static, structure, shapes))
