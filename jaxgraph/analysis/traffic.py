"""Traffic of a compiled program: bytes that leave each device, and work that overlaps them."""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

import jax

from jaxgraph.analysis.hlo import Computation, Instruction, Module, num_bytes, parse, split_list
from jaxgraph.analysis.trip_count import trip_count
from jaxgraph.kinds import kind_of

__all__ = ["Overlap", "overlapped", "overlapped_in_hlo", "traffic", "traffic_from_hlo"]

# Bytes that leave a device over bytes of its operand, by the number of devices in the group.
_RULES: dict[str, Callable[[int], Fraction]] = {
    "all-gather": lambda size: Fraction(size - 1),
    "all-reduce": lambda size: Fraction(2 * (size - 1), size),
    "all-to-all": lambda size: Fraction(size - 1, size),
    "collective-broadcast": lambda size: Fraction(size - 1, size),
    "ragged-all-to-all": lambda size: Fraction(size - 1, size),
    "reduce-scatter": lambda size: Fraction(size - 1, size),
}
_PERMUTE = "collective-permute"
# For these, groups without global device ids list replicas, and each stands for all its partitions.
_GROUPS_OF_REPLICAS = ("all-gather", "all-reduce", "reduce-scatter")
_MESH_GROUPS = re.compile(r"mesh\[(.*?)\]")
_TILE_GROUPS = re.compile(r"\[(\d+),(\d+)\]<=")

_Bytes = dict[str, Fraction]


def traffic(compiled: jax.stages.Compiled) -> dict[str, int]:
    """Bytes that leave each device in one run of a compiled program, by collective.

    With N devices in a group and B bytes of operand on each of them:

        all-gather (N-1) B,  all-reduce 2 (N-1)/N B,  reduce-scatter and all-to-all (N-1)/N B,
        collective-permute B (pairs with source != target) / (devices of the program)

    A broadcast counts (N-1)/N B, the mean over the devices of its group; so does a ragged
    all-to-all, whose sizes are known only at run time, as if it sent its whole operand. A loop
    counts as often as it runs; a conditional counts once, with the branch that sends most. Operands
    count as compiled: XLA's CPU backend widens bfloat16 collectives to float32, so they count as
    float32.

    Args:
      compiled: an SPMD program, from `jax.jit(f).lower(...).compile()`, for any platform.

    Returns:
      {collective: bytes}, for the collectives that send anything: `all-gather`, `all-reduce`,
      `all-to-all`, `collective-permute`, `reduce-scatter`, `collective-broadcast`,
      `ragged-all-to-all`.

    Raises:
      ValueError: a loop that contains collectives has no trip count in the program's text, or the
        program sends in a way that is not counted here.
    """
    return traffic_from_hlo(_text(compiled))


def traffic_from_hlo(text: str) -> dict[str, int]:
    """`traffic` from the optimised HLO text of a program.

    Args:
      text: the result of `compiled.as_text()`.

    Returns:
      {collective: bytes that leave each device in one run}.

    Raises:
      ValueError: as `traffic`, or the text is not that of one HLO module.
    """
    module = parse(text)
    total = _of_computation(module, module.entry, {})
    return {collective: round(total[collective]) for collective in sorted(total)}


@dataclass(frozen=True)
class Overlap:
    """Instructions that the schedule places between the start and the end of one collective.

    Attributes:
      name: name of the instruction that starts it.
      computation: name of the computation that holds it, such as a loop's body.
      asynchronous: whether it has a start and an end; if not, nothing can run between.
      between: opcodes of the instructions between start and end, in schedule order.
    """

    name: str
    computation: str
    asynchronous: bool
    between: tuple[str, ...]

    @property
    def loops_between(self) -> int:
        """While loops that run during the transfer."""
        return self.between.count("while")

    @property
    def fusions_between(self) -> int:
        """Fused kernels of XLA that run during the transfer."""
        return self.between.count("fusion")

    @property
    def custom_calls_between(self) -> int:
        """Kernels from outside of XLA (Pallas, libraries) that run during the transfer."""
        return self.between.count("custom-call")


