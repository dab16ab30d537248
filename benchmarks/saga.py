"""Message functions that are rewritten, beside the same as written, and beside arrays of all edges.

    python -m benchmarks.saga                    # work, memory and time of G-GCN and of a network
    python -m benchmarks.saga --traffic 8        # bytes that SAR sends on 8 devices

G-GCN is figure 3 of NeuGraph; the interaction network is an MLP of two layers on (sender, receiver,
edge). "all edges" gathers both ends of every edge and sums by `jax.ops.segment_sum`, as a user of
JAX alone would. Programs alternate, and medians are printed; work and memory are the compiler's.
"""

from __future__ import annotations

import functools
import re
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxgraph as jg
from benchmarks.command_line import make_parser, report
from jaxgraph.analysis.hlo import parse

Pytree = Any
FORMS = ("all edges", "as written", "rewritten")


def gated(params: Pytree, sender: jax.Array, receiver: jax.Array, edge: Pytree) -> jax.Array:
    """ApplyEdge of G-GCN."""
    gate = jax.nn.sigmoid(receiver @ params["receiver"] + sender @ params["sender"])
    return gate * sender


def interaction(params: Pytree, sender: jax.Array, receiver: jax.Array, edge: jax.Array) -> Any:
    """An MLP of two layers on both ends and the edge."""
    joined = jnp.concatenate([sender, receiver, edge], -1)
    return jax.nn.relu(joined @ params["joined"]) @ params["second"]


LAYERS = {"G-GCN": gated, "interaction network": interaction}


def parameters(width: int, edge_features: int) -> Pytree:
    """Random kernels of both layers."""
    rng = np.random.default_rng(0)
    shapes = {
        "receiver": (width, width),
        "sender": (width, width),
        "joined": (2 * width + edge_features, width),
        "second": (width, width),
    }
    made = {name: rng.normal(size=shape) / shape[0] ** 0.5 for name, shape in shapes.items()}
    return jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), made)


