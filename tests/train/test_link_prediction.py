"""Link prediction: values, gradients, metrics and ranks beside oracles, on 1, 2 and 3 devices."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any, cast

import jax
import numpy as np
import optax
import pytest
import scipy.sparse as sp
from flax import nnx
from sklearn.metrics import average_precision_score, roc_auc_score

from jaxgraph import Graph, TypedGraph, layers, metrics, nn, train
from jaxgraph.parallel import make_mesh, shard
from jaxgraph.sampling import Links, Loader
from jaxgraph.train import LinkPrediction, evaluate, fit, link_ranks, loss_and_grad, predict
from jaxgraph.transforms import link_split, to_undirected, with_links
from tests.compilation import equations
from tests.parallel.typed_shards import scattered
from tests.tolerance import relative_error

TOLERANCE = 2e-5
NODES, FEATURES, WIDTH, TYPES = 40, 5, 4, 3


@cache
def plain() -> Graph:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((NODES, FEATURES)).astype(np.float32)
    return to_undirected(Graph.from_edges(*rng.integers(0, NODES, (2, 120)), nodes=x))


@cache
def targets() -> TypedGraph:
    """Links, and pairs that are none, for training and test."""
    split = link_split(plain(), (0.2, 0.2))
    links = split.node_sets["link"]
    links = links.replace(train_mask=links.val_mask, val_mask=None)
    return dataclasses.replace(split, node_sets={**split.node_sets, "link": links})


def on_devices(graph: TypedGraph, parts: int, mode: str = "sar") -> Any:
    return shard(graph, scattered(graph, parts), make_mesh(parts), mode)


def gae(decoder: Any = None) -> Any:
    encoder = nn.GCN(FEATURES, 8, WIDTH, num_layers=1, rngs=nnx.Rngs(0))
    return nn.LinkReadout(encoder, decoder or nn.InnerProduct())


def oracle(model: nn.LinkReadout, graph: TypedGraph) -> tuple[np.ndarray, float, np.ndarray]:
    """Scores of all links, the training loss, and the gradient of the encoder's matrix."""
    edges: Any = graph.edge_sets["node", "edge", "node"]
    links: Any = graph.node_sets["link"]
    x, adjacency = np.asarray(graph.node_sets["node"].nodes, np.float64), np.zeros((NODES, NODES))
    adjacency[edges.receivers, edges.senders] = 1
    np.fill_diagonal(adjacency, 1)
    scale = adjacency.sum(1) ** -0.5
    ax = scale[:, None] * adjacency * scale @ x
    (layer,) = model.encoder.layers
    kernel, bias = (
        np.asarray(getattr(layer.convolution, name)[...], np.float64) for name in ("kernel", "bias")
    )
    z = ax @ kernel + bias
    heads, tails = (graph.edge_sets["node", end, "link"].senders for end in ("head", "tail"))
    scores, y = (z[heads] * z[tails]).sum(1), links.labels
    chosen = links.train_mask / links.train_mask.sum()
    loss = (chosen * (np.logaddexp(0, scores) - y * scores)).sum()
    pulled = chosen * (1 / (1 + np.exp(-scores)) - y)
    of_z = np.zeros_like(z)
    np.add.at(of_z, heads, pulled[:, None] * z[tails])
    np.add.at(of_z, tails, pulled[:, None] * z[heads])
    return scores, loss, ax.T @ of_z


@pytest.mark.expensive
@pytest.mark.parametrize("mode", ["sar", "domain"])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_scores_loss_and_gradients_are_the_oracles(parts: int, mode: str) -> None:
    model, sharded = gae(), on_devices(targets(), parts, mode)
    scores, loss, gradient = oracle(model, targets())
    assert relative_error(predict(model, sharded), scores) < TOLERANCE
    found, grads = loss_and_grad(model, sharded, task=LinkPrediction())
    assert relative_error(found, loss) < TOLERANCE
    kernel = grads["encoder"]["layers"][0]["convolution"]["kernel"][...]
    assert relative_error(kernel, gradient) < TOLERANCE


@pytest.mark.parametrize("parts", [1, 3])
def test_metrics_are_those_of_scikit_learn_and_of_ogb(parts: int) -> None:
    model, links = gae(), cast(Any, targets().node_sets["link"])
    found = evaluate(model, on_devices(targets(), parts), task=LinkPrediction(hits=(1, 5)))
    assert list(found) == ["test"]
    scores, y = oracle(model, targets())[0][links.test_mask], links.labels[links.test_mask]
    lowest = np.sort(scores[y == 0])[::-1]
    expected = {
        "roc_auc": roc_auc_score(y, scores),
        "average_precision": average_precision_score(y, scores),
        **{f"hits@{k}": (scores[y == 1] > lowest[k - 1]).mean() for k in (1, 5)},
    }
    for name, value in expected.items():
        assert abs(found["test"][name] - value) < 1e-6, name


