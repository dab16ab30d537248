"""`jaxgraph plan`: what training a model would cost on a machine, and how to run it there."""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxgraph.byte_amounts import bytes_of
from jaxgraph.cli.devices import mesh_of
from jaxgraph.cli.graph_options import GraphOptions, load_graph
from jaxgraph.cli.info import versions
from jaxgraph.cli.json_file import write_json
from jaxgraph.cli.limits import Number, OneOf, option_name
from jaxgraph.cli.model_options import ModelOptions, check_heads, chosen_recipe
from jaxgraph.cli.output import Output
from jaxgraph.cli.plan_report import (
    advice,
    check_can_draw,
    plan_picture,
    plan_table,
    policies,
    reasons,
    row_of,
)
from jaxgraph.cli.recipes import Recipe, build_layers, build_model
from jaxgraph.external.request import METHODS
from jaxgraph.graph import Graph
from jaxgraph.graph_facts import facts_of
from jaxgraph.partition.registry import costless_methods
from jaxgraph.written_file import check_writable, write_each

if TYPE_CHECKING:
    from jaxgraph.planner import Considered, GraphCounts, Option, Plan, Target

__all__ = ["PlanOptions", "run_plan"]

_COUNTED = {
    "nodes": "num_nodes",
    "edges": "num_edges",
    "features": "num_features",
    "classes": "num_classes",
}
_count_option = partial(typer.Option, rich_help_panel="A graph by its counts")
_plan_option = partial(typer.Option, rich_help_panel="Plan")


@dataclass(frozen=True, kw_only=True)
class PlanOptions(GraphOptions, ModelOptions):
    """The options of `jaxgraph plan`; None leaves the choice to the recipe."""

    dataset: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        str | None,
        typer.Option(
            rich_help_panel="Graph",
            help="Name of a dataset or a file, as for `jaxgraph train`; or give counts.",
        ),
    ] = None
    nodes: Annotated[float | None, _count_option(help="Nodes, as 111e6.")] = None
    edges: Annotated[float | None, _count_option(help="Directed edges, as 3.2e9.")] = None
    features: Annotated[float | None, _count_option(help="Features of a node.")] = None
    classes: Annotated[float | None, _count_option(help="Classes.")] = None
    degrees: Annotated[
        str,
        _count_option(help="Model of degrees: power-law or uniform."),
        OneOf(("power-law", "uniform")),
    ] = "power-law"
    exponent: Annotated[
        float, _count_option(help="Of the power law, above 2."), Number(above=2)
    ] = 2.5
    halo_share: Annotated[
        float | None,
        _count_option(
            help="Rows of other parts that a part needs over its own, as METIS leaves them: "
            "1 is assumed where not given; meshes have 0.01."
        ),
        Number(above=0),
    ] = None
    target: Annotated[
        str,
        _plan_option(help="Chip and number of devices, as h200x8: a100, h100, h200, b200 or cpu."),
    ]
    hosts: Annotated[
        int | None,
        _plan_option(help="Hosts that they are spread over; 8 GPUs each where not given."),
        Number(least=1),
    ] = None
    memory_limit: Annotated[
        str | None,
        _plan_option(help="Memory of one device that may be used, as 100GB; all where not given."),
    ] = None
    partitioner: Annotated[
        str | None,
        _plan_option(help="One partitioner alone; metis and hash where not given."),
        OneOf(costless_methods()),
    ] = None
    compile: Annotated[
        str,
        _plan_option(
            help="Steps to compile: fastest (by prediction first, until one fits), all that may "
            "fit, or none."
        ),
        OneOf(("fastest", "all", "none")),
    ] = "fastest"
    save: Annotated[Path | None, _plan_option(help="Write the plan to this file.")] = None
    json: Annotated[Path | None, _plan_option(help="Write all figures to this file.")] = None
    plot: Annotated[
        Path | None,
        _plan_option(help="Draw memory per device over devices, by mode; needs matplotlib."),
    ] = None

    def __post_init__(self) -> None:
        """Checks the options, alone and together."""
        if self.partitioner == "cost":
            raise ValueError(
                "--partitioner: cost cuts by the times of a model's layers, which a plan has none "
                "of. Take another one here; jaxgraph.partition.partition(graph, N, 'cost', "
                "node_cost=...) cuts by times of jaxgraph.planner.profile"
            )
        super().__post_init__()
        missing = [f"--{name}" for name in _COUNTED if getattr(self, name) is None]
        if self.dataset is not None and len(missing) < len(_COUNTED):
            raise ValueError("--dataset: the graph has counts of its own; leave --nodes and so on.")
        if self.dataset is None and missing:
            raise ValueError(
                f"{', '.join(missing)}: missing; expected --dataset, or --nodes, --edges, "
                "--features and --classes of a graph that is not here."
            )
        check_heads(self, self.dataset)
        if self.memory_limit is not None:
            bytes_of("--memory-limit", self.memory_limit)


