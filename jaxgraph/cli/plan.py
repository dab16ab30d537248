"""`jaxgraph plan`: what training a model would cost on a machine, and how to run it there."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxgraph.byte_amounts import bytes_of
from jaxgraph.cli.devices import mesh_of
from jaxgraph.cli.graphs import load_graph
from jaxgraph.cli.info import versions
from jaxgraph.cli.json_file import write_json
from jaxgraph.cli.option import REQUIRED, count, option, option_name
from jaxgraph.cli.options import PARTITIONERS, GraphOptions, ModelOptions
from jaxgraph.cli.output import Output
from jaxgraph.cli.plan_report import plan_table, remarks
from jaxgraph.cli.recipes import Recipe, build_layers, build_model, chosen_recipe, optimizer_of
from jaxgraph.external.request import METHODS
from jaxgraph.graph import Graph
from jaxgraph.graph_facts import facts_of
from jaxgraph.written_file import check_writable, write_each

if TYPE_CHECKING:
    from jaxgraph.planner import Considered, GraphCounts, Option, Plan, Target

__all__ = ["PlanOptions", "run_plan"]

_COUNTS = ("num_nodes", "num_edges", "num_features", "num_classes")


@dataclass(frozen=True, kw_only=True)
class PlanOptions(GraphOptions, ModelOptions):
    """The options of `jaxgraph plan`; None leaves the choice to the recipe."""

    num_edges: int | None = option(
        "A graph by its counts",
        "Directed edges, as 3.2e9: with --num-nodes, --num-features and --num-classes instead of "
        "--dataset, for a graph that is not here.",
        parser=count,
        least=1,
    )
    halo_share: float | None = option(
        "A graph by its counts",
        "Rows of other parts that a part needs over its own, as METIS leaves them: 1 is assumed "
        "where not given; meshes have 0.01.",
        above=0,
    )
    target: str = option(
        "Plan", "Chip and number of devices, as h200x8: a100, h100, h200, b200 or cpu.", REQUIRED
    )
    hosts: int | None = option(
        "Plan", "Hosts that they are spread over; 8 GPUs each where not given.", least=1
    )
    memory_limit: str | None = option(
        "Plan", "Memory of one device that may be used, as 100GB; all where not given."
    )
    partitioner: str | None = option(
        "Plan", "One partitioner alone; metis and hash where not given", choices=PARTITIONERS
    )
    compile: str = option(
        "Plan",
        "Steps to compile: by prediction until one fits, all that may fit, or none",
        "fastest",
        choices=("fastest", "all", "none"),
    )
    save: Path | None = option("Plan", "Write the plan to this file.")
    json: Path | None = option("Plan", "Write all figures to this file.")

    def __post_init__(self) -> None:
        super().__post_init__()
        missing = [option_name(name) for name in _COUNTS if getattr(self, name) is None]
        if self.dataset is None and missing:
            raise ValueError(f"{', '.join(missing)}: missing; expected --dataset, or all counts.")
        if self.dataset is not None:
            self.refuse(["num_edges"], "for a graph by its counts; leave it or --dataset out.")
        if self.memory_limit is not None:
            bytes_of("--memory-limit", self.memory_limit)


def run_plan(options: PlanOptions) -> None:
    """Find what training would cost on a machine, and how to run it there; nothing is run."""
    for name in ("save", "json"):
        check_writable(f"--{name}", getattr(options, name))
    # Nothing runs here, and a GPU that is there is left alone. The process is the command's own.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from jaxgraph.planner import consider, find_target
    from jaxgraph.planner.choice import to_plan

    target = find_target(options.target, hosts=options.hosts)
    source = _source(options)
    settings, _ = chosen_recipe(options, options.dataset or "")
    model = _model(options, settings, source)
    mesh_of(target.devices if target.is_emulated else 1)
    output = Output()
    given = options.memory_limit
    limit = target.memory if given is None else bytes_of("--memory-limit", given)
    how: dict[str, Any] = {"memory_limit": given, "compile": options.compile}
    if options.partitioner is not None:
        how["methods"] = (options.partitioner,)
    found = list(consider(model, source, target, optimizer_of(settings), **how))
    output.print(plan_table(_title(options, settings, target), found, limit))
    plan = error = command = None
    try:
        plan = to_plan(_recommendable(options, found), model, target, limit)
        command = _command(options, plan)
    except ValueError as raised:
        error = raised
    for line in [*remarks(found), *([f"Recommended: {command}"] if command else [])]:
        output.print(line, soft_wrap=True, highlight=False, markup=False)
    writes = []
    if plan is not None and options.save is not None:
        writes.append(partial(plan.save, options.save))
    if options.json is not None:
        contents = {
            "versions": versions(),
            "options": asdict(options) | asdict(settings),
            "target": asdict(target) | {"compiled_for": target.compiled_for},
            "considered": [asdict(each) for each in found],
            "plan": None if plan is None else plan.to_dict(),
            "command": command,
        }
        writes.append(partial(write_json, options.json, contents))
    write_each(*writes)
    if error is not None:
        raise error


def _source(options: PlanOptions) -> "Graph | GraphCounts":
    if options.dataset is not None:
        graph = load_graph(options)
        if graph.train_mask is None:
            raise ValueError(
                f"{graph.name} has no training nodes; --labels-per-class 20 draws them."
            )
        return graph
    from jaxgraph.planner import GraphCounts

    counts: dict[str, Any] = {name: getattr(options, name) for name in _COUNTS}
    return GraphCounts(**counts, halo_share=options.halo_share)


def _model(options: PlanOptions, settings: Recipe, source: "Graph | GraphCounts") -> Any:
    if isinstance(source, Graph):
        return build_model(settings, facts_of(source), options.seed)
    from flax import nnx

    if settings.model == "gine":
        raise ValueError(
            "--model: gine reads features of edges, which counts do not have; expected --dataset, "
            "or --model gin."
        )
    # Any delta gives the same shapes.
    of_graph: dict[str, Any] = {"delta": 1.0} if settings.model == "pna" else {}
    rngs = nnx.Rngs(options.seed)
    return build_layers(settings, source.num_features, source.num_classes, rngs, **of_graph)


def _recommendable(options: PlanOptions, found: "Sequence[Considered]") -> "Sequence[Considered]":
    """Of a graph given by counts, the ways for which it can be cut without being in memory."""
    if options.dataset is not None:
        return found
    return [each for each in found if each.fits and _is_cut_from_files(each.option)] or found


def _is_cut_from_files(option: "Option") -> bool:
    return option.method in METHODS and option.mode != "p3"


def _title(options: PlanOptions, settings: Recipe, target: "Target") -> str:
    graph = options.dataset or f"{options.num_nodes:,} nodes, {options.num_edges:,} edges"
    heads = "" if settings.heads is None else f", {settings.heads} heads"
    is_compiled = options.compile != "none"
    how = f"compiled for {target.compiled_for}" if is_compiled else "predicted, not compiled"
    return (
        f"{settings.model}, {settings.layers} layers of {settings.hidden}{heads}, on {graph}: "
        f"{target.name} on {target.hosts} host(s), {how}"
    )


def _command(options: PlanOptions, plan: "Plan") -> str:
    """The command line that trains as planned; of a graph given by counts, two of them."""
    option = plan.option
    graph = [f"--dataset {options.dataset or 'YOUR-GRAPH'}"]
    switches = ("undirected", "degree_features", "ignore_edge_data")
    graph += [option_name(name) for name in switches if getattr(options, name)]
    graph += _given(options, ("labels_per_class",) if options.dataset else ())
    cut = [f"--parts {plan.num_parts}", f"--mode {option.mode}"]
    cut += _given(option, ("rest", "topology", "chunks"))
    cut += [f"--partitioner {option.method}"]
    train = _given(options, ("model", "hidden", "layers", "heads", "norm", "memory_limit"))
    train += ["--prefetch"] if option.prefetch else []
    if options.dataset is None:
        memory = ["--process-memory 16GB"] if _is_cut_from_files(option) else []
        partition = ["jaxgraph partition", *graph, *cut, *memory, "--out PARTS"]
        return " ".join([*partition, "&& jaxgraph train --partition PARTS", *train])
    if plan.mode == "stream" and plan.num_devices > 1:
        train.append(f"--devices {plan.num_devices}")
    return " ".join(["jaxgraph train", *graph, *cut, *train])


def _given(options: Any, names: Sequence[str]) -> list[str]:
    values = {name: getattr(options, name) for name in names}
    return [f"{option_name(name)} {value}" for name, value in values.items() if value is not None]