def test_metrics_of_ties_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    scores, y = rng.integers(0, 9, 400).astype(np.float32), rng.integers(0, 2, 400)
    mask = rng.random(400) < 0.7
    known = y[mask], scores[mask]
    ranks = metrics.ranks_of(jax.numpy.asarray(scores), jax.numpy.asarray(y), mask)
    assert abs(float(ranks.roc_auc()) - roc_auc_score(*known)) < 1e-6
    assert abs(metrics.average_precision(scores, y, mask) - average_precision_score(*known)) < 1e-6
    third = np.sort(scores[mask & (y == 0)])[-3]
    assert metrics.hits_at(3, scores, y, mask) == (scores[mask & (y == 1)] > third).mean()
    with pytest.raises(ValueError, match="no positives, or no negatives"):
        metrics.average_precision(scores, np.ones(400))


@cache
def split_of(typed: bool) -> TypedGraph:
    if not typed:
        return link_split(plain(), (0.1, 0.2))
    rng = np.random.default_rng(2)
    triples = np.unique(rng.integers(0, (NODES, NODES, TYPES), (250, 3)), axis=0)
    held, left = triples[::6], np.delete(triples, slice(None, None, 6), 0)
    edges = {"senders": left[:, 0], "receivers": left[:, 1], "edge_type": left[:, 2]}
    x = rng.standard_normal((NODES, FEATURES))
    graph = TypedGraph({"entity": {"nodes": x}}, {("entity", "related", "entity"): edges})
    return link_split(graph, held_out={"val": held[:10], "test": held[10:]})


def model_of(typed: bool) -> nn.LinkReadout:
    if not typed:
        return gae()
    encoder = nn.RGCN(FEATURES, 8, WIDTH, num_types=TYPES, dropout=0.2, rngs=nnx.Rngs(0))
    return nn.LinkReadout(encoder, nn.DistMult(TYPES, WIDTH, rngs=nnx.Rngs(1)), edges="related")


def curve(model: Any, graph: TypedGraph, parts: int, fanouts: list[int], links: Links) -> Any:
    how: dict[str, Any] = {"sharded": on_devices(graph, parts), "batch_size": 30, "links": links}
    loader = Loader(graph, fanouts, **how)
    task = LinkPrediction(hits=(3,))
    return fit(model, loader, optax.adam(0.02), epochs=3, task=task, seed=1)


@pytest.mark.expensive
@pytest.mark.parametrize("typed, fanouts", [(False, []), (True, []), (False, [-1]), (False, [2])])
def test_curves_do_not_depend_on_the_number_of_devices(typed: bool, fanouts: list[int]) -> None:
    found = []
    for parts in (1, 2, 3):
        links = Links(negatives=2, corrupt="one end" if typed else "both ends")
        records = curve(model_of(typed), split_of(typed), parts, fanouts, links).records
        found.append([(r.loss, *r.metrics["test"].values()) for r in records])
    assert relative_error(found[1], found[0]) < 1e-4
    assert relative_error(found[2], found[0]) < 1e-4
    losses = [record[0] for record in found[0]]
    assert len(set(losses)) == 3


def test_batches_of_the_whole_graph_and_of_all_neighbours_learn_alike() -> None:
    graph, links = split_of(False), Links(negatives=3)
    curves = [curve(gae(), graph, 1, fanouts, links).records for fanouts in ([], [-1])]
    whole, sampled = ([record.loss for record in records] for records in curves)
    assert relative_error(whole, sampled) < TOLERANCE


def test_a_batch_has_links_and_their_negatives() -> None:
    """Its rows are the edges, once each, and pairs of their type that are no edges."""
    graph = split_of(True)
    edges: Any = graph.edge_sets["entity", "related", "entity"]
    known = set(zip(edges.senders, edges.receivers, edges.edge_type, strict=True))
    loader = Loader(graph, [], links=Links(negatives=2, corrupt="one end"), batch_size=64)
    listed = []
    for epoch in (0, 0, 1):
        rows = [pairs for batch in loader.batches(epoch) for pairs in read(batch)]
        positive: list[Any] = [pair for pair, label in rows if label == 1]
        negative = [pair for pair, label in rows if label == 0]
        expected = {each for each in known if each[0] != each[1]}
        assert set(positive) == expected and len(positive) == len(expected)
        assert len(negative) == 2 * len(positive) and not set(negative) & known
        listed.append(negative)
    assert listed[0] == listed[1] != listed[2]


