"""`jaxgraph plan`: what training a model would cost on a machine, and how to run it there."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from jaxgraph.byte_amounts import bytes_of
from jaxgraph.cli.command import REQUIRED, count, of_device, of_graph, option, option_name
from jaxgraph.cli.devices import mesh_of
from jaxgraph.cli.display import Output, byte_text, second_text
from jaxgraph.cli.graphs import load_typed
from jaxgraph.cli.options import PARTITIONERS, GraphOptions, SampleOptions
from jaxgraph.cli.recipes import Recipe, build_model, chosen_recipe, optimizer_of
from jaxgraph.cli.sampling import check_sampled, dense, fanouts_of
from jaxgraph.external.request import METHODS
from jaxgraph.graph import Graph
from jaxgraph.graph_facts import GraphFacts, facts_of, facts_of_typed
from jaxgraph.typed_graph import TypedGraph
from jaxgraph.written_file import check_writable

if TYPE_CHECKING:
    from jaxgraph.planner import (
        Considered,
        GraphCounts,
        Option,
        Plan,
        Target,
        TypedCounts,
    )

_GENERATED = ("num_nodes", "num_classes", "num_features", "degree")
_COUNTS = ("num_nodes", "num_edges", "num_features", "num_classes")


@dataclass(frozen=True, kw_only=True)
class PlanOptions(GraphOptions, SampleOptions):
    """The options of `jaxgraph plan`; None leaves the choice to the recipe."""

    num_edges: int | None = of_graph(
        "Instead of --dataset: directed edges of a graph that is not here, as 3.2e9, beside "
        "--num-nodes, --num-features and --num-classes.",
        parser=count,
        least=1,
    )
    halo_share: float | None = of_graph(
        "Rows of other parts over own ones that METIS leaves of a graph that is not here; 1 is "
        "assumed where not given, meshes have 0.01.",
        least=0,
    )
    num_edge_types: int | None = of_graph(
        "Instead of --dataset, beside these: edge types, for --model rgcn.", parser=count, least=1
    )
    target: str = of_device("Chip and devices, as h200x8: a100, h100, h200, b200 or cpu.", REQUIRED)
    hosts: int | None = of_device("Hosts of the devices; else there are 8 GPUs on each.", least=1)
    memory_limit: str | None = of_device("Memory of one device, as 100GB; all where not given.")
    partitioner: str | None = of_device("Partitioner; else metis and hash", choices=PARTITIONERS)
    compile: str = option(
        "Compile the step of the way that is predicted to be fastest, until one fits; all; none",
        "fastest",
        choices=("fastest", "all", "none"),
    )
    save: Path | None = option("Write the plan to this file.")

    def __post_init__(self) -> None:
        super().__post_init__()
        missing = [option_name(name) for name in _COUNTS if getattr(self, name) is None]
        if self.dataset is None and missing:
            raise ValueError(f"{', '.join(missing)}: missing; expected --dataset, or all counts.")
        if self.dataset is not None:
            self.refuse(
                ["num_edges", "num_edge_types"],
                "for a graph by its counts; leave it or --dataset out.",
            )
        if self.is_sampled():
            if self.dataset is None:
                self.refuse(["sample"], "draws from a graph; give --dataset in place of counts.")
            self.refuse(
                ["memory_limit", "compile", "save"],
                "for steps over the whole graph; leave it out, or leave out --sample.",
            )


def run_plan(options: PlanOptions) -> None:
    """Find what training would cost on a machine, and how to run it there; nothing is run."""
    check_writable("--save", options.save)
    # Nothing runs here, and a GPU that is there is left alone. The process is the command's own.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from jaxgraph.planner import consider, find_target
    from jaxgraph.planner.choice import to_plan

    target = find_target(options.target, hosts=options.hosts)
    settings = chosen_recipe(options, options.dataset or "")
    source, facts = _source(options)
    if options.sample is not None:
        _plan_samples(options, settings, source, facts, target)
        return
    model = build_model(settings, facts, options.seed)
    mesh_of(target.devices if target.is_emulated else 1)
    output, given = Output(), options.memory_limit
    limit = target.memory if given is None else bytes_of("memory_limit", given)
    how: dict[str, Any] = {"memory_limit": given, "compile": options.compile}
    if options.partitioner is not None:
        how["methods"] = (options.partitioner,)
    found = list(consider(model, source, target, optimizer_of(settings), **how))
    heads = "" if settings.heads is None else f", {settings.heads} heads"
    is_compiled = options.compile != "none"
    title = (
        f"{settings.model}, {settings.layers} layers of {settings.hidden}{heads}, on "
        f"{facts.num_nodes:,} nodes, {facts.num_edges:,} edges: {target.name} on {target.hosts} "
        f"host(s), {f'compiled for {target.compiled_for}' if is_compiled else 'not compiled'}"
    )
    output.print(_table(title, found, limit))
    for line in _remarks(found):
        output.print(line, soft_wrap=True, highlight=False, markup=False)
    if options.dataset is None:
        # Those for which a graph can be cut without being in memory, if there are some.
        found = [way for way in found if way.fits and _is_cut_from_files(way.option)] or found
    plan = to_plan(found, model, target, limit)
    command = f"Recommended: {_command(options, plan)}"
    output.print(command, soft_wrap=True, highlight=False, markup=False)
    if options.save is not None:
        plan.save(options.save)


def _plan_samples(
    options: PlanOptions, settings: Recipe, graph: Any, facts: GraphFacts, target: "Target"
) -> None:
    """Compares what mini-batches send in each mode."""
    from jaxgraph.planner import choose_for_samples

    if not isinstance(graph, Graph):
        raise ValueError(f"--sample: not for {graph.name}, whose edges have types.")
    check_sampled(options, settings, facts, target.devices)
    method, width = options.partitioner or "metis", settings.hidden * (settings.heads or 1)
    found = choose_for_samples(
        dense(graph, says=True),
        fanouts_of(str(options.sample)),
        num_devices=target.devices,
        hidden=width if settings.layers > 1 else facts.num_classes,
        batch_size=options.batch_size,
        method=method,
        sample_method=options.sample_method,
        seed=options.seed,
    )
    cut = f"--parts {target.devices} --mode {found.mode} --partitioner {method}"
    given = _given(options, ("model", "hidden", "layers", "heads", "norm"))
    drawn = _given(options, ("sample", "batch_size", "sample_method"))
    command = " ".join(["jaxgraph train", *_graph_given(options), cut, *given, *drawn])
    for line in (str(found), f"Recommended: {command}"):
        Output().print(line, soft_wrap=True, highlight=False, markup=False)


def _source(
    options: PlanOptions,
) -> "tuple[Graph | TypedGraph | GraphCounts | TypedCounts, GraphFacts]":
    if options.dataset is None:
        from jaxgraph.planner import GraphCounts, TypedCounts

        counts, types = options.named(*_COUNTS), options.num_edge_types
        # Any mean of the degrees gives the same shapes.
        rest: dict[str, Any] = {"multilabel": False, "edge_features": 0, "mean_log_degree": 1.0}
        rest |= {"splits": {}, "train_class_counts": None, "num_edge_types": types or 0}
        facts = GraphFacts(name="", **counts, **rest)
        if types is None:
            return GraphCounts(**counts, halo_share=options.halo_share), facts
        of_edges = {"num_edges": counts.pop("num_edges"), "num_edge_types": types}
        return TypedCounts({"node": counts}, {("node", "edge", "node"): of_edges}), facts
    graph = load_typed(options)
    facts = facts_of_typed(graph).of_one() if isinstance(graph, TypedGraph) else facts_of(graph)
    if "train" not in facts.splits:
        raise ValueError(f"{graph.name} has no training nodes; --labels-per-class 20 draws them.")
    return graph, facts


def _is_cut_from_files(option: "Option") -> bool:
    return option.method in METHODS and option.mode != "p3"


def _command(options: PlanOptions, plan: "Plan") -> str:
    """The command line that trains as planned; of a graph given by counts, two of them."""
    option, graph = plan.option, _graph_given(options)
    cut = [f"--parts {plan.num_parts}", f"--mode {option.mode}"]
    cut += _given(option, ("rest", "topology", "chunks"))
    cut += [f"--partitioner {option.method}"]
    train = _given(options, ("model", "hidden", "layers", "heads", "norm", "memory_limit"))
    train += ["--prefetch"] if option.prefetch else []
    if options.dataset is None:
        is_cut = _is_cut_from_files(option) and options.num_edge_types is None
        memory = ["--process-memory 16GB"] if is_cut else []
        partition = ["jaxgraph partition", *graph, *cut, *memory, "--out PARTS"]
        return " ".join([*partition, "&& jaxgraph train --partition PARTS", *train])
    if plan.mode == "stream" and plan.num_devices > 1:
        train.append(f"--devices {plan.num_devices}")
    return " ".join(["jaxgraph train", *graph, *cut, *train])


def _graph_given(options: PlanOptions) -> list[str]:
    """The options of the graph."""
    graph = [f"--dataset {options.dataset or 'YOUR-GRAPH'}"]
    switches = ("undirected", "degree_features", "ignore_edge_data")
    graph += [option_name(name) for name in switches if getattr(options, name)]
    return graph + _given(options, ("labels_per_class", *_GENERATED) if options.dataset else ())


def _given(options: Any, names: Sequence[str]) -> list[str]:
    values = {name: getattr(options, name) for name in names}
    return [f"{option_name(name)} {value}" for name, value in values.items() if value is not None]


def _table(title: str, found: Sequence["Considered"], limit: int) -> Table:
    """Makes the table of a plan."""
    caption = f"of one device; limit {byte_text(limit)}; ~ is predicted, not compiled"
    table = Table(title=Text(title), caption=caption, box=SIMPLE, padding=0, pad_edge=False)
    for column in ("mode", "cut by"):
        table.add_column(column, no_wrap=True)
    for column in ("halo", "args", "temp", "host", "inside", "between", "step"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    for each in found:
        table.add_row(each.option.label, each.option.method, *_cells(each))
    return table


def _cells(each: "Considered") -> list[str]:
    if each.run is None:
        return [*[""] * 7, "no"]
    memory, sent = each.run.memory, each.run.sent
    return [
        f"{each.halo_share:.2g}",
        _short(memory.arguments),
        ("" if memory.is_compiled else "~") + _short(memory.temporary),
        _short(memory.host),
        _short(sum(sent.inside.values())),
        _short(sum(sent.between.values())),
        second_text(each.seconds).replace(" ", ""),
        "yes" if each.fits else "no",
    ]


def _short(count: int) -> str:
    """Bytes by three digits."""
    power = min(max(math.floor(math.log10(count)) // 3, 0), 4) if count else 0
    return f"{count / 1000**power:.3g}{('', 'k', 'M', 'G', 'T')[power]}"


def _remarks(found: Sequence["Considered"]) -> list[str]:
    """Why ways do not fit or cannot be run, each reason once, and policies under which some fit."""
    by_reason: dict[str, list[str]] = {}
    for each in found:
        reasons = [each.why_not] if each.why_not else []
        for index, policy in enumerate(each.policy or ()):
            reasons.append(f"fits where layer {index} {policy.in_words()}")
        for reason in reasons:
            name = f"{each.option.label} by {each.option.method}"
            by_reason.setdefault(reason, []).append(name)
    lines = [f"{'; '.join(names)}: {reason}" for reason, names in by_reason.items()]
    if sum(each.option.method == "metis" for each in found) > 1:
        lines.append(
            "Times of ways that metis cuts are not ranked reliably, as measured on CPU devices: "
            "time the fastest few before a long run."
        )
    return lines
