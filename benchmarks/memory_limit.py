"""Training steps within limits of a device's memory, compiled for a GPU that need not be there.

    python -m benchmarks.memory_limit --target h200        # needs pip install 'jaxgraph[cuda]'

Each limit is a share of what the step takes under the model's own policy. Device and host are the
compiler's figures. Sizes are in blocks: nodes x
width x 4 bytes. Nothing runs, and the graph is absent: it has 10 edges a node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import optax

import jaxgraph as jg
from benchmarks.command_line import make_parser, report
from benchmarks.generated import make_model
from jaxgraph.parallel.sharded_graph import AbstractSource
from jaxgraph.planner import GraphCounts, find_target
from jaxgraph.planner.degree_model import counted_manifest
from jaxgraph.planner.policy_search import Needed, cheapest_fitting

FEATURES, CLASSES, DEGREE = 256, 16, 10


class Compiler:
    """Compiles the step of a model under each policy once, and counts."""

    def __init__(self, sharded: jg.parallel.ShardedGraph) -> None:
        self.sharded, self.programs = sharded, 0
        self.known: dict[Any, Needed] = {}

    def __call__(self, model: Any) -> Needed:
        """The bytes that the step of a model needs."""
        self.programs += 1
        if model.policy not in self.known:
            compiled = jg.train.compile_train_step(model, self.sharded, optax.adam(1e-2))
            found: Any = compiled.memory_analysis()
            self.known[model.policy] = Needed(
                found.argument_size_in_bytes
                + found.output_size_in_bytes
                - found.alias_size_in_bytes,
                found.temp_size_in_bytes,
                found.host_temp_size_in_bytes,
            )
        return self.known[model.policy]


def measure(name: str, options: Any) -> Iterator[dict[str, Any]]:
    """Searches for every limit."""
    counts = GraphCounts(options.nodes, DEGREE * options.nodes, FEATURES, CLASSES)
    target = find_target(f"{options.target}x{options.devices}")
    manifest = counted_manifest(counts, options.devices, "sar", "hash")
    sharded = jg.parallel.place(AbstractSource(manifest), target.mesh())
    model = make_model(name, FEATURES, options.width, CLASSES, options.layers)
    block = options.nodes // options.devices * options.width * 4
    needs = Compiler(sharded)
    without = needs(model).total
    for share in (1.0, *options.shares):
        limit = int(share * without)
        needs.programs = 0
        plan, least = None, None
        try:
            _, plan = cheapest_fitting(model, sharded, limit, needs)
        except ValueError as error:
            named = re.search(r"the least that works is ([\d,]+)", str(error))
            assert named is not None
            least = int(named[1].replace(",", "")) / block
        yield {
            "model": name,
            "share": share,
            "limit": limit / block,
            "device": plan and plan.needed.total / block,
            "host": plan and plan.needed.host / block,
            "least": least,
            "programs": needs.programs,
            "policy": [each.in_words() for each in plan.policy or ()] if plan else (),
        }


def main() -> None:
    """Reads the command line, compiles and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--models", nargs="+", default=["gat", "gcn", "sage"])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.8, 0.6, 0.45])
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--target", default="h200")
    options = parser.parse_args()
    if find_target(options.target).is_emulated:
        jg.parallel.emulate_devices(options.devices)
    rows = [row for name in options.models for row in measure(name, options)]
    report("Blocks of a device within limits of its memory", rows, options.json)


if __name__ == "__main__":
    main()