def read(batch: Any) -> list[Any]:
    """The pairs of a batch with their labels, by the ids of nodes."""
    local = jax.tree.map(lambda leaf: leaf[0], batch.shards)
    ids = {"entity": local.tables["entity"].node_ids.astype(np.float32)[:, None]}
    layer, rows = local.read(ids)
    table, ends = layer.receivers["link"], []
    for name in ("head", "tail"):
        sums = layers.readout(layer.relation(name), rows["entity"])
        ends.append(np.asarray(sums[:, 0], np.int64))
    columns = (*ends, table.node_data["link_type"], table.labels, table.node_mask)
    return [
        ((h, t, k), y) for h, t, k, y, there in zip(*map(np.asarray, columns), strict=True) if there
    ]


class Rounded(nn.DistMult):
    """Scores with many ties."""

    def __call__(self, heads: Any, tails: Any, links: Any) -> jax.Array:
        return jax.numpy.round(2 * super().__call__(heads, tails, links))


@pytest.mark.expensive
@pytest.mark.parametrize("parts", [1, 3])
def test_ranks_are_filtered_and_ties_get_their_mean(parts: int) -> None:
    graph = split_of(True)
    encoder = nn.RGCN(FEATURES, 8, WIDTH, num_types=TYPES, rngs=nnx.Rngs(0))
    model = nn.LinkReadout(encoder, Rounded(TYPES, WIDTH, rngs=nnx.Rngs(1)), edges="related")
    # Scores of all pairs of nodes, as rows of links.
    heads, tails, types = (x.reshape(-1) for x in np.indices((NODES, NODES, TYPES)))
    edges, ends = graph.edge_sets["entity", "related", "entity"], ("entity", "related", "entity")
    bare = TypedGraph({"entity": graph.node_sets["entity"]}, {ends: edges})
    every = with_links(bare, heads, tails, node_data={"link_type": types})
    scores = predict(model, on_devices(every, 1)).reshape(NODES, NODES, TYPES)
    links, known = graph.node_sets["link"], np.zeros(scores.shape, bool)
    held = [graph.edge_sets["entity", end, "link"].senders for end in ("head", "tail")]
    held = np.stack([*held, links.node_data["link_type"]])
    for each in (held[:, links.labels == 1], (edges.senders, edges.receivers, edges.edge_type)):
        known[tuple(each)] = True
    expected = []
    for head, tail, kind in held[:, links.test_mask & (links.labels == 1)].T:
        score = scores[head, tail, kind]
        others = (
            (scores[:, tail, kind], known[:, tail, kind]),
            (scores[head, :, kind], known[head, :, kind]),
        )
        expected.append([1 + (s > score)[~k].sum() + (s == score)[~k].sum() / 2 for s, k in others])
    found = link_ranks(model, graph, None if parts == 1 else on_devices(graph, parts))
    np.testing.assert_array_equal(found, expected)


class Diverged(nn.InnerProduct):
    """Scores that are not numbers."""

    def __call__(self, heads: Any, tails: Any, links: Any) -> jax.Array:
        return jax.numpy.nan * super().__call__(heads, tails, links)


def test_scores_that_are_not_numbers_are_the_worst() -> None:
    model, graph = gae(Diverged()), targets()
    ranks = link_ranks(model, graph)
    assert (ranks >= link_ranks(gae(), graph)).all() and ranks.min() > NODES / 2
    found = evaluate(model, graph, task=LinkPrediction(hits=(5,)))["test"]
    assert np.isnan(found["loss"]) and found["roc_auc"] == 0 and found["hits@5"] == 0
    none = evaluate(gae(), link_split(plain(), negatives=0), task=LinkPrediction(hits=(1,)))
    assert all(np.isnan(value) for name, value in none["test"].items() if name != "loss")
    for scores, y in (([np.nan, 2, 1], [1, 0, 0]), ([3, np.nan], [1, 0])):
        assert metrics.ranks_of(np.array(scores), np.array(y)).roc_auc() == 0


