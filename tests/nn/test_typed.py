"""Convolutions of several relations: a reduction of those of each, on any number of devices."""

from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from jaxgraph.nn import GATv2Conv, HeteroConv, RGCNConv, SAGEConv
from jaxgraph.parallel import gather_rows, make_mesh, shard, spmd
from tests.parallel.test_typed_parts import GRAPH
from tests.parallel.typed_shards import scattered

OUT = 4


def module(reduce: str = "sum") -> HeteroConv:
    rngs = nnx.Rngs(0)
    return HeteroConv(
        {
            "writes": SAGEConv(2, OUT, rngs=rngs),
            "cites": RGCNConv(2, OUT, num_types=3, rngs=rngs),
            "written by": GATv2Conv(2, OUT, dropout=0.5, rngs=rngs),
        },
        reduce=reduce,
    )


def rows_of(shard: Any) -> dict[str, jax.Array]:
    return {name: shard.table(name).nodes[:, :2] for name in ("paper", "author")}


def outputs(run: Any, layer: Any, parts: int, mode: str = "sar") -> dict[str, np.ndarray]:
    sharded = shard(GRAPH, scattered(GRAPH, parts), make_mesh(parts), mode)
    found = spmd(run, outputs="rows")(layer, sharded)
    return {name: gather_rows(y, sharded, name) for name, y in found.items()}


@pytest.mark.expensive
@pytest.mark.parametrize(("reduce", "of_both"), [("sum", 1.0), ("mean", 0.5)])
def test_rows_are_those_of_each_relation_reduced(reduce: str, of_both: float) -> None:
    def by_hand(layer: Any, shard: Any) -> Any:
        x, convolutions = rows_of(shard), layer.convolutions
        papers, authors = x["paper"], x["author"]
        written = convolutions["writes"](shard.relation("writes"), (authors, papers))
        cited = convolutions["cites"](shard.relation("cites"), papers)
        back = convolutions["written by"](shard.relation("written by"), (papers, authors))
        return {"paper": of_both * (written + cited), "author": back}

    def run(layer: Any, shard: Any) -> Any:
        return layer(shard, rows_of(shard))

    layer = module(reduce)
    expected = outputs(by_hand, layer, 1)
    for parts, mode in ((1, "sar"), (3, "sar"), (3, "domain")):
        for name, rows in outputs(run, layer, parts, mode).items():
            np.testing.assert_allclose(rows, expected[name], atol=2e-5, err_msg=name)


def test_dropout_does_not_depend_on_the_number_of_devices() -> None:
    def run(layer: Any, shard: Any) -> Any:
        return layer(shard, rows_of(shard), key=jax.random.key(3), train=True)

    layer = module()
    alone, several = (outputs(run, layer, parts)["author"] for parts in (1, 3))
    np.testing.assert_allclose(several, alone, atol=2e-5)
    without = outputs(lambda m, shard: m(shard, rows_of(shard)), layer, 1)["author"]
    assert np.abs(alone - without).max() > 0.01


def test_mistakes_are_named() -> None:
    shards: Any = shard(GRAPH, None, make_mesh(1)).shards
    with pytest.raises(ValueError, match=r"'writes' reads the rows of 'author'.*those of 'paper'"):
        module()(shards, {"paper": shards.table("paper").nodes})
    with pytest.raises(ValueError, match="got 'likes'"):
        HeteroConv({"likes": SAGEConv(2, OUT, rngs=nnx.Rngs(0))})(shards, {})
    with pytest.raises(ValueError, match="reduce is 'median'"):
        module("median")
    with pytest.raises(ValueError, match="a convolution for each relation"):
        HeteroConv({})