def run_plan(options: PlanOptions) -> None:
    """Find what training would cost on a machine, and how to run it there; nothing is run."""
    for name in ("save", "json", "plot"):
        check_writable(f"--{name}", getattr(options, name))
    if options.plot is not None:
        check_can_draw("--plot")
    # Nothing runs here, and a GPU that is there is left alone. The process is the command's own.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from jaxgraph.planner import find_target

    target = find_target(options.target, hosts=options.hosts)
    source = _source(options)
    settings, _ = chosen_recipe(options, options.dataset)
    model = _model(options, settings, source)
    mesh_of(target.devices if target.is_emulated else 1)
    output = Output()
    given = options.memory_limit
    limit = target.memory if given is None else bytes_of("--memory-limit", given)
    found = list(_consider(options, model, settings, source, target))
    output.print(plan_table(_title(options, settings, target), found, limit))
    plan = error = None
    try:
        plan = _plan(_recommendable(options, found), model, target, limit)
    except ValueError as raised:
        error = raised
    for line in (*reasons(found), *advice(found, source), *policies(found)):
        output.print(line, soft_wrap=True, highlight=False, markup=False)
    if plan is not None:
        line = f"Recommended: {_command(options, plan)}"
        output.print(line, soft_wrap=True, highlight=False, markup=False)
    _write(options, settings, found, plan, target, model, source)
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

    counts: dict[str, Any] = {name: getattr(options, key) for key, name in _COUNTED.items()}
    return GraphCounts(
        **counts,
        degrees=options.degrees,
        exponent=options.exponent,
        halo_share=options.halo_share,
    )


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


def _consider(
    options: PlanOptions,
    model: Any,
    settings: Recipe,
    source: "Graph | GraphCounts",
    target: "Target",
    *,
    compile: str | None = None,
) -> Any:
    import optax

    from jaxgraph.planner import consider

    optimizer = optax.chain(
        optax.add_decayed_weights(settings.weight_decay), optax.adam(settings.lr)
    )
    chosen: dict[str, Any] = {}
    if options.partitioner is not None:
        chosen["methods"] = (options.partitioner,)
    return consider(
        model,
        source,
        target,
        optimizer,
        memory_limit=options.memory_limit if compile is None else None,
        compile=options.compile if compile is None else compile,
        **chosen,
    )


def _plan(found: "Sequence[Considered]", model: Any, target: "Target", limit: int) -> "Plan":
    from jaxgraph.planner.choice import to_plan

    return to_plan(found, model, target, limit)


def _recommendable(options: PlanOptions, found: "Sequence[Considered]") -> "Sequence[Considered]":
    """Of a graph given by counts, the ways for which it can be cut without being in memory."""
    if options.dataset is not None:
        return found
    return [each for each in found if each.fits and _is_cut_from_files(each.option)] or found


def _title(options: PlanOptions, settings: Recipe, target: "Target") -> str:
    graph = options.dataset or (
        f"{options.nodes:,.0f} nodes, {options.edges:,.0f} edges ({options.degrees} degrees)"
    )
    heads = "" if settings.heads is None else f", {settings.heads} heads"
    how = (
        f"compiled for {target.compiled_for}"
        if options.compile != "none"
        else "predicted, not compiled"
    )
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
    names = ("labels_per_class",) if options.dataset else ()
    graph += _given(options, names)
    cut = [f"--parts {plan.num_parts}", f"--mode {option.mode}"]
    cut += _given(option, ("rest", "topology", "chunks"))
    train = _given(options, ("model", "hidden", "layers", "heads", "norm", "memory_limit"))
    train += ["--prefetch"] if option.prefetch else []
    if options.dataset is None:
        limit = ["--memory-limit 16GB"] if _is_cut_from_files(option) else []
        written = ["jaxgraph partition", *graph, *cut, f"--method {option.method}", *limit]
        train = ["jaxgraph train --partition PARTS", *train]
        return " ".join([*written, "--out PARTS &&", *train])
    if plan.mode == "stream" and plan.num_devices > 1:
        train.append(f"--devices {plan.num_devices}")
    return " ".join(["jaxgraph train", *graph, *cut, f"--partitioner {option.method}", *train])


def _given(options: Any, names: Sequence[str]) -> list[str]:
    values = {name: getattr(options, name) for name in names}
    return [f"{option_name(name)} {value}" for name, value in values.items() if value is not None]


def _is_cut_from_files(option: "Option") -> bool:
    """Whether a graph larger than memory can be cut for this way."""
    return option.method in METHODS and option.mode != "p3"


def _write(
    options: PlanOptions,
    settings: Recipe,
    found: "Sequence[Considered]",
    plan: "Plan | None",
    target: "Target",
    model: Any,
    source: "Graph | GraphCounts",
) -> None:
    writes: list[Callable[[], object]] = []
    if plan is not None and options.save is not None:
        writes.append(partial(plan.save, options.save))
    if options.json is not None:
        contents = {
            "versions": versions(),
            "options": asdict(options) | asdict(settings),
            "target": asdict(target) | {"compiled_for": target.compiled_for},
            "considered": [row_of(each) for each in found],
            "plan": None if plan is None else plan.to_dict(),
            "command": None if plan is None else _command(options, plan),
        }
        writes.append(partial(write_json, options.json, contents))
    if options.plot is not None:
        writes.append(partial(_plot, options.plot, options, model, settings, source, target))
    write_each(*writes)


def _plot(
    path: Path,
    options: PlanOptions,
    model: Any,
    settings: Recipe,
    source: "Graph | GraphCounts",
    target: "Target",
) -> None:
    """Draws the memory on fewer and fewer devices of the target."""
    from jaxgraph.planner import find_target

    by_count = {}
    for count in [2**power for power in range(target.devices.bit_length())]:
        smaller = find_target(f"{target.chip}x{count}")
        by_count[count] = list(_consider(options, model, settings, source, smaller, compile="none"))
    plan_picture(by_count, path)
