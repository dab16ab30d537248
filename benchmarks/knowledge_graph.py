"""Link prediction on FB15k-237: R-GCN and DistMult beside PyTorch Geometric's example.

    python -m benchmarks.knowledge_graph --data-dir DIR --peer-python PYTHON

Model, loss and steps are those of examples/rgcn_link_pred.py of PyTorch Geometric: rows of 500
numbers, two R-GCN layers of 5 blocks, negatives of two uniform nodes, a penalty on the squares of
rows, Adam at 0.01 with clipped gradients. Both start from the same weights for each seed, and each
draws its own negatives and dropout. After as many steps, one function ranks the test links of both,
filtered. `PYTHON` is an interpreter that imports `torch` and `torch_geometric`.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxgraph as jg
from benchmarks.command_line import make_parser, report

PEER = Path(__file__).parent / "peers" / "pyg_knowledge_graph.py"
WIDTH, BLOCKS, PENALTY = 500, 5, 1e-2


class Encoder(nnx.Module):
    """Learned rows of entities, and two layers."""

    def __init__(self, num_nodes: int, num_types: int, rngs: nnx.Rngs) -> None:
        self.rows = jg.nn.NodeEmbedding(num_nodes, WIDTH, table="entity", rngs=rngs)
        limit = (6 / (num_nodes + WIDTH)) ** 0.5
        size = (num_nodes, WIDTH)
        drawn = jax.random.uniform(rngs.params(), size, minval=-limit, maxval=limit)
        self.rows.rows.set_value(drawn)
        options: dict[str, Any] = {"num_types": num_types, "num_blocks": BLOCKS, "rngs": rngs}
        self.first = jg.nn.RGCNConv(WIDTH, WIDTH, **options)
        self.second = jg.nn.RGCNConv(WIDTH, WIDTH, **options)

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> jax.Array:
        relation = shard.relation("related")
        h = jax.nn.relu(self.first(relation, self.rows(shard)))
        if train:
            h = jg.nn.dropout(relation.receivers, h, key, rate=0.2)
        return self.second(relation, h)


class Penalised(jg.nn.LinkReadout):
    """Scores, and in training the squares of the rows of this device's nodes and of types."""

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> Any:
        rows = self.encoder(shard, x, key=key, train=train)
        constant = jg.nn.LinkReadout(lambda *_, **__: rows, self.decoder, edges=None)
        scores = constant(shard, x)
        if not train:
            return scores
        nodes = shard.tables["entity"]
        squares = nodes.sum(jnp.sum(nodes.mask_rows(rows) ** 2)) / (nodes.num_nodes * WIDTH)
        return scores, PENALTY * (squares + jnp.mean(self.decoder.rows[...] ** 2))


class WithPenalty(jg.train.LinkPrediction):
    """The loss with the penalty of `Penalised`."""

    def sums(self, outputs: Any, shard: Any, split: str) -> Mapping[str, Any]:
        """See `Task.sums`."""
        scores, penalty = outputs if isinstance(outputs, tuple) else (outputs, 0.0)
        found = dict(super().sums(scores, shard, split))
        found["loss"] += penalty * found["count"]
        return found


def graph_of(folder: Path) -> tuple[jg.TypedGraph, np.ndarray, int]:
    """The split graph, the training triples and the number of types."""

    def triples(part: str) -> np.ndarray:
        (edges,) = jg.datasets.read_openke(folder, part, inverses=False).edge_sets.values()
        return np.stack([edges.senders, edges.receivers, np.asarray(edges.edge_type)], 1)

    graph = jg.datasets.read_openke(folder)
    (edges,) = graph.edge_sets.values()
    held = {"val": triples("valid"), "test": triples("test")}
    split = jg.transforms.link_split(graph, held_out=held, negatives=1)
    return split, triples("train"), edges.num_edge_types // 2


def ranked(model: Any, split: jg.TypedGraph, sharded: Any) -> dict[str, float]:
    """The filtered metrics of the test links."""
    ranks = jg.train.link_ranks(model, split, sharded, "test")
    return {"MRR": float(np.mean(1 / ranks)), "Hits@10": float(np.mean(ranks <= 10))}


def model_of(split: jg.TypedGraph, num_types: int, seed: int) -> Penalised:
    """The model with weights that the seed draws."""
    rngs = nnx.Rngs(seed)
    encoder = Encoder(split.node_sets["entity"].num_nodes, 2 * num_types, rngs)
    return Penalised(encoder, jg.nn.DistMult(num_types, WIDTH, rngs=rngs), edges=None)


