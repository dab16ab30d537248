"""Bytes of mini-batches under push-pull and under pulled features: P3's example and its sweeps.

The graphs are generated with ogbn-products' degrees, cut by hash. Training steps of GraphSAGE are
compiled for emulated devices and never run; batches have the sizes that loaders find. `example` is
that of section 3.2.2: a forward pass and a whole gradient, collective by collective, beside the
paper's numbers. `sweep` has one of layers, features, hidden features and devices vary (figures 9,
10 and 15), with copies of rows and of columns that need equal memory (table 5). Its bytes follow
from the sizes of samples, and are compared with compiled programs on a smaller graph. `pipeline`
compiles the step without and with the pipeline of section 3.3: its memory, and the share of its
bytes that are under way while kernels, products or loops run.

    python -m benchmarks.p3_samples [--plot FILE]

`pipeline` is for 8 H200s where `jaxgraph[cuda]` is installed, and else for emulated devices, whose
transfers overlap nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

import jaxgraph as jg
from benchmarks.command_line import make_parser, report, write_figures, write_plot
from benchmarks.generated import OGBN_PRODUCTS, generate
from benchmarks.p3 import NO_CODE
from jaxgraph.analysis.hlo import Instruction, Module, num_bytes, parse
from jaxgraph.analysis.links import RULES
from jaxgraph.layout.sample_tables import COUNTS, NODE_IDS, SampleSizes
from jaxgraph.parallel.samples import with_sample
from jaxgraph.parallel.sharded_graph import AbstractSource
from jaxgraph.planner.sampled import bytes_sent
from jaxgraph.planner.targets import find_target
from jaxgraph.train.fit_state import abstract_state, abstract_variables
from jaxgraph.train.objective import Split, gradients, objective, split_model
from jaxgraph.train.pipeline import GATHERED_APART, Batch, empty_flight, pipelined_step
from jaxgraph.train.step import batch_step, make_learner

CLASSES, BATCH = OGBN_PRODUCTS.num_classes, 1000
FANOUTS = (5, 5, 10, 25)
"""Of the last layers, as many as there are: the paper's 25 neighbours of a seed and 10 of each; of
further layers, for which it has none, 5."""
PULL, CACHE, PUSH_PULL, COPIES = "pull", "pull, cache", "push-pull", "push-pull, copies"
TOLERANCE = 0.03
WIDTHS = {
    "features": [16, 32, 64, 100, 128, 256, 512],
    "hidden": [8, 16, 32, 64, 128, 256, 512],
}
PARTS = ("example", "sweep", "pipeline")
PHASES = re.compile(r"p3_(1M_forward|1D|1M_backward)")
OWN = ("shares", "pulled", "gradient")
CROSSOVERS = "Hidden features from which on push-pull sends more"
PAPER = {"way": "paper", "nodes_at_2_hops": 188_339, "at_1_hop": 24_703}
PAPER_MB = {PULL: 71.84, PUSH_PULL: 5}
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """A training step: features of a node, hidden features, layers and devices."""

    features: int = 100
    hidden: int = 16
    layers: int = 2
    devices: int = 4

    def model(self) -> jg.nn.GraphSAGE:
        """The model."""
        sizes = self.features, self.hidden, CLASSES
        return jg.nn.GraphSAGE(*sizes, num_layers=self.layers, rngs=nnx.Rngs(0))

    def sent(self, way: str, sizes: SampleSizes) -> int:
        """Bytes that leave a device in a step, without those of the parameters' gradients."""
        holders = self.devices // 2 if way == COPIES else self.devices
        return sum(bytes_sent(sizes, self.features, self.hidden, holders).values())


