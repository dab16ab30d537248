"""The choice between modes and partitioners: what each costs on a target, and which one to take."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import optax
from flax import nnx
from jax.sharding import Mesh

from jaxgraph.analysis.links import Sent
from jaxgraph.byte_amounts import bytes_of
from jaxgraph.graph import Graph
from jaxgraph.layers import RematPolicy
from jaxgraph.layout.column_tables import ColumnRequest
from jaxgraph.layout.manifest import Manifest
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.layout.typed_tables import tabulate_typed
from jaxgraph.nn.stack import Stack
from jaxgraph.parallel import ShardedGraph, place
from jaxgraph.parallel.sharded_graph import AbstractSource
from jaxgraph.partition import partition
from jaxgraph.partition.choices import checked_choice
from jaxgraph.planner.degree_model import METHODS, GraphCounts, counted_manifest
from jaxgraph.planner.plan import Option, Plan
from jaxgraph.planner.policy_search import Needed, cheapest_fitting
from jaxgraph.planner.step_cost import DryRun, Memory, dry_run
from jaxgraph.planner.streaming import Tried, tried_parts
from jaxgraph.planner.targets import TARGETS, Target, find_target
from jaxgraph.planner.typed_counts import METHODS as DRAWN_METHODS
from jaxgraph.planner.typed_counts import TypedCounts
from jaxgraph.train.task import Task
from jaxgraph.typed_graph import TypedGraph

ROWS_OF_CHUNKS, MOST_CHUNKS = 1 << 24, 8
"""In mode "p3", rows of a chunk of partial activations; each chunk brings tables of all nodes."""
COMPILED = ("fastest", "all", "none")
"""The steps to compile, see `consider`."""
NEAR = 1.1
"""Ways whose times differ by less count as equally fast, since a roofline is no more exact: the
simplest is taken."""
MOST_UNROLLED = 16
"""Parts above which prefetching, whose steps are unrolled, would take minutes to compile."""


@dataclasses.dataclass(frozen=True)
class Considered:
    """A way to run a model, and its plan or the reason why it has none.

    Attributes:
      option: the way.
      run: its cost; None: it cannot be run at all.
      seconds: of a step; NaN where there is no cost.
      halo_share: rows of other parts over own rows, of all parts.
      why_not: why it does not fit or cannot be run; "" where it does.
      policy: the one under which it fits; None: the model's own.
    """

    option: Option
    run: DryRun | None = None
    seconds: float = math.nan
    halo_share: float = math.nan
    why_not: str = ""
    policy: tuple[RematPolicy, ...] | None = None

    @property
    def fits(self) -> bool:
        """True where it can be run within the limit."""
        return self.run is not None and not self.why_not


def options_for(
    num_devices: int, num_nodes: int, methods: Sequence[str] = METHODS, *, of_sets: bool = False
) -> list[Option]:
    """The ways to run a model whose graph the devices hold; on one, all modes are one.

    A graph of several sets has no columns: its modes are "sar" and "domain".
    """
    if num_devices == 1:
        return [Option("sar", methods[0])]
    chunks = 1
    while chunks * ROWS_OF_CHUNKS < num_nodes and chunks < MOST_CHUNKS:
        chunks *= 2
    found = []
    for method in methods:
        found += [Option("domain", method), Option("sar", method)]
        if 2 < num_devices <= MOST_UNROLLED:
            found.append(Option("sar", method, prefetch=True))
        if of_sets:
            continue
        found += [
            Option("p3", method, rest=rest, topology="replicated", chunks=chunks)
            for rest in ("domain", "sar")
        ]
        found.append(Option("p3", method, rest="sar", topology="pushed", chunks=chunks))
    return found


def consider(
    model: nnx.Module,
    source: Graph | TypedGraph | GraphCounts | TypedCounts,
    target: Target | str | Mesh,
    optimizer: optax.GradientTransformation,
    *,
    memory_limit: int | str | None = None,
    methods: Sequence[str] = METHODS,
    compile: str = "all",
    task: Task | None = None,
) -> Iterator[Considered]:
    """Finds the cost of every way to run a model, without running any.

    Where devices hold none of them, those that stream the graph follow, of more and more parts.

    Args:
      model: the model.
      source: the graph, or its counts where it is too large to be built here, or not here.
        Of `TypedCounts`, a graph is drawn, which the host must hold.
      target: the machine: its name, such as "h200x8", or a mesh.
      optimizer: of optax.
      memory_limit: bytes of one device, or text such as "16GB"; a way that does not fit it is
        compiled under other policies too. None: all of its memory, under the model's own policy.
      methods: partitioners; of counts, those of `jaxgraph.planner.degree_model.METHODS`; of
        `TypedCounts` there is one, "hash".
      compile: the steps to compile: "all" whose arguments fit; "fastest" by prediction first, until
        one fits; or "none". The others are predicted.
      task: the task to learn; None: node classification.

    Returns:
      The ways, one after the other.

    Raises:
      ValueError: an argument is not of its kind, or model, graph and task do not fit together.
    """
    checked_choice("compile", compile, COMPILED)
    request = _Request(model, source, target, optimizer, memory_limit, task)
    return request.ways(methods, compile)


class _Request:
    """The model to be run and the machine; partitions of the graph are made once."""

    def __init__(
        self,
        model: nnx.Module,
        source: Graph | TypedGraph | GraphCounts | TypedCounts,
        target: Target | str | Mesh,
        optimizer: optax.GradientTransformation,
        memory_limit: int | str | None,
        task: Task | None,
    ) -> None:
        if not isinstance(source, Graph | TypedGraph | GraphCounts | TypedCounts):
            raise ValueError(
                f"source is of type {type(source).__name__}; expected a jaxgraph.Graph, a "
                "TypedGraph, GraphCounts or TypedCounts"
            )
        found = find_target(target) if isinstance(target, str) else target
        found = _target_of(found) if isinstance(found, Mesh) else found
        if not isinstance(found, Target):
            raise ValueError(
                f"target is of type {type(target).__name__}; expected a name such as 'h200x8', the "
                "result of find_target, or a mesh"
            )
        self.model, self.optimizer, self.task = model, optimizer, task
        self.is_drawn = isinstance(source, TypedCounts)
        self.source = source.drawn() if isinstance(source, TypedCounts) else source
        self.target = found
        self.mesh = target if isinstance(target, Mesh) else found.mesh()
        self.is_limited = memory_limit is not None
        self.limit = bytes_of("memory_limit", memory_limit) if self.is_limited else found.memory
        self.parts: dict[str, Any] = {}

    def ways(self, methods: Sequence[str], compile: str) -> Iterator[Considered]:
        """The cost of every way; see `consider`."""
        methods = DRAWN_METHODS if self.is_drawn else methods
        of_sets = isinstance(self.source, TypedGraph)
        options = options_for(self.target.devices, self.source.num_nodes, methods, of_sets=of_sets)
        found = (self.consider(option, compile=compile == "all") for option in options)
        if compile == "fastest":
            found = iter(self._compiled_until_one_fits(list(found)))
        if not isinstance(self.source, Graph):
            return found
        return self._or_streamed(self.source, found, methods[0], compile=compile != "none")

    def _or_streamed(
        self, graph: Graph, found: Iterable[Considered], method: str, *, compile: bool
    ) -> Iterator[Considered]:
        """Ways that hold the graph; where none fits, those that stream it, until one does."""
        resident = list(found)
        yield from resident
        runs = [each.run for each in resident if each.run is not None]
        if not runs or any(each.fits for each in resident):
            return
        rest: Any = {"task": self.task, "compile": compile, "method": method}
        given = (self.model, graph, self.optimizer, self.limit, self.mesh)
        try:
            for each in tried_parts(*given, **rest):
                yield self._streamed(each, runs[0], method)
        except ValueError as error:  # The model cannot be streamed.
            yield Considered(Option("stream", method), why_not=str(error))

    def _streamed(self, tried: Tried, resident: DryRun, method: str) -> Considered:
        """The cost of streaming: the work of a device, and its bytes to the host and back."""
        needs, counts = tried.needs, tried.sharded.counts
        devices = self.target.devices
        moved = {"to the device": needs.sent, "to the host": needs.returned}
        sent = Sent({name: size // devices for name, size in moved.items()}, {})
        run = dataclasses.replace(
            resident,
            memory=Memory(0, needs.device, needs.host, tried.is_compiled),
            sent=sent,
            communication=sent.total / self.target.speed.host.bandwidth,
            hidden=0.0,
            compiled_for=self.target.compiled_for if tried.is_compiled else None,
        )
        assert counts is not None
        halo = counts.halo_rows_needed / counts.num_nodes
        option = Option("stream", method, parts=tried.parts.num_parts)
        return Considered(option, run, run.seconds, halo, _why_not(run, self.limit))

    def _compiled_until_one_fits(self, found: Sequence[Considered]) -> list[Considered]:
        compiled: dict[Option, Considered] = {}
        for each in _ranked([each for each in found if each.run is not None]):
            compiled[each.option] = self.consider(each.option, compile=True)
            if compiled[each.option].fits:
                break
        return [compiled.get(each.option, each) for each in found]

    def consider(self, option: Option, *, compile: bool) -> Considered:
        """The cost of one way."""
        try:
            manifest = _manifest(self.source, option, self.target.devices, self.parts)
            sharded = place(AbstractSource(manifest), self.mesh, prefetch=option.prefetch)
        except ValueError as error:
            return Considered(option, why_not=str(error))
        given = (self.model, sharded, self.optimizer, self.target)
        try:
            run = dry_run(*given, task=self.task, compile=compile, most=self.limit)
        except ValueError as error:
            if option.mode != "p3":  # Any other mode runs what can be run at all.
                raise
            return Considered(option, why_not=str(error))
        policy, seconds = None, run.seconds
        if compile and self.is_limited and run.memory.arguments < self.limit < run.memory.total:
            own = run.memory.host
            run, policy = self._within(run, sharded)
            # What waits on the host goes there and comes back.
            moved = 2 * (run.memory.host - own)
            seconds = run.seconds + moved / self.target.speed.host.bandwidth
        assert manifest.counts is not None
        halo = manifest.counts.halo_rows_needed / manifest.counts.num_nodes
        return Considered(option, run, seconds, halo, _why_not(run, self.limit), policy)

    def _within(
        self, run: DryRun, sharded: ShardedGraph
    ) -> tuple[DryRun, tuple[RematPolicy, ...] | None]:
        """The cost under the cheapest policy that fits, and that policy."""
        runs = [run]

        def needs(model: nnx.Module) -> Needed:
            if model is not self.model:
                rest = (sharded, self.optimizer, self.target)
                runs.append(dry_run(model, *rest, task=self.task))
            return runs[-1].memory

        try:
            _, plan = cheapest_fitting(self.model, sharded, self.limit, needs)
        except ValueError:
            return min(runs, key=lambda each: each.memory.total), None
        return next(each for each in runs if each.memory.total == plan.needed.total), plan.policy


def choose(
    model: nnx.Module,
    source: Graph | TypedGraph | GraphCounts | TypedCounts,
    target: Target | str | Mesh,
    optimizer: optax.GradientTransformation,
    *,
    memory_limit: int | str | None = None,
    methods: Sequence[str] = METHODS,
    compile: bool = True,
    task: Task | None = None,
) -> Plan:
    """Chooses the fastest way to run a model that fits the memory of a device.

    Args:
      model, source, target, optimizer, memory_limit, methods, task: as for `consider`.
      compile: whether to compile, the fastest by prediction first, until one fits.

    Returns:
      The plan.

    Raises:
      ValueError: an argument is not of its kind, or nothing fits; the message names the least limit
        that works.
    """
    request = _Request(model, source, target, optimizer, memory_limit, task)
    found = list(request.ways(methods, "fastest" if compile else "none"))
    return to_plan(found, model, request.target, request.limit)


def to_plan(
    found: Sequence[Considered], model: nnx.Module, target: Target, memory_limit: int
) -> Plan:
    """The plan of the fastest way among those considered."""
    needed = {each.option: each.run.memory for each in found if each.run is not None}
    fitting = [each for each in found if each.fits]
    # The compiler's figure decides where there is one.
    fitting = [each for each in fitting if needed[each.option].is_compiled] or fitting
    if not fitting:  # A prediction refuses nothing.
        open_ways = [
            each
            for each in found
            if (memory := needed.get(each.option)) is not None
            and not memory.is_compiled
            and memory.arguments <= memory_limit
        ]
        fitting = sorted(open_ways, key=lambda each: needed[each.option].total)[:1]
    if not fitting:
        raise ValueError(_nothing_fits(found, target, memory_limit))
    best = _ranked(fitting)[0]
    assert best.run is not None
    run, own = best.run, model.policy if isinstance(model, Stack) else None
    if best.option.mode == "stream":  # Its backward computes every stage again.
        own = None
    return Plan(
        option=best.option,
        target=target.name,
        hosts=target.hosts,
        memory_limit=memory_limit,
        arguments=run.memory.arguments,
        temporary=run.memory.temporary,
        host=run.memory.host,
        inside=sum(run.sent.inside.values()),
        between=sum(run.sent.between.values()),
        seconds=best.seconds,
        compiled_for=run.compiled_for,
        policy=own if best.policy is None else best.policy,
    )


def _ranked(found: Sequence[Considered]) -> list[Considered]:
    """The fastest first, of those near it the first in the order given."""
    left, ranked = list(found), []
    while left:
        fastest = min(each.seconds for each in left)
        ranked.append(next(each for each in left if each.seconds <= NEAR * fastest))
        left.remove(ranked[-1])
    return ranked


def _nothing_fits(found: Sequence[Considered], target: Target, limit: int) -> str:
    known = [each for each in found if each.run is not None]
    if not known:
        reasons = "; ".join(dict.fromkeys(each.why_not for each in found))
        return f"the model cannot be run on {target.name}: {reasons}"
    least = min(known, key=lambda each: each.run.memory.total if each.run else 0)
    assert least.run is not None
    about = "" if least.run.memory.is_compiled else "about "
    return (
        f"memory_limit is {limit:,} bytes of a device; the least that works on {target.name} is "
        f"{about}{least.run.memory.total:,}, with mode {least.option.label!r} and partitioner "
        f"{least.option.method!r}: allow that, or take more devices"
    )


def _why_not(run: DryRun, limit: int) -> str:
    memory = run.memory
    if memory.is_compiled or memory.total <= limit:
        more = memory.total - limit
        return f"needs {more / 1e9:.3g} GB more" if more > 0 else ""
    if memory.arguments > limit:
        return f"needs {memory.arguments / 1e9:.3g} GB for its arguments alone"
    low, high = memory.range()
    return f"may not fit: predicted to need {low / 1e9:.3g} to {high / 1e9:.3g} GB"


def _manifest(
    source: Graph | TypedGraph | GraphCounts, option: Option, num_parts: int, parts: dict[str, Any]
) -> Manifest:
    if isinstance(source, GraphCounts):
        return counted_manifest(
            source,
            num_parts,
            option.schedule,
            option.method,
            topology=option.topology,
            chunks=option.chunks or 1,
        )
    if option.method not in parts:
        parts[option.method] = partition(source, num_parts, method=option.method)
    if isinstance(source, TypedGraph):
        return tabulate_typed(source, parts[option.method], option.schedule).manifest
    columns = None
    if option.topology is not None:
        columns = ColumnRequest(option.topology, option.chunks or 1)
    return tabulate(source, parts[option.method], option.schedule, columns=columns).manifest


def _target_of(mesh: Mesh) -> Target:
    """The target that the devices of a mesh are."""
    first = mesh.devices.flat[0]
    hosts = len({device.process_index for device in mesh.devices.flat})
    hosts = mesh.devices.shape[0] if mesh.devices.ndim == 2 else hosts
    kind = str(getattr(first, "device_kind", "")).lower()
    chips = ["cpu"] if first.platform == "cpu" else [name for name in TARGETS if name in kind]
    if not chips:
        raise ValueError(
            f"the devices of the mesh are {kind or first.platform}; expected one of "
            f"{', '.join(TARGETS)}: name the target that is nearest to them"
        )
    return Target(chips[0], mesh.size, hosts)