@pytest.mark.parametrize("is_head", [True, False])
def test_candidates_are_not_copied_for_each_query(is_head: bool) -> None:
    decoder = nn.DistMult(TYPES, 50, rngs=nnx.Rngs(0))
    candidates = jax.numpy.ones((100, 50))

    def of_query(row: jax.Array, kind: jax.Array) -> jax.Array:
        pair = (candidates, row) if is_head else (row, candidates)
        return decoder(*pair, {"link_type": kind})

    queries = jax.numpy.ones((70, 50)), jax.numpy.zeros(70, int)
    program = jax.make_jaxpr(jax.vmap(of_query))(*queries)
    sizes = [value.aval.size for each in equations(program.jaxpr) for value in each.outvars]
    assert max(sizes) == 70 * 100


def test_types_of_edges_are_classes() -> None:
    """Targets by edge: an MLP of both ends and of features of the links, on 1 and 3 devices."""
    graph, rng = plain(), np.random.default_rng(0)
    rows = rng.standard_normal((graph.num_edges, 2)).astype(np.float32)
    classes = (rows[:, 0] > 0).astype(int)
    mask = rng.random(graph.num_edges) < 0.5
    rest: Any = {"nodes": rows, "train_mask": mask, "test_mask": ~mask}
    edges = with_links(graph, graph.senders, graph.receivers, labels=classes, **rest)
    found = []
    for parts in (1, 3):
        head = nn.LinkMLP(WIDTH, 8, 2, link_features=2, rngs=nnx.Rngs(1))
        model = gae(head)
        records = fit(model, on_devices(edges, parts), optax.adam(0.05), epochs=60).records
        found.append(records[-1].metrics["test"]["loss"])
        assert records[-1].metrics["test"]["accuracy"] > 0.9
    assert relative_error(*found) < 1e-3


def test_without_types_a_link_is_known_in_either_direction() -> None:
    graph = Graph.from_edges([0, 1], [1, 0], num_nodes=6, nodes=np.ones((6, FEATURES)))
    model, found = gae(), []
    for val in ([2, 5], [5, 2]):
        split = link_split(graph, held_out={"val": [val], "test": [[5, 3]]}, negatives=0)
        found.append(link_ranks(model, split).tolist())
    assert found[0] == found[1]


def test_a_type_without_a_row_has_no_score() -> None:
    rows = jax.numpy.ones((3, WIDTH))
    scores = nn.DistMult(2, WIDTH, rngs=nnx.Rngs(0))(
        rows, rows, {"link_type": np.array([1, 2, -1])}
    )
    assert np.isnan(scores).tolist() == [False, True, True]


def test_a_function_can_be_the_decoder() -> None:
    scores = [
        predict(nn.LinkReadout(gae().encoder, decoder), targets())
        for decoder in (nn.InnerProduct(), lambda heads, tails, links: (heads * tails).sum(-1))
    ]
    assert relative_error(*scores) < TOLERANCE


def test_links_of_a_loader_need_no_training_links() -> None:
    loader = Loader(targets(), [], links=Links(), batch_size=50)
    assert targets().node_sets["link"].train_mask is not None
    assert np.isfinite(fit(gae(), loader, optax.sgd(0.1), epochs=2, task=LinkPrediction()).loss[-1])


def two_sets() -> TypedGraph:
    """Links from authors to papers, which cite papers."""
    sets = {name: {"nodes": np.ones((NODES, FEATURES))} for name in ("paper", "author")}
    edges = {"senders": [0, 1], "receivers": [1, 2]}
    graph = TypedGraph(sets, {("paper", "cites", "paper"): edges})
    return with_links(graph, [0], [1], ends=("author", "paper"))


def typed_decoder(types: int) -> nn.LinkReadout:
    encoder = nn.RGCN(FEATURES, 8, WIDTH, num_types=TYPES, rngs=nnx.Rngs(0))
    return nn.LinkReadout(encoder, nn.DistMult(types, WIDTH, rngs=nnx.Rngs(1)), edges="related")


def test_triples_are_learned_from_samples() -> None:
    """All neighbours give the losses of the whole graph; of some, losses are others."""
    losses = []
    for fanouts in ([], [-1, -1], [2, 2]):
        loader = Loader(split_of(True), fanouts, links=Links(), batch_size=40)
        history = fit(
            typed_decoder(TYPES), loader, optax.adam(0.01), epochs=3, task=LinkPrediction()
        )
        losses.append(np.array(history.loss))
    assert relative_error(losses[1], losses[0]) < TOLERANCE < relative_error(losses[2], losses[0])


WRONG: Any = 5


@pytest.mark.parametrize("mode", ["stream", "p3"])
def test_other_modes_name_those_that_there_are(mode: str) -> None:
    with pytest.raises(ValueError, match=f"mode is '{mode}'.*expected one of 'sar', 'domain'"):
        on_devices(split_of(False), 1, mode)