class Samples:
    """The loaders of a graph, of which none is made twice."""

    def __init__(self, graph: jg.Graph) -> None:
        self.graph = graph
        assert graph.train_mask is not None
        # Two batches tell the sizes.
        seeds = np.random.default_rng(0).permutation(np.flatnonzero(graph.train_mask))
        self.seeds = np.sort(seeds[: 2 * BATCH])
        self.sharded = functools.lru_cache(maxsize=2)(self._sharded)

    def _sharded(self, devices: int, mode: str, budget: int | None) -> jg.parallel.ShardedGraph:
        parts = jg.partition.partition(self.graph, devices, method="hash", seed=0)
        mesh = jg.parallel.make_mesh(devices)
        if mode == "domain":
            return jg.parallel.shard(self.graph, parts, mesh, mode)
        # The edges of all nodes, which batches do not read, are on one device each.
        options: Row = {"topology": "pushed", "feature_budget": budget}
        return jg.parallel.shard(self.graph, parts, mesh, mode, **options)

    def copied_bytes(self, case: Case) -> int:
        """Bytes of a device for the columns of a second device: the budget of caches."""
        return 4 * self.graph.num_nodes * -(-case.features // case.devices)

    def loader(self, way: str, case: Case, *, has_copies: bool = False) -> jg.sampling.Loader:
        """A loader; samples have the same sizes with copies of columns and without.

        The features of its graph may be other than the case's: a cache has the rows that it would
        have with these.
        """
        mode = "domain" if way in (PULL, CACHE) else "p3"
        # Twice the columns fit with the edges, and four times the columns do not.
        budget = 4 * self.copied_bytes(case) - 1 if has_copies else None
        sharded, cache = self.sharded(case.devices, mode, budget), 0
        if way == CACHE:
            leaves = jax.tree.leaves(sharded.shards.tables["nodes"])
            row = sum(leaf.nbytes // (leaf.shape[0] * leaf.shape[1]) for leaf in leaves)
            of_case = row + 4 * (case.features - self.graph.num_features)
            cache = self.copied_bytes(case) // of_case * row
        return jg.sampling.Loader(
            self.graph,
            FANOUTS[-case.layers :],
            sharded=sharded,
            batch_size=BATCH,
            nodes=self.seeds,
            cache_bytes=cache,
        )


def sizes_of(loader: jg.sampling.Loader) -> SampleSizes:
    """The sizes of a usual batch."""
    sample = loader.abstract_batch().shards.sample
    assert sample is not None
    return sample.sizes


def traffic(case: Case, batch: jg.parallel.ShardedGraph, *, backward: bool) -> dict[str, int]:
    """Bytes that leave a device by collective, in the loss of a batch or its gradient."""
    task = jg.train.NodeClassification()
    split = abstract_variables(split_model(case.model()), batch)
    key = jax.eval_shape(lambda: jax.random.key(0))

    def loss(split: Split, batch: jg.parallel.ShardedGraph, key: jax.Array) -> jax.Array:
        on_shard = lambda split, shard, key: objective(split, shard, key, task, True)[0]  # noqa: E731
        return jg.parallel.spmd(on_shard)(split, batch, key)

    def gradient(split: Split, batch: jg.parallel.ShardedGraph, key: jax.Array) -> Any:
        return gradients(split, batch, key, task, True)

    lowered = jax.jit(gradient if backward else loss).lower(split, batch, key)
    return jg.analysis.traffic(lowered.compile())


def check(case: Case, way: str, loader: jg.sampling.Loader, found: dict[str, int]) -> Row:
    """Compares the bytes of a compiled gradient with those of the sizes."""
    compiled = sum(size for name, size in found.items() if name != "all-reduce")
    computed = case.sent(way, sizes_of(loader))
    assert abs(compiled / computed - 1) < TOLERANCE, (case, way, found, computed)
    return {"way": way, "compiled_MB": compiled / 1e6, "from_sizes_MB": computed / 1e6}


def nodes_of(loader: jg.sampling.Loader) -> Row:
    """The nodes of the first batch: of all devices together, and those that differ."""
    sample = next(iter(loader.batches(0))).shards.sample
    assert sample is not None
    views = [sample.sizes.views(words) for words in np.asarray(sample.words)]
    counts = np.array([each[COUNTS][:, 0] for each in views])
    names = ("nodes_at_2_hops", "at_1_hop")
    row: Row = {name: int(counts[:, number].sum()) for number, name in enumerate(names)}
    for number, name in enumerate(names):
        ids = [x["nodes" + NODE_IDS][:n] for x, n in zip(views, counts[:, number], strict=True)]
        row[f"{name}_distinct"] = len(np.unique(np.concatenate(ids)))
    return row


def example(samples: Samples) -> Iterator[tuple[str, list[Row]]]:
    """Section 3.2.2: 4 devices, 2 layers, 100 features and 16 hidden."""
    case, rows, counts = Case(), [], [PAPER | {"counted_as_in_the_paper_MiB": PAPER_MB}]
    for way in (PULL, PUSH_PULL):
        loader = samples.loader(way, case)
        batch = loader.abstract_batch()
        forward, both = (traffic(case, batch, backward=each) for each in (False, True))
        check(case, way, loader, both)
        backward = {name: size - forward.get(name, 0) for name, size in both.items()}
        for name, sent in (("forward", forward), ("backward", backward)):
            total = sum(sent.values())
            row = {"way": way, "pass": name} | {x: size / 1e6 for x, size in sent.items()}
            of_all = total * case.devices / 1e6
            rows.append(row | {"MB_of_a_device": total / 1e6, "MB_of_all": of_all})
        found: Row = {"way": way} | nodes_of(loader)
        counts.append(found)
        pulled = 4 * case.features * found["nodes_at_2_hops"]
        shares = 4 * case.hidden * (case.devices - 1) * found["at_1_hop"]
        found["counted_as_in_the_paper_MiB"] = (pulled if way == PULL else shares) / 2**20
    yield "Section 3.2.2: MB that a device sends, by collective; and of all devices", rows
    yield "Nodes; all rows times features, or three shares of the activations", counts


def sweep(samples: Samples, options: Any) -> Iterator[tuple[str, list[Row]]]:
    """Figures 9, 10 and 15, and table 5, in bytes; then the comparison with programs."""
    base, rows = Case(hidden=32), []
    ranges = {
        "layers": options.layers,
        "features": options.features,
        "hidden": options.hidden,
        "devices": options.devices,
    }
    for name, values in ranges.items():
        rows += [of_case(samples, dataclasses.replace(base, **{name: x}), name) for x in values]
    yield "MB that a device sends in a step, without gradients of parameters", rows
    yield CROSSOVERS, crossovers(samples, options.features)
    small = jg.datasets.load("random", num_nodes=6000, degree=5, num_features=96, seed=0)
    few, compared = Samples(small), []
    for case, ways in (
        (Case(96, 64, 2, 4), (CACHE, COPIES)),
        (Case(96, 128, 3, 8), (PULL, PUSH_PULL)),
    ):
        for way in ways:
            loader = few.loader(way, case, has_copies=way == COPIES)
            found = traffic(case, loader.abstract_batch(), backward=True)
            compared.append(dataclasses.asdict(case) | check(case, way, loader, found))
    yield "Bytes from sizes, and of compiled programs, on a small graph", compared


def of_case(samples: Samples, case: Case, varied: str) -> Row:
    """MB of a step by each way."""
    row: Row = {"varied": varied} | dataclasses.asdict(case)
    for way in (PULL, CACHE, PUSH_PULL, COPIES):
        row[way] = case.sent(way, samples_sizes(samples, way, case)) / 1e6
    row["gain"] = row[PULL] / row[PUSH_PULL]
    row["gain, copies"] = row[CACHE] / row[COPIES]
    return row


def samples_sizes(samples: Samples, way: str, case: Case) -> SampleSizes:
    """The sizes of a usual batch, which depend on features where there is a cache."""
    features = case.features if way == CACHE else 0
    kind = PUSH_PULL if way == COPIES else way
    return _sizes(samples, kind, Case(features, 0, case.layers, case.devices))


@functools.cache
def _sizes(samples: Samples, way: str, case: Case) -> SampleSizes:
    return sizes_of(samples.loader(way, case))


def crossovers(samples: Samples, features: Sequence[int]) -> list[Row]:
    """The hidden features at which push-pull sends as much as pulling, for numbers of features."""
    rows = []
    for width in features:
        case, row = Case(features=width), {"features": width}
        for name, (pull, push) in {
            "push-pull beside pull": (PULL, PUSH_PULL),
            "with copies beside a cache": (CACHE, COPIES),
        }.items():
            target = case.sent(pull, samples_sizes(samples, pull, case))
            none, one = (
                dataclasses.replace(case, hidden=x).sent(push, samples_sizes(samples, push, case))
                for x in (0, 1)
            )
            row[name] = max(0, round((target - none) / (one - none)))
        rows.append(row)
    return rows


def pipeline(samples: Samples, chips: bool) -> Iterator[tuple[str, list[Row]]]:
    """The step without the pipeline and with it, for 8 devices and fewer hidden than features."""
    case, rows = Case(hidden=32, devices=8), []
    for name, program in steps(case, samples.loader(PUSH_PULL, case), chips).items():
        compiled = program.compile()
        memory = compiled.memory_analysis()
        assert memory is not None
        row: Row = {"step": name, "temporary_MB": memory.temp_size_in_bytes / 1e6}
        row["arguments_MB"] = memory.argument_size_in_bytes / 1e6
        rows.append(row | under_way(compiled, case.devices))
    where = "H200s" if chips else "emulated devices"
    yield f"The step for 8 {where}, and its bytes under way while work runs", rows


def steps(case: Case, loader: jg.sampling.Loader, chips: bool) -> dict[str, jax.stages.Lowered]:
    """The step on a batch, and the pipelined one."""
    manifest, sample = loader.sharded.manifest, loader.abstract_batch().shards.sample
    mesh = jg.parallel.make_mesh(case.devices)
    if chips:
        mesh = find_target(f"h200x{case.devices}").mesh(emulate=False)

    def placed(tree: Any, *axes: Any) -> Any:
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)  # noqa: E731
        return jax.tree.map(shape, tree)

    graph = jg.parallel.place(AbstractSource(manifest), mesh)
    sample = placed(sample, graph.axis)
    model, optimizer, task = case.model(), optax.adam(1e-2), jg.train.NodeClassification()
    learner = make_learner(model, optimizer, task)
    state = abstract_state(model, optimizer, graph)
    key, exists = placed(jax.eval_shape(lambda: (jax.random.key(0), jax.numpy.bool_(True))))
    entering = Batch(sample, key, state.params, state.statistics, exists)
    flight = placed(
        jax.eval_shape(functools.partial(empty_flight, learner), state, graph, entering)
    )
    own = {name: placed(getattr(flight, name), graph.axis) for name in OWN}
    for name in ("forward", "backward"):
        own[name] = dataclasses.replace(getattr(flight, name), sample=sample)
    flight = dataclasses.replace(flight, **own)

    def lowered(step: Any, *given: Any) -> jax.stages.Lowered:
        options = GATHERED_APART if step is pipelined_step else None
        program = jax.jit(functools.partial(step, learner), compiler_options=options)
        return program.lower(state, *given)

    return {
        "one batch": lowered(batch_step, with_sample(graph, sample), key),
        "pipelined": lowered(pipelined_step, graph, flight, entering),
    }


def under_way(compiled: jax.stages.Compiled, devices: int) -> Row:
    """MB by collective, and shares of all bytes that travel while work runs, or another batch's.

    Work is a kernel, a product of matrices or a loop. Phases of the pipeline are told by their
    names: each is of another batch, as is what has no name, the step of the optimizer.
    """
    module = parse(compiled.as_text() or "")
    total, during, of_others, row = 0.0, 0.0, 0.0, {}
    for kind in ("reduce-scatter", "all-gather", "all-reduce", "all-to-all"):
        sent = 0.0
        for transfer in jg.analysis.overlapped(compiled, kind):
            computation = module.computations[transfer.computation]
            start, names = computation[transfer.name], [x.name for x in computation.instructions]
            operands = sum(num_bytes(computation[name].shape) for name in start.operands)
            size, first = float(operands * RULES[kind](devices)), names.index(start.name) + 1
            between = computation.instructions[first : first + len(transfer.between)]
            work = [phase(x) for x in between if is_work(module, x)]
            sent, during = sent + size, during + size * bool(work)
            of_others += size * any(x != phase(start) for x in work)
        total, row[f"{kind}_MB"] = total + sent, sent / 1e6
    return row | {"during_work": during / total, "during_another_batch": of_others / total}


def phase(instruction: Instruction) -> str:
    """The phase of the pipeline that an instruction is of, "" for the rest."""
    found = PHASES.search(instruction.attributes_text)
    return found[1] if found else ""


def is_work(module: Module, instruction: Instruction) -> bool:
    """True of a kernel, a product of matrices and a loop."""
    if instruction.opcode in ("while", "custom-call", "dot"):
        return True
    inner = [x for name in instruction.calls for x in module.computations[name].instructions]
    return instruction.opcode == "fusion" and any(x.opcode == "dot" for x in inner)


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draws the crossover: above a line, push-pull sends more than pulling."""
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    figure = Figure(figsize=(4.6, 3), layout="constrained")
    axes = figure.subplots()
    widths = [row["features"] for row in rows]
    for name in [name for name in rows[0] if name != "features"]:
        axes.loglog(widths, [row[name] for row in rows], marker="o", label=name, base=2)
    axes.loglog(widths, widths, "k:", label="as many as features", base=2)
    axes.set(xlabel="features", ylabel="hidden features with equal bytes")
    axes.legend(fontsize=8)
    write_plot(figure, path)


def main() -> None:
    """Reads the command line, compiles and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--scale", type=int, default=4, help="1/scale of ogbn-products' nodes")
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 3, 4])
    for name, values in WIDTHS.items():
        parser.add_argument(f"--{name}", type=int, nargs="+", default=values)
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--plot", type=Path, help="draw the crossover here; needs matplotlib")
    options = parser.parse_args()
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot: drawing needs matplotlib: pip install 'jaxgraph[plot]'")
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {NO_CODE}"
    jg.parallel.emulate_devices(max(8, *options.devices))
    samples = Samples(generate(OGBN_PRODUCTS, scale=options.scale))
    chips, figures = importlib.util.find_spec("jax_plugins") is not None, []
    programs = {
        "example": lambda: example(samples),
        "sweep": lambda: sweep(samples, options),
        "pipeline": lambda: pipeline(samples, chips),
    }
    for name in options.only:
        for title, rows in programs[name]():
            report(title, rows, None)
            figures += [{"table": title} | row for row in rows]
            if options.plot and title == CROSSOVERS:
                plot(rows, options.plot)
    write_figures(options.json, figures)


if __name__ == "__main__":
    main()
