"""Traffic of a compiled program: bytes that leave each device, and work that overlaps them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import jax
import numpy as np

from jaxgraph.analysis.hlo import Computation, Instruction, Module, num_bytes, parse, split_list
from jaxgraph.analysis.links import PERMUTE, RULES, Sent, share_of_groups, share_of_pairs
from jaxgraph.kinds import kind_of

# For these, groups without global device ids list replicas, and each stands for all its partitions.
_GROUPS_OF_REPLICAS = ("all-gather", "all-reduce", "reduce-scatter")
_MESH_GROUPS = re.compile(r"mesh\[(.*?)\]")
_TILE_GROUPS = re.compile(r"\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")

_TRIP_COUNT = re.compile(r'known_trip_count\\?"\s*:\s*\{\s*\\?"n\\?"\s*:\s*\\?"(\d+)')

_Sums = dict[tuple[str, str], Fraction]  # by collective and by link: "inside" or "between"


def traffic(compiled: jax.stages.Compiled) -> dict[str, int]:
    """Bytes that leave each device in one run of a compiled program, by collective.

    With N devices in a group and B bytes of operand on each of them:

        all-gather (N-1) B,  all-reduce 2 (N-1)/N B,  reduce-scatter and all-to-all (N-1)/N B,
        collective-permute B (pairs with source != target) / (devices of the program)

    A broadcast counts (N-1)/N B, the mean over the devices of its group; so does a ragged
    all-to-all, whose sizes are known only at run time, as if it sent its whole operand. A loop
    counts as often as it runs. A conditional counts with the branch that sends most; in a loop of
    as many turns as it has branches, it takes one of them at each turn, as on a ring. Operands
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
    """`traffic` from the optimised HLO text of a program."""
    total: dict[str, Fraction] = {}
    for (collective, _), size in _sums(text, None).items():
        total[collective] = total.get(collective, Fraction(0)) + size
    return {collective: round(total[collective]) for collective in sorted(total)}


def traffic_by_link(compiled: jax.stages.Compiled, per_host: int) -> Sent:
    """`traffic` inside a host and between hosts.

    Args:
      compiled: as for `traffic`.
      per_host: devices of a host; those of a mesh are counted through.

    Returns:
      Bytes that leave each device in one run.

    Raises:
      ValueError: as `traffic`.
    """
    return Sent.of(_sums(_text(compiled), per_host))


def _sums(text: str, per_host: int | None) -> _Sums:
    module = parse(text)
    return _Counter(module, per_host).of_computation(module.entry, None)


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


def overlapped_in_hlo(text: str, collective: str = PERMUTE) -> list[Overlap]:
    """`overlapped` from the optimised HLO text of a program."""
    kinds = (PERMUTE, *RULES)
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


class _Counter:
    """Bytes of the computations of a module, each read once for a number of turns around it."""

    def __init__(self, module: Module, per_host: int | None) -> None:
        self._module, self._per_host = module, per_host
        self._known: dict[tuple[str, int | None], _Sums] = {}

    def of_computation(self, computation: Computation, turns: int | None) -> _Sums:
        """Those of a computation, in a loop of so many turns or in none."""
        key = computation.name, turns
        if key not in self._known:
            self._known[key] = _sum(
                self._of_instruction(computation, instruction, turns)
                for instruction in computation.instructions
            )
        return self._known[key]

    def _called(self, name: str, turns: int | None) -> _Sums:
        return self.of_computation(self._module.computations[name.lstrip("%")], turns)

    def _of_instruction(
        self, computation: Computation, instruction: Instruction, turns: int | None
    ) -> _Sums:
        opcode = instruction.opcode
        if _collective(instruction):
            return _of_collective(self._module, computation, instruction, self._per_host)
        if opcode.endswith(("-done", "-update")):
            return {}
        if opcode == "while":
            return self._of_loop(computation, instruction)
        if opcode == "conditional":
            branches = [self._called(name, turns) for name in instruction.branches]
            if len(branches) == turns:
                return _scaled(_sum(branches), Fraction(1, turns))
            return max(branches, key=lambda sent: sum(sent.values()))
        if opcode == "send" and "is_host_transfer=true" not in instruction.attributes_text:
            raise ValueError(
                f"instruction {instruction.name!r} sends from device to device outside of a "
                "collective, which is not counted: compile without pipelined point-to-point "
                "transfers"
            )
        return _sum(self._called(name, turns) for name in instruction.calls)

    def _of_loop(self, computation: Computation, loop: Instruction) -> _Sums:
        known = _TRIP_COUNT.search(loop.attributes.get("backend_config", ""))
        count = int(known[1]) if known else None
        body = self._called(loop.attributes["body"], count)
        condition = self._called(loop.attributes["condition"], None)
        if not body and not condition:
            return {}
        if count is None:
            collectives = sorted({name for name, _ in body | condition})
            raise ValueError(
                f"XLA does not know the trip count of loop {loop.name!r} in {computation.name!r}, "
                f"and it contains {', '.join(collectives)}: give the loop a static length "
                "(jax.lax.scan, or jax.lax.fori_loop with constant bounds)"
            )
        return _sum([_scaled(body, count), _scaled(condition, count + 1)])