BAD = {
    "expected jaxgraph.sampling.Links": lambda: Loader(split_of(False), [], links=WRONG),
    "has no set 'link'": lambda: Loader(plain(), [], links=Links()),
    "corrupt is 'tail'": lambda: Links(corrupt="tail"),
    "negatives is 0": lambda: Links(negatives=0),
    "nodes, links: seeds": lambda: Loader(split_of(False), [], nodes=[1], links=Links()),
    "links.edges": lambda: Loader(split_of(False), [], links=Links(edges=[10**6])),
    r"Loader\(graph, \[\], links=": lambda: fit(
        gae(), on_devices(split_of(False), 1), optax.sgd(1.0), epochs=1, task=LinkPrediction()
    ),
    "link prediction expects a score for each pair": lambda: evaluate(
        gae(nn.LinkMLP(WIDTH, 4, 2, rngs=nnx.Rngs(0))),
        on_devices(targets(), 1),
        task=LinkPrediction(),
    ),
    "scores of links need task=": lambda: evaluate(gae(), on_devices(targets(), 1)),
    "'head' reads rows of 'author'": lambda: predict(
        nn.LinkReadout(gae().encoder, nn.InnerProduct(), edges="cites"), two_sets()
    ),
    "make it with num_types=3": lambda: predict(typed_decoder(2), split_of(True)),
    "have 3 types, and DistMult": lambda: fit(
        typed_decoder(2), Loader(split_of(True), [], links=Links()), optax.sgd(1.0), epochs=1
    ),
    "has other values than types": lambda: with_links(
        plain(), [0], [1], node_data={"link_type": [-1]}
    ),
    "the labels are of 3 classes": lambda: evaluate(
        gae(), with_links(plain(), [0, 1], [1, 2], labels=[0, 2]), task=LinkPrediction()
    ),
    "decoder is the class InnerProduct": lambda: gae(nn.InnerProduct),
    "encoder is the class GCN; expected an instance": lambda: nn.GraphReadout(cast(Any, nn.GCN)),
    "head is a Linear, which cannot be called as": lambda: nn.GraphReadout(
        gae().encoder, nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    ),
    "encoder is an InnerProduct, which cannot": lambda: nn.LinkReadout(nn.InnerProduct(), gae()),
    "expected one score for each": lambda: link_ranks(
        gae(nn.LinkMLP(WIDTH, 4, 2, rngs=nnx.Rngs(0))), split_of(False)
    ),
    "reads features of links": lambda: link_ranks(
        gae(nn.LinkMLP(WIDTH, 4, link_features=2, rngs=nnx.Rngs(0))), split_of(False)
    ),
    "LinkMLP: rows of nodes have width 4": lambda: predict(
        gae(nn.LinkMLP(5, 4, rngs=nnx.Rngs(0))), targets()
    ),
    "the features are sparse": lambda: Loader(
        link_split(plain().replace(nodes=sp.csr_array(plain().nodes))), [2], links=Links()
    ),
    r"give the loader links=": lambda: Loader(split_of(False), []),
    "has 1 layers that read edges, and the loader 2": lambda: fit(
        gae(), Loader(split_of(False), [2, 2], links=Links()), optax.sgd(1.0), epochs=1
    ),
    "epoch: got -1": lambda: Loader(split_of(False), [], links=Links()).batches(-1),
    "hits is 5": lambda: LinkPrediction(hits=WRONG),
    "the links have no types": lambda: predict(
        gae(nn.DistMult(2, WIDTH, rngs=nnx.Rngs(0))), on_devices(targets(), 1)
    ),
    "edges is 'cites'": lambda: predict(
        nn.LinkReadout(gae().encoder, nn.InnerProduct(), edges="cites"), on_devices(targets(), 1)
    ),
    "split is 'train'": lambda: link_ranks(
        gae(), split_of(False), on_devices(split_of(False), 1), "train"
    ),
    "expected a jaxgraph.nn.LinkReadout": lambda: link_ranks(
        gae().encoder, split_of(False), on_devices(split_of(False), 1)
    ),
    "sharded has other edges than the graph": lambda: link_ranks(
        gae(), split_of(False), on_devices(link_split(plain(), (0.1, 0.2), seed=1), 1)
    ),
    "expected the TypedGraph of": lambda: link_ranks(
        gae(), plain(), on_devices(split_of(False), 1)
    ),
    "make it by jaxgraph.transforms.link_split": lambda: train.evaluate(
        gae().encoder, plain(), task=LinkPrediction()
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_says_what_came(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BAD[message]()
