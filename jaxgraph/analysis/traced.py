"""The arguments, messages and steps of a traced program, before it is compiled.

The program's equations are read, those on which no result depends left out. Every array counts with
the shape that a device has of it: a sharded function's arrays are those of one device.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.sharding import Mesh

from jaxgraph.analysis.links import PERMUTE, RULES, Sent, Share, share_of_groups, share_of_pairs
from jaxgraph.ops.core.message_programs import inner_jaxprs, scan_sizes

_COLLECTIVES = {
    "all_gather": "all-gather",
    "all_gather_invariant": "all-gather",
    "all_to_all": "all-to-all",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "ppermute": PERMUTE,
    "psum": "all-reduce",
    "psum2": "all-reduce",
    "psum_invariant": "all-reduce",
    "psum_scatter": "reduce-scatter",
    "ragged_all_to_all": "ragged-all-to-all",
    "reduce_scatter": "reduce-scatter",
}
"""Names that HLO has for them, by those of JAX's primitives."""
_OPAQUE = ("pallas_call", "while")
"""Primitives that are not looked into."""
_KEPT = ("custom_jvp_call", "custom_vjp_call", *_OPAQUE)
"""Primitives whose operands JAX leaves as they are, read or not."""


@dataclasses.dataclass(frozen=True)
class Step:
    """An equation that results depend on, with the loop and the sharded function around it.

    Attributes:
      equation: of the traced program.
      used: which of its results others depend on.
      times: how often it runs; of one branch of a conditional, a share of it.
      turns: of the loop around it; None: there is none.
      mesh: of the sharded function around it; None: there is none.
    """

    equation: Any
    used: tuple[bool, ...]
    times: Fraction
    turns: int | None
    mesh: Mesh | None

    @property
    def name(self) -> str:
        """Of its primitive."""
        return self.equation.primitive.name


def size_of(variable: Any) -> int:
    """Bytes of the value of a variable, of one device inside of a sharded function."""
    aval = variable.aval
    if not hasattr(aval, "shape"):
        return 0
    dtype = aval.dtype
    itemsize = 8 if jnp.issubdtype(dtype, jax.dtypes.prng_key) else dtype.itemsize
    return math.prod(aval.shape) * itemsize


def is_opaque(equation: Any) -> bool:
    """True for one that is taken as a whole: it runs no program, or one with other operands."""
    name, programs = equation.primitive.name, inner_jaxprs(equation)
    if not programs or name in _OPAQUE:
        return True
    if name in ("cond", "scan"):
        return False
    sizes = len(programs[0].invars), len(programs[0].outvars)
    return sizes != (len(equation.invars), len(equation.outvars))


def _live(
    jaxpr: Any, wanted: Sequence[bool], kept: Sequence[str]
) -> tuple[list[bool], list[tuple[Any, list[bool]]]]:
    """The inputs that some outputs depend on, and the equations between with their used outputs.

    All operands of the primitives `kept` count as read.
    """
    needed = {
        variable
        for variable, want in zip(jaxpr.outvars, wanted, strict=True)
        if want and isinstance(variable, core.Var)
    }
    found = []
    for equation in reversed(jaxpr.eqns):
        used = [variable in needed for variable in equation.outvars]
        if not any(used):
            continue
        found.append((equation, used))
        needed |= {
            variable
            for variable, read in zip(equation.invars, _reads(equation, used, kept), strict=True)
            if read and isinstance(variable, core.Var)
        }
    return [variable in needed for variable in jaxpr.invars], found[::-1]


def _reads(equation: Any, used: list[bool], kept: Sequence[str]) -> list[bool]:
    """The operands that the used outputs of an equation depend on."""
    name, programs = equation.primitive.name, inner_jaxprs(equation)
    if is_opaque(equation) or name in kept:
        return [True] * len(equation.invars)
    if name == "scan":
        return _scan(equation, programs[0], used, kept)[0]
    if name == "cond":
        branches = [_live(program, used, kept)[0] for program in programs]
        return [True, *(any(reads) for reads in zip(*branches, strict=True))]
    return _live(programs[0], used, kept)[0]


def _scan(
    equation: Any, body: Any, used: list[bool], kept: Sequence[str]
) -> tuple[list[bool], list[bool]]:
    """Operands that are read, and outputs of the body: a carry is needed where a later turn is."""
    consts, carries = scan_sizes(equation)
    wanted = list(used)
    while True:
        reads = _live(body, wanted, kept)[0]
        carried = reads[consts : consts + carries]
        more = [want or read for want, read in zip(wanted, carried, strict=False)]
        if more == wanted[:carries]:
            return [*reads[:consts], *more, *reads[consts + carries :]], wanted
        wanted[:carries] = more