def overlapped(
    compiled: jax.stages.Compiled, collective: str = "collective-permute"
) -> list[Overlap]:
    """Lists what a compiled program runs during each of its collectives of one kind.

    Args:
      compiled: a program from `jax.jit(f).lower(...).compile()`, for any platform.
      collective: the kind, as named by `traffic`.

    Returns:
      One entry for each collective, in the order of the text.

    Raises:
      ValueError: the program is not scheduled, so that its order says nothing, or there is no such
        kind.
    """
    return overlapped_in_hlo(_text(compiled), collective)


def overlapped_in_hlo(text: str, collective: str = _PERMUTE) -> list[Overlap]:
    """`overlapped` from the optimised HLO text of a program.

    Args:
      text: the result of `compiled.as_text()`.
      collective: the kind.

    Returns:
      One entry for each collective, in the order of the text.

    Raises:
      ValueError: the program is not scheduled, a collective that starts does not end, or there is
        no such kind.
    """
    kinds = (_PERMUTE, *_RULES)
    if collective not in kinds:
        raise ValueError(f"collective is {collective!r}; expected one of {', '.join(kinds)}")
    module = parse(text)
    if not module.is_scheduled:
        raise ValueError(
            "the program is not scheduled (no is_scheduled=true in its first line): the order of "
            "its instructions says nothing; pass a compiled program, not a lowered one"
        )
    wrapped = _async_computations(module)
    return [
        _overlap(computation, position)
        for computation in module.computations.values()
        if computation.name not in wrapped
        for position, instruction in enumerate(computation.instructions)
        if _is_of_kind(module, instruction, collective)
    ]


def _text(compiled: jax.stages.Compiled) -> str:
    if not hasattr(compiled, "as_text"):
        raise ValueError(
            f"got {kind_of(compiled)} for the compiled program; expected what "
            "jax.jit(f).lower(...).compile() returns, or jaxgraph.train.compile_train_step"
        )
    text = compiled.as_text()
    if text is None:
        raise ValueError("this platform's compiler gives no text of the compiled program")
    return text


def _of_computation(module: Module, computation: Computation, known: dict[str, _Bytes]) -> _Bytes:
    if computation.name not in known:
        known[computation.name] = _sum(
            _of_instruction(module, computation, instruction, known)
            for instruction in computation.instructions
        )
    return known[computation.name]


def _of_instruction(
    module: Module, computation: Computation, instruction: Instruction, known: dict[str, _Bytes]
) -> _Bytes:
    opcode = instruction.opcode

    def called(name: str) -> _Bytes:
        return _of_computation(module, module.computations[name.lstrip("%")], known)

    if _collective(instruction):
        return _of_collective(module, computation, instruction)
    if opcode.endswith(("-done", "-update")):
        return {}
    if opcode == "while":
        body = called(instruction.attributes["body"])
        condition = called(instruction.attributes["condition"])
        return _of_loop(module, computation, instruction, body, condition)
    if opcode == "conditional":
        branches = [called(name) for name in instruction.branches]
        return max(branches, key=lambda sent: sum(sent.values()))
    if opcode == "send" and "is_host_transfer=true" not in instruction.attributes_text:
        raise ValueError(
            f"instruction {instruction.name!r} sends from device to device outside of a "
            "collective, which is not counted: compile without pipelined point-to-point transfers"
        )
    return _sum(called(name) for name in instruction.calls)


def _of_loop(
    module: Module, computation: Computation, loop: Instruction, body: _Bytes, condition: _Bytes
) -> _Bytes:
    if not body and not condition:
        return {}
    count = trip_count(module, computation, loop)
    if count is None:
        raise ValueError(
            f"the trip count of loop {loop.name!r} in {computation.name!r} cannot be derived, and "
            f"it contains {', '.join(sorted(body | condition))}: give the loop a static length "
            "(jax.lax.scan, or jax.lax.fori_loop with constant bounds)"
        )
    return _sum([_scaled(body, count), _scaled(condition, count + 1)])


