"""Short digests of what a run is: its model, task, optimizer and graphs, by name.

A run that is resumed must have those of its checkpoint, and the processes of one run the same.
Digests do not depend on the process: functions count by name, those without one by their code.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxgraph.parallel import ShardedGraph
from jaxgraph.train.task import Task

_LIBRARIES = frozenset(("chex", "flax", "jax", "jaxgraph", "numpy", "optax"))
_POLICY = "policy"
"""Attribute of `jaxgraph.nn.Stack`: what layers save for the backward, no matter of results."""
_SHOWN = 8


def of_run(
    model: nnx.Module, optimizer: optax.GradientTransformation, task: Task
) -> dict[str, str]:
    """The digests that a resumed run must share; rates and policies may change."""
    return {
        "jax_enable_x64": definition(jax.dtypes.canonicalize_dtype(np.float64)),
        "optimizer": definition(optimizer, numbers=False),
        **_of_model(model),
        **_of_task(task),
    }


def of_process(
    model: nnx.Module,
    optimizer: optax.GradientTransformation,
    task: Task,
    graphs: Sequence[ShardedGraph],
    options: Mapping[str, Any],
) -> dict[str, str]:
    """The digests that all processes of a run must share."""
    shapes = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(graphs)]
    further = {
        "versions": [each.__version__ for each in (jax, flax, optax)],
        "optimizer": optimizer,
        "initial parameters": jax.tree.leaves(nnx.state(model)),
        "graph": (str(jax.tree.structure(graphs)), shapes),
        **options,
    }
    found = {name: definition(value) for name, value in further.items()}
    return of_run(model, optimizer, task) | found


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The names whose digests differ, or that one of the two lacks."""
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def listed(names: Sequence[str]) -> str:
    """Names for a message, the first few of many."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def definition(value: Any, *, numbers: bool = True, here: bool = False) -> str:
    """The digest of a value, the same in every process."""
    # By `id`, with the value, so that no other gets its `id`.
    seen: dict[int, tuple[int, Any]] = {}

    def plain(value: Any) -> Any:
        """The names, numbers and code that make up a value, in nested tuples."""
        if value is None or isinstance(value, bool | str | bytes | np.dtype):
            return value
        if isinstance(value, int | float | complex | np.generic | np.ndarray | jax.Array):
            return _bits(value) if numbers else "number"
        if not here and isinstance(value, type | nnx.Pytree):
            return _name(value)  # The attributes of a module count by their names.
        if not here and isinstance(value, nnx.Variable):
            metadata = value.get_metadata()
            of_set = [metadata["table"]] if metadata.get("table") else []
            return _name(value), metadata.get("rows"), *of_set
        if id(value) in seen:
            return "again", seen[id(value)][0]
        seen[id(value)] = len(seen), value
        if isinstance(value, tuple | list):
            parts = value
        elif isinstance(value, Mapping):
            parts = value.items()
        elif isinstance(value, set | frozenset):
            parts = sorted(value, key=repr)  # Their order is one of the process.
        elif isinstance(value, functools.partial):
            parts = value.func, value.args, value.keywords
        elif here and not (isinstance(value, FunctionType) and _library(value)):
            return "itself", id(value)
        elif isinstance(value, CodeType):
            parts = value.co_code, value.co_names, value.co_consts
        elif isinstance(value, FunctionType):
            # An optimizer is made of init and update; any other function in it is a schedule.
            if not numbers and not value.__name__.startswith(("init", "update")):
                return "number"
            is_nameless = "<" in value.__qualname__ and not _library(value)
            code = id(value.__code__) if here else value.__code__ if is_nameless else None
            parts = code, value.__defaults__, value.__kwdefaults__, _closed_over(value)
        elif hasattr(value, "__qualname__"):
            parts = (getattr(value, "__wrapped__", None),)
        elif dataclasses.is_dataclass(value):
            parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
        elif " at 0x" in repr(value):
            parts = vars(value).items() if hasattr(value, "__dict__") else ()
        else:
            return repr(value)
        return _name(value), *map(plain, parts)

    return hashlib.blake2b(repr(plain(value)).encode(), digest_size=16).hexdigest()


EvalParams = Callable[[Any, Any], Any]
"""`(optimizer_state, params) -> params`: the parameters to evaluate and to keep."""


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """A transformation of optax, hashable, and equal to those with the same structure.

    It is a pair of closures, and each call of its factory makes new ones: compared by identity, a
    new but equal optimizer would compile its programs again.

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


def _of_model(model: nnx.Module) -> dict[str, str]:
    found = {"model": definition(model)}
    for path, part in nnx.iter_graph(model):
        if isinstance(part, nnx.Pytree):
            for name, value in vars(part).items():
                # Flax counts the attributes that have its own prefix.
                if name != _POLICY and not name.startswith("_pytree__"):
                    found[".".join(("model", *map(str, path), name))] = definition(value)
    return found


def _of_task(task: Task) -> dict[str, str]:
    values = getattr(task, "__dict__", {})
    found = {f"task.{name}": definition(value) for name, value in values.items()}
    return {"task": definition(type(task)), **found}


def _bits(value: Any) -> Any:
    """The type and every bit of a number or an array."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    if isinstance(value, np.ndarray | jax.Array):
        # Of an array of several processes, each has a part, or all of it.
        ways = ("is_fully_addressable", "is_fully_replicated")
        is_here = any(getattr(value, name, True) for name in ways)
        data = np.ascontiguousarray(jax.device_get(value) if is_here else ())
        digest = hashlib.blake2b(data.reshape(-1).view(np.uint8).data).hexdigest()
        return str(value.dtype), value.shape, digest
    return type(value).__name__, repr(value)


def _closed_over(function: FunctionType) -> list[Any]:
    """The objects in the cells of a function's closure."""
    found = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # It is empty.
            found.append(cell.cell_contents)
    return found


def _name(value: Any) -> str:
    """The name of a function or a class, or that of the class of an object."""
    return _library(value) + getattr(value, "__qualname__", type(value).__qualname__)


def _library(value: Any) -> str:
    """The library that a function or a class is of; "" for one's own, whose module may be run."""
    module = getattr(value, "__globals__", {}).get("__name__") or getattr(value, "__module__", "")
    library = str(module).partition(".")[0]
    return f"{library}." if library in _LIBRARIES else ""