def _of_collective(
    module: Module, computation: Computation, instruction: Instruction, per_host: int | None
) -> _Sums:
    collective = _collective(instruction)
    operands = instruction.operands
    if collective == "ragged-all-to-all":
        operands = operands[:1]  # the others are the output buffer and the tables of offsets
    size = sum(num_bytes(computation[operand].shape) for operand in operands)
    if collective == PERMUTE:
        text = re.findall(r"\{(\d+),(\d+)\}", instruction.attributes["source_target_pairs"])
        pairs = [(int(source), int(target)) for source, target in text]
        share = share_of_pairs(pairs, module.num_devices, per_host)
    else:
        share = share_of_groups(collective, _groups(module, instruction), per_host)
    found = {
        (collective, "inside"): size * share.inside,
        (collective, "between"): size * share.between,
    }
    return {key: sent for key, sent in found.items() if sent}


def _groups(module: Module, instruction: Instruction) -> list[list[int]]:
    """The devices of each replica group of a collective."""
    text = instruction.attributes.get("replica_groups", "{}")
    tile = _TILE_GROUPS.match(text)
    if text.startswith("mesh"):
        return _mesh_groups(instruction)
    if tile:
        dimensions = [int(each) for each in tile[3].split(",")]
        ids = np.arange(np.prod(dimensions)).reshape(dimensions)
        if tile[4]:
            ids = ids.transpose([int(each) for each in tile[4].split(",")])
        groups = ids.reshape(int(tile[1]), int(tile[2])).tolist()
    else:
        listed = [split_list(group.strip("{}")) for group in split_list(text[1:-1])]
        groups = [[int(device) for device in group] for group in listed]
    if not any(groups):
        return [list(range(module.num_devices))]
    across_partitions = (
        _collective(instruction) in _GROUPS_OF_REPLICAS
        and "channel_id" in instruction.attributes
        and instruction.attributes.get("use_global_device_ids") != "true"
    )
    if not across_partitions:
        return groups
    partitions = range(module.num_partitions)
    return [[r * len(partitions) + p for r in group for p in partitions] for group in groups]


def _mesh_groups(instruction: Instruction) -> list[list[int]]:
    """Groups written as `mesh['a'=2,'b'=4] {'a','b':(1)2}`: of 'b', runs of 2 after blocks of 1."""
    text = instruction.attributes["replica_groups"]
    mesh = _MESH_GROUPS.match(text)
    # Device ids other than 0, 1, 2, ... follow a comma, between the mesh and the axes.
    axes = text if "{" in text else instruction.attributes["device_ids"]
    if mesh is None:
        raise ValueError(f"replica groups of {instruction.name!r} cannot be read: {text!r}")
    named = dict(part.rsplit("=", 1) for part in split_list(mesh[1]))
    parts = {name: [(1, False), (int(size), False)] for name, size in named.items()}
    for name in split_list(axes[axes.rindex("{") + 1 : axes.rindex("}")]):
        before, size = 1, int(named[name.split(":(")[0]])
        if ":(" in name:
            before, size = (int(each) for each in name.rsplit("(", 1)[1].split(")"))
        name = name.split(":(")[0]
        after = int(named[name]) // (before * size)
        parts[name] = [(before, False), (size, True), (after, False)]
    dimensions = [each for axis in parts.values() for each in axis]
    inside = [index for index, (_, grouped) in enumerate(dimensions) if grouped]
    outside = [index for index, (_, grouped) in enumerate(dimensions) if not grouped]
    ids = np.arange(np.prod([size for size, _ in dimensions]))
    ids = ids.reshape([size for size, _ in dimensions]).transpose([*outside, *inside])
    return ids.reshape(-1, int(np.prod([dimensions[index][0] for index in inside]))).tolist()


def _collective(instruction: Instruction) -> str:
    """The collective that an instruction is or starts, '' if none."""
    opcode = instruction.opcode.removesuffix("-start")
    return opcode if opcode in RULES or opcode == PERMUTE else ""


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


def _scaled(sent: _Sums, factor: int | Fraction) -> _Sums:
    return {key: size * factor for key, size in sent.items()}


def _sum(parts: Iterable[_Sums]) -> _Sums:
    total: _Sums = {}
    for part in parts:
        for key, size in part.items():
            total[key] = total.get(key, Fraction(0)) + size
    return total