def _of_collective(module: Module, computation: Computation, instruction: Instruction) -> _Bytes:
    collective = _collective(instruction)
    operands = instruction.operands
    if collective == "ragged-all-to-all":
        operands = operands[:1]  # the others are the output buffer and the tables of offsets
    size = sum(num_bytes(computation[operand].shape) for operand in operands)
    if collective == _PERMUTE:
        pairs = re.findall(r"\{(\d+),(\d+)\}", instruction.attributes["source_target_pairs"])
        moved = sum(source != target for source, target in pairs)
        share = Fraction(moved, module.num_devices)
    else:
        sizes = _group_sizes(module, instruction)
        share = sum(n * _RULES[collective](n) for n in sizes) / Fraction(sum(sizes))
    return {collective: size * share} if size * share else {}


def _group_sizes(module: Module, instruction: Instruction) -> list[int]:
    """Devices in each replica group of a collective."""
    text = instruction.attributes.get("replica_groups", "{}")
    tile = _TILE_GROUPS.match(text)
    if text.startswith("mesh"):
        return [_mesh_group_size(instruction)]
    if tile:
        sizes = [int(tile[2])] * int(tile[1])
    else:
        groups = split_list(text[1:-1])
        sizes = [len(split_list(group.strip("{}"))) for group in groups]
    if not any(sizes):
        return [module.num_devices]
    across_partitions = (
        _collective(instruction) in _GROUPS_OF_REPLICAS
        and "channel_id" in instruction.attributes
        and instruction.attributes.get("use_global_device_ids") != "true"
    )
    return [n * module.num_partitions for n in sizes] if across_partitions else sizes


def _mesh_group_size(instruction: Instruction) -> int:
    """Size of the groups written as `mesh['a'=2,'b'=4] {'a','b':(1)2}`."""
    text = instruction.attributes["replica_groups"]
    mesh = _MESH_GROUPS.match(text)
    # Device ids other than 0, 1, 2, ... follow a comma, between the mesh and the axes.
    axes = text if "{" in text else instruction.attributes["device_ids"]
    if mesh is None:
        raise ValueError(f"replica groups of {instruction.name!r} cannot be read: {text!r}")
    sizes = dict(part.rsplit("=", 1) for part in split_list(mesh[1]))
    names = split_list(axes[axes.rindex("{") + 1 : axes.rindex("}")])
    return math.prod(int(name.rsplit(")", 1)[1] if ":(" in name else sizes[name]) for name in names)


def _collective(instruction: Instruction) -> str:
    """The collective that an instruction is or starts, '' if none."""
    opcode = instruction.opcode.removesuffix("-start")
    return opcode if opcode in _RULES or opcode == _PERMUTE else ""


def _is_of_kind(module: Module, instruction: Instruction, collective: str) -> bool:
    if instruction.opcode == "async-start":
        called = (module.computations[name] for name in instruction.calls)
        return any(
            _collective(inner) == collective for body in called for inner in body.instructions
        )
    return _collective(instruction) == collective


def _async_computations(module: Module) -> set[str]:
    """Computations that only wrap the operation of an `async-start`."""
    return {
        name
        for computation in module.computations.values()
        for instruction in computation.instructions
        if instruction.opcode == "async-start"
        for name in instruction.calls
    }


def _overlap(computation: Computation, position: int) -> Overlap:
    start = computation.instructions[position]
    # Older compilers keep the pair of a permute that they nevertheless run synchronously.
    synchronous = re.search(r'is_sync\\?":\s*true', start.attributes.get("backend_config", ""))
    if not start.opcode.endswith("-start") or synchronous:
        return Overlap(start.name, computation.name, False, ())
    stages = {start.name}
    between: list[str] = []
    for instruction in computation.instructions[position + 1 :]:
        if stages.intersection(instruction.operands):
            if instruction.opcode.endswith("-done"):
                return Overlap(start.name, computation.name, True, tuple(between))
            stages.add(instruction.name)
        between.append(instruction.opcode)
    raise ValueError(f"{start.name!r} starts in {computation.name!r} but does not end there")


def _scaled(sent: _Bytes, factor: int) -> _Bytes:
    return {collective: size * factor for collective, size in sent.items()}


def _sum(parts: Iterable[_Bytes]) -> _Bytes:
    total: _Bytes = {}
    for part in parts:
        for collective, size in part.items():
            total[collective] = total.get(collective, Fraction(0)) + size
    return total