def live_equations(jaxpr: Any, wanted: Sequence[bool]) -> list[tuple[Any, list[bool]]]:
    """The equations of a program that some of its outputs depend on, with their used outputs."""
    return _live(jaxpr, wanted, _OPAQUE)[1]


def needed_of_scan(equation: Any, used: list[bool]) -> list[bool]:
    """The outputs of the body of a scan that its used outputs depend on."""
    return _scan(equation, inner_jaxprs(equation)[0], used, _OPAQUE)[1]


def live_steps(jaxpr: Any) -> Iterator[Step]:
    """Every equation that a program's results depend on, those of loops and calls too."""
    start = Step(None, (), Fraction(1), None, None)
    yield from _steps(jaxpr, [True] * len(jaxpr.outvars), start, _Values())


class _Values:
    """Numbers of values: those that are computed alike have the same one.

    XLA computes them once. A collective of a value that is computed of no argument is folded.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, Any] = {}
        self._known: dict[Any, int] = {}
        self._constants: set[int] = set()
        self.sent: set[int] = set()

    def _of_key(self, key: Any) -> int:
        return self._known.setdefault(key, len(self._known))

    def number(self, variable: Any) -> int:
        """Of a variable, or of a literal."""
        if not isinstance(variable, core.Var):
            found = self._of_key(("literal", str(variable)))
            self._constants.add(found)
            return found
        if id(variable) not in self._numbers:
            self.renew([variable])
        return self._numbers[id(variable)]

    def renew(self, variables: Sequence[Any]) -> None:
        """Takes variables for values unlike any other."""
        for variable in variables:
            self._numbers[id(variable)] = self._of_key(("new", len(self._known)))

    def copy(self, variables: Sequence[Any], others: Sequence[Any]) -> None:
        """Takes variables for the values of others."""
        numbers = [self.number(other) for other in others]
        for variable, number in zip(variables, numbers, strict=True):
            self._numbers[id(variable)] = number

    def compute(self, equation: Any) -> None:
        """Numbers the results of an equation without programs of its own."""
        operands = tuple(map(self.number, equation.invars))
        params = tuple(sorted((name, str(value)) for name, value in equation.params.items()))
        is_constant = bool(operands) and self._constants.issuperset(operands)
        for index, variable in enumerate(equation.outvars):
            key = (equation.primitive.name, params, operands, index)
            self._numbers[id(variable)] = found = self._of_key(key)
            if is_constant:
                self._constants.add(found)

    def is_sent_again(self, equation: Any) -> bool:
        """True for a collective that equals one before, or whose operands are constants."""
        self.compute(equation)
        found = self.number(equation.outvars[0])
        is_known = found in self.sent or found in self._constants
        self.sent.add(found)
        return is_known


def _steps(jaxpr: Any, wanted: Sequence[bool], around: Step, values: _Values) -> Iterator[Step]:
    for equation, used in _live(jaxpr, wanted, _OPAQUE)[1]:
        name, programs = equation.primitive.name, inner_jaxprs(equation)
        here = dataclasses.replace(around, equation=equation, used=tuple(used))
        if is_opaque(equation):
            if name == "while":
                _check_loop(here)
            if name in _COLLECTIVES and values.is_sent_again(equation):
                continue
            if programs:
                values.renew(equation.outvars)
            else:
                values.compute(equation)
            yield here
        elif name in ("scan", "cond", "remat2", "checkpoint"):
            # Their operands are others at every turn, or kept from being computed twice.
            for program in programs:
                values.renew(program.invars)
            yield from _of_several(programs, here, values)
            values.renew(equation.outvars)
        else:
            mesh = equation.params["mesh"] if name == "shard_map" else here.mesh
            values.copy(programs[0].invars, equation.invars)
            inside = dataclasses.replace(here, mesh=mesh)
            yield from _steps(programs[0], used, inside, values)
            values.copy(equation.outvars, programs[0].outvars)


def _of_several(programs: Sequence[Any], here: Step, values: _Values) -> Iterator[Step]:
    used, name = list(here.used), here.name
    if name == "cond":
        yield from _of_branches(programs, used, here, values)
    elif name == "scan":
        turns = here.equation.params["length"]
        inside = dataclasses.replace(here, times=here.times * turns, turns=turns)
        wanted = _scan(here.equation, programs[0], used, _OPAQUE)[1]
        yield from _steps(programs[0], wanted, inside, values)
    else:
        yield from _steps(programs[0], used, here, values)


def _check_loop(here: Step) -> None:
    """Raises ValueError for a collective in a loop that runs until its data says so."""
    for program in inner_jaxprs(here.equation):
        for step in _steps(program, [True] * len(program.outvars), here, _Values()):
            if step.name in _COLLECTIVES:
                raise ValueError(
                    f"a loop whose turns are not known before it runs holds {step.name}: give it a "
                    "static length (jax.lax.scan, or jax.lax.fori_loop with constant bounds)"
                )


def _of_branches(
    programs: Sequence[Any], used: Sequence[bool], here: Step, values: _Values
) -> Iterator[Step]:
    """One branch at each turn where there are as many; else the one that sends most."""
    branches = [list(_steps(program, used, here, values)) for program in programs]
    if len(branches) == here.turns:
        share = Fraction(1, len(branches))
        for step in (step for branch in branches for step in branch):
            yield dataclasses.replace(step, times=step.times * share)
    else:
        yield from max(branches, key=lambda steps: sum(_sent(steps, None).values()))


def sent_by_link(steps: Sequence[Step], per_host: int) -> Sent:
    """Bytes that leave each device in one run, as of `jaxgraph.analysis.traffic_by_link`."""
    return Sent.of(_sent(steps, per_host))


def _sent(steps: Sequence[Step], per_host: int | None) -> dict[tuple[str, str], Fraction]:
    total: dict[tuple[str, str], Fraction] = {}
    for step in steps:
        if step.name not in _COLLECTIVES or step.mesh is None:
            continue
        operands = step.equation.invars
        if len(operands) == len(step.used):
            operands = [each for each, use in zip(operands, step.used, strict=True) if use]
        size = sum(map(size_of, operands)) * step.times
        share = _share(step, per_host)
        for link in ("inside", "between"):
            key, sent = (_COLLECTIVES[step.name], link), size * getattr(share, link)
            if sent:
                total[key] = total.get(key, Fraction(0)) + sent
    return total


def _share(step: Step, per_host: int | None) -> Share:
    params, mesh = step.equation.params, step.mesh
    assert mesh is not None
    axes = params.get("axis_name", params.get("axes"))
    axes = (axes,) if isinstance(axes, str) else tuple(axes)
    groups = _groups(mesh, axes)
    if step.name != "ppermute":
        collective = _COLLECTIVES[step.name]
        assert collective in RULES
        return share_of_groups(collective, groups, per_host)
    pairs = [(group[a], group[b]) for group in groups for a, b in params["perm"]]
    return share_of_pairs(pairs, mesh.size, per_host)


def _groups(mesh: Mesh, axes: Sequence[str]) -> list[list[int]]:
    """The devices that differ in some axes of a mesh alone, numbered as the mesh lists them."""
    names = list(mesh.axis_names)
    ids = np.arange(mesh.size).reshape([mesh.shape[name] for name in names])
    last = [names.index(axis) for axis in axes]
    first = [index for index in range(len(names)) if index not in last]
    size = math.prod(mesh.shape[axis] for axis in axes)
    return ids.transpose([*first, *last]).reshape(-1, size).tolist()


def argument_bytes(traced: jax.stages.Traced, arguments: Any, *, on_host: bool = False) -> int:
    """Bytes of a program's arguments on one device, without those that it never reads."""
    jaxpr = traced.jaxpr.jaxpr
    reads = _live(jaxpr, [True] * len(jaxpr.outvars), _KEPT)[0]
    moved = {
        variable
        for equation in jaxpr.eqns
        if equation.primitive.name == "device_put"
        and jax.memory.Space.Host in equation.params["devices"]
        for variable in equation.invars
        if isinstance(variable, core.Var)
    }
    leaves, total = jax.tree.leaves(arguments), 0
    for leaf, variable, read in zip(leaves, jaxpr.invars, reads, strict=True):
        sharding = getattr(leaf, "sharding", None)
        if read and (variable in moved) == on_host:
            shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
            whole = math.prod(leaf.shape)
            total += size_of(variable) * math.prod(shape) // whole if whole else 0
    return total
