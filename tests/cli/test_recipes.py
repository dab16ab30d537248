import re
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from jaxgraph import datasets, nn
from jaxgraph.cli.recipes import MODELS, Recipe, build_model, prepared, recipe
from jaxgraph.graph import Graph
from jaxgraph.graph_facts import facts_of

PUBLISHED = [
    name
    for name in datasets.names()
    if re.match("cora|cite|pubmed|amazon|coauthor|ogbn-(?!mag)", name)
]


@pytest.mark.parametrize("model", MODELS)
def test_every_data_set_and_model_has_a_recipe_that_names_its_source(model: str):
    has_heads = "num_heads" in {field.name for field in fields(getattr(nn, MODELS[model]))}
    for name in [*datasets.names(), "mine.csv"]:
        found = recipe(name, model)
        assert found.model == model and (found.heads is not None) == has_heads
        assert found.epochs > found.patience >= 0
        assert found.normalize == (name in ("cora", "citeseer", "pubmed"))
        year = re.search(r"\((19|20)\d\d\)", found.source)
        is_published = name in PUBLISHED or (name, model) == ("aifb", "rgcn")
        assert (year is not None) == is_published, (name, found.source)
        is_adapted = model in ("gatv2", "gin", "gine", "deepgcn", "transformer", "pna", "rgcn")
        is_adapted &= name in PUBLISHED
        assert f"none published for {MODELS[model]}" in found.source or not (year and is_adapted)


def test_numbers_are_those_of_the_papers():
    # Kipf and Welling (2017), section 5.2; Velickovic et al. (2018), section 3.3 (Cora; Pubmed).
    def numbers(found: Recipe) -> tuple[object, ...]:
        return found.hidden, found.heads, found.dropout, found.lr, found.weight_decay

    assert numbers(recipe("cora", "gcn")) == (16, None, 0.5, 0.01, 5e-4)
    assert numbers(recipe("Cora", "gat")) == (8, 8, 0.6, 0.005, 5e-4)
    assert numbers(recipe("pubmed", "gat")) == (8, 8, 0.6, 0.01, 1e-3)
    # Gasteiger et al. (2019), section 5; Chen et al. (2020), table 8.
    assert numbers(recipe("cora", "appnp")) == (64, None, 0.5, 0.01, 5e-4)
    assert numbers(recipe("cora", "gcnii")) == (64, None, 0.6, 0.01, 5e-4)
    # Shchur et al. (2018): config/optimized/gcn.conf.yaml, config/reference/gat.conf.yaml.
    assert numbers(recipe("amazon-photo", "gcn")) == (64, None, 0.8, 0.01, 1e-3)
    assert numbers(recipe("coauthor-cs", "gat")) == (8, 8, 0.6, 0.01, 5e-4)
    # Hu et al. (2020), examples/nodeproppred/arxiv/gnn.py.
    arxiv = recipe("ogbn_arxiv", "sage")
    assert (arxiv.layers, arxiv.norm, numbers(arxiv)) == (3, "batch", (256, None, 0.5, 0.01, 0))
    general = recipe("mine.csv", "gcnii")
    assert (general.layers, numbers(general)) == (16, (64, None, 0.6, 0.01, 5e-4))


def test_a_recipe_prepares_the_features():
    edge = {"senders": np.array([0]), "receivers": np.array([1]), "num_nodes": 2}
    graph = Graph(**edge, nodes=np.array([[1, 3], [0, 0]], np.float32))
    changed = prepared(recipe("cora", "gcn"), graph).nodes
    np.testing.assert_array_equal(np.asarray(changed), [[0.25, 0.75], [0, 0]])
    assert prepared(recipe("amazon-photo", "gcn"), graph) is graph


@pytest.mark.expensive
@pytest.mark.parametrize("model", [model for model in MODELS if model != "rgcn"])
def test_models_use_the_edge_data_that_they_can(model: str):
    rng = np.random.default_rng(0)
    ends, features = rng.integers(0, 20, (2, 60)), rng.random((20, 4), np.float32)
    plain = Graph(*ends, num_nodes=20, nodes=features, labels=np.arange(20, dtype=np.int32) % 3)
    reads = model in ("gat", "gatv2", "gine")
    data = rng.random((60, 2), np.float32)
    given = plain.replace(edges=data) if reads else plain.replace(edge_weight=data[:, 0])
    found: Any = build_model(recipe("mine.csv", model), facts_of(given), 0)
    if model in ("transformer", "pna"):
        with pytest.raises(ValueError, match="does not use edge_weight"):
            found(given, features)
    elif reads:
        assert found(given, features).shape == (20, 3)
        assert found.layers[0].convolution.edge_kernel.shape[0] == 2
    else:
        assert np.abs(found(given, features) - found(plain, features)).max() > 1e-4
    if model == "gine":
        with pytest.raises(ValueError, match="--model: gine reads features of edges, and"):
            build_model(recipe("mine.csv", model), facts_of(plain), 0)