def make_graph(edges: int, degree: int, width: int, edge_features: int) -> jg.Graph:
    """A random graph with features of nodes and edges."""
    rng, nodes = np.random.default_rng(1), max(edges // degree, 2)
    return jg.Graph(
        senders=rng.integers(0, nodes, edges),
        receivers=rng.integers(0, nodes, edges),
        num_nodes=nodes,
        nodes=rng.normal(size=(nodes, width)).astype(np.float32),
        edges=rng.normal(size=(edges, edge_features)).astype(np.float32),
    )


def form_of(name: str, message: Callable[..., Any], graph: jg.Graph) -> Callable[..., jax.Array]:
    """The layer `(params, x, edge) -> sums` in one of `FORMS`."""
    if name == "all edges":
        senders, receivers = jnp.asarray(graph.senders), jnp.asarray(graph.receivers)

        def layer(params: Pytree, x: jax.Array, edge: jax.Array) -> jax.Array:
            messages = message(params, x[senders], x[receivers], edge)
            return jax.ops.segment_sum(messages, receivers, graph.num_nodes)

        return layer

    def propagated(params: Pytree, x: jax.Array, edge: jax.Array) -> jax.Array:
        function = functools.partial(message, params)
        return jg.parallel.propagate(graph, function, x, x, edge, rewrite=name == "rewritten")

    return propagated


def measure(
    layer: str, degree: int, edges: int, width: int, edge_features: int, rounds: int
) -> list[dict[str, Any]]:
    """Compiles and times all forms of a layer on a graph."""
    graph = make_graph(edges, degree, width, edge_features)
    params = parameters(width, edge_features)
    x, edge = jnp.asarray(graph.nodes), jnp.asarray(graph.edges)
    programs, rows, temporary = {}, {}, {}
    for name in FORMS:
        function = form_of(name, LAYERS[layer], graph)

        def loss(params: Pytree, x: jax.Array, edge: jax.Array, f: Any = function) -> jax.Array:
            return jnp.sum(jnp.sin(f(params, x, edge)))

        gradient = jax.grad(loss, (0, 1))
        forward, both = (jax.jit(f).lower(params, x, edge).compile() for f in (function, gradient))
        programs[name] = (forward, both)
        rows[name] = product_rows(forward, edges)
        analysis = both.memory_analysis()
        assert analysis is not None
        temporary[name] = analysis.temp_size_in_bytes
    seconds: dict[tuple[str, int], list[float]] = {}
    for each in range(rounds + 1):
        for name, pair in programs.items():
            for at, program in enumerate(pair):
                start = time.perf_counter()
                jax.block_until_ready(program(params, x, edge))
                if each:
                    seconds.setdefault((name, at), []).append(time.perf_counter() - start)
    return [
        {
            "layer": layer,
            "degree": degree,
            "form": name,
            "rows_multiplied": rows[name],
            "temporary_MB": temporary[name] / 1e6,
            "forward_ms": 1e3 * statistics.median(seconds[name, 0]),
            "both_ms": 1e3 * statistics.median(seconds[name, 1]),
        }
        for name in FORMS
    ]


def product_rows(program: jax.stages.Compiled, edges: int) -> int:
    """Rows that a program multiplies by kernels; loops visit all edges, a chunk at a time."""
    module = parse(program.as_text() or "")
    in_loops = set()
    pending = [
        instruction.attributes["body"].lstrip("%")
        for computation in module.computations.values()
        for instruction in computation.instructions
        if instruction.opcode == "while"
    ]
    while pending:
        name = pending.pop()
        if name not in in_loops:
            in_loops.add(name)
            each = module.computations[name].instructions
            pending += [call for i in each for call in (*i.calls, *i.branches)]
    return sum(
        edges if name in in_loops else int(_LEADING.findall(instruction.shape)[0])
        for name, computation in module.computations.items()
        for instruction in computation.instructions
        if instruction.opcode == "dot"
    )


_LEADING = re.compile(r"\[(\d+)")


def traffic(devices: int, edges: int, degree: int, width: int, outs: int) -> list[dict[str, Any]]:
    """Bytes that a device sends in a step of SAR, as written and rewritten."""
    graph = make_graph(edges, degree, width, 1)
    parts = jg.partition.partition(graph, devices, method="hash", seed=0)
    sharded = jg.parallel.shard(graph, parts, jg.parallel.make_mesh(devices), mode="sar")
    kernel = jnp.asarray(np.random.default_rng(2).normal(size=(width, outs)), jnp.float32)
    found = []
    for name in FORMS[1:]:

        def loss(kernel: jax.Array, shard: Any, is_rewritten: bool = name == "rewritten") -> Any:
            sums = jg.parallel.propagate(
                shard, lambda s, r, e: jnp.tanh(s @ kernel), shard.nodes, rewrite=is_rewritten
            )
            return shard.sum(shard.mask_rows(jnp.sin(sums)).sum())

        step = jax.jit(jax.grad(lambda kernel, graph, f=loss: jg.parallel.spmd(f)(kernel, graph)))
        sent = sum(jg.analysis.traffic(step.lower(kernel, sharded).compile()).values())
        found.append({"form": name, "features": width, "messages": outs, "MB": sent / 1e6})
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures what the command line asks for."""
    parser = make_parser(__doc__)
    parser.add_argument("--edges", type=float, default=1e6)
    parser.add_argument("--degrees", type=int, nargs="+", default=[10, 300])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--edge-features", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--traffic", type=int, metavar="DEVICES", help="show bytes of SAR instead")
    parser.add_argument("--messages", type=int, default=32, help="width of messages, for --traffic")
    options = parser.parse_args(arguments)
    edges = int(options.edges)
    if options.traffic:
        jg.parallel.emulate_devices(options.traffic)
        degree = options.degrees[0]
        rows = traffic(options.traffic, edges, degree, options.width, options.messages)
        report("MB that a device sends in a step of SAR", rows, options.json)
        return
    sizes = (edges, options.width, options.edge_features, options.rounds)
    rows = [
        row
        for layer in LAYERS
        for degree in options.degrees
        for row in measure(layer, degree, *sizes)
    ]
    report("Message functions", rows, options.json)


if __name__ == "__main__":
    main()
