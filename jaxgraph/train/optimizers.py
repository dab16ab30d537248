"""Optimizers of optax that compare equal if they were made alike.

An optimizer is a pair of closures, and each call of its factory makes new ones. Compared by
identity, a new but equal optimizer would compile its programs again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import optax

from jaxgraph.train.identity import definition

EvalParams = Callable[[Any, Any], Any]
"""`(optimizer_state, params) -> params`: the parameters to evaluate and to keep."""


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """A transformation of optax, hashable, and equal to those with the same structure.

    Attributes:
      structure: a digest of its functions and constants, which is compared.
      transformation: the transformation.
      eval_params: reads the parameters to evaluate; None: those of the steps.
    """

    structure: str = dataclasses.field(repr=False)
    transformation: optax.GradientTransformation = dataclasses.field(compare=False)
    eval_params: EvalParams | None = dataclasses.field(default=None, compare=False)


def comparable(
    transformation: optax.GradientTransformation, eval_params: EvalParams | None = None
) -> Optimizer:
    """Makes a transformation comparable."""
    structure = definition((transformation, eval_params), here=True)
    return Optimizer(structure, transformation, eval_params)