def weights_for_peer(model: Penalised) -> dict[str, np.ndarray]:
    """The weights, under the peer's names."""
    found: dict[str, Any] = {"rows": model.encoder.rows.rows, "types": model.decoder.rows}
    for name in ("first", "second"):
        layer = getattr(model.encoder, name)
        found[f"{name}.weight"] = layer.blocks
        found[f"{name}.root"] = layer.self_kernel
        found[f"{name}.bias"] = layer.bias
    return {name: np.array(value[...]) for name, value in found.items()}


def ours(
    model: Penalised, split: jg.TypedGraph, count: int, steps: int, seed: int
) -> dict[str, Any]:
    """A row of jaxgraph."""
    links = jg.sampling.Links(np.arange(count))
    loader = jg.sampling.Loader(split, [], links=links, batch_size=count, seed=seed)
    groups: dict[Any, Any] = {
        "encoder": optax.clip_by_global_norm(1.0),
        "decoder": optax.clip_by_global_norm(1.0),
    }
    clip = optax.multi_transform(groups, _of_groups)
    adam = optax.chain(clip, optax.adam(0.01))
    history = jg.train.fit(model, loader, adam, epochs=steps, seed=seed, task=WithPenalty())
    assert history.state is not None
    nnx.update(model, history.state.params)
    found = ranked(model, split, loader.sharded)
    seconds = float(np.median([record.seconds for record in history.records]))
    return {"library": "jaxgraph", "seed": seed, "steps": steps, **found, "s a step": seconds}


def _of_groups(params: Any) -> Any:
    """The module of each parameter, "encoder" or "decoder"."""
    name = lambda path, _: jax.tree_util.keystr(path[:1], simple=True)  # noqa: E731
    return jax.tree_util.tree_map_with_path(name, params)


def theirs(
    python: Path, split: jg.TypedGraph, given: dict[str, np.ndarray], steps: int, seed: int
) -> dict[str, Any]:
    """A row of PyTorch Geometric."""
    with tempfile.TemporaryDirectory() as folder:
        inputs, results = Path(folder, "inputs.npz"), Path(folder, "results.npz")
        np.savez(inputs, **given)  # pyright: ignore[reportArgumentType]
        command = [str(python), "-W", "ignore", str(PEER)]
        command += [str(inputs), str(steps), str(seed), str(results)]
        subprocess.run(command, check=True)
        found = dict(np.load(results))
    rows = jg.nn.NodeEmbedding(*found["nodes"].shape, table="entity", rngs=nnx.Rngs(0))
    rows.rows.set_value(jnp.asarray(found["nodes"]))
    decoder = jg.nn.DistMult(*found["types"].shape, rngs=nnx.Rngs(0))
    decoder.rows.set_value(jnp.asarray(found["types"]))
    model = jg.nn.LinkReadout(Constant(rows), decoder, edges=None)
    sharded = jg.parallel.shard(split, None, jg.parallel.make_mesh(1))
    figures = ranked(model, split, sharded)
    seconds = float(np.median(found["seconds"]))
    return {"library": "PyG", "seed": seed, "steps": steps, **figures, "s a step": seconds}


def means(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each library, with the means over seeds."""
    found = []
    for library in dict.fromkeys(row["library"] for row in rows):
        of_library = [row for row in rows if row["library"] == library]
        figures = ("steps", "MRR", "Hits@10", "s a step")
        mean = {name: float(np.mean([row[name] for row in of_library])) for name in figures}
        found.append({"library": library, "seed": "mean", **mean})
    return found


class Constant(nnx.Module):
    """Rows of nodes as they are."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __call__(self, shard: Any, x: Any, **_: Any) -> jax.Array:
        return self.rows(shard)


def main() -> None:
    """Trains both, and prints a table."""
    parser = make_parser(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--peer-python", type=Path)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    split, triples, num_types = graph_of(options.data_dir / "fb15k-237")
    rows = []
    for seed in range(options.seeds):
        model = model_of(split, num_types, seed)
        given = {"triples": triples, **weights_for_peer(model)}
        rows.append(ours(model, split, len(triples), options.steps, seed))
        if options.peer_python:
            rows.append(theirs(options.peer_python, split, given, options.steps, seed))
    report("R-GCN and DistMult on FB15k-237", [*rows, *means(rows)], options.json)


if __name__ == "__main__":
    main()
