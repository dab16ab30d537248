"""R-GCN: a matrix for each type of edge.

The sum over the edges of a type commutes with its matrix. Rows are summed for each pair (edge type,
receiver) first, as by any other aggregation: nothing is sent for a type by itself. Pairs are in
blocks of one type, so that one product of blocks by their matrices maps all sums, whatever the
number of types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.layers.aggregations import NeighborReduction
from jaxgraph.layers.dense import add_bias, check_width, product, rounded
from jaxgraph.layers.edge_data import check_edge_data
from jaxgraph.parallel.conv_stages import Pair
from jaxgraph.parallel.feature_protocol import Features, at_use, features_of
from jaxgraph.parallel.neighborhood import Neighborhood, two_ends
from jaxgraph.parallel.relation import Pairs
from jaxgraph.parallel.whole_graph import on_device

Params = Mapping[str, jax.Array]
_MATRICES = ({"kernel"}, {"bases", "coefficients"}, {"blocks"})


def rgcn_conv(
    params: Params, neighborhood: Neighborhood, x: Features | Pair, *, reduce: str = "mean"
) -> jax.Array:
    """y_i = x_i W_self + sum_r reduce_{j -r-> i}(w_ij x_j) W_r + b

    A mean divides by the number of the node's edges of a type, not by the sum of their weights.

    Args:
      params: the matrices of the edge types: "kernel" float [types, in_features, out_features],
        W_r; or "bases" [bases, in_features, out_features], V_b, and "coefficients" [types, bases],
        a_rb, with W_r = sum_b a_rb V_b; or "blocks" [types, blocks, in_features / blocks,
        out_features / blocks], the diagonal of W_r. Optionally "self_kernel" [in_features,
        out_features], W_self, and "bias" [out_features], b.
      neighborhood: a relation whose edges have types: `shard.relation(name)` of a
        `jaxgraph.TypedGraph`.
      x: float [senders, in_features]; or a pair of the senders' and the receivers' rows, where
        these are different nodes.
      reduce: "mean" or "sum".

    Returns:
      float [receivers, out_features].

    Raises:
      ValueError: the edges have no types, or more than the matrices; the reduction is unknown; x
        does not fit the matrices; or some edges are dropped.

    References:
      Schlichtkrull et al., "Modeling relational data with graph convolutional networks", 2018,
      equations 2 to 4.
    """
    if reduce not in ("mean", "sum"):
        raise ValueError(f"reduce is {reduce!r}; expected 'mean' or 'sum'")
    neighborhood, x = on_device(neighborhood, x)
    check_edge_data(neighborhood, "rgcn_conv", ("edge_weight", "edge_type"))
    pairs = _pairs_of(neighborhood)
    of_senders, of_receivers = two_ends(x)
    features = features_of(of_senders)
    features.check_dense("rgcn_conv")
    rows = features.rows("rgcn_conv")
    own = neighborhood.own_rows(rows) if of_receivers is None else of_receivers
    kernel = _matrices(params, pairs, rows)
    summed = NeighborReduction(reduce).receive(pairs.into, rows, rows)
    mapped = _mapped(kernel, pairs, summed)
    y = NeighborReduction("sum").receive(pairs.out_of, mapped, mapped)
    if "self_kernel" in params:
        check_width(neighborhood.receivers, own, params["self_kernel"])
        own = neighborhood.receivers.mask_rows(own)
        kernel = at_use(params["self_kernel"], own)
        y = y + product(neighborhood.implementation, own, kernel)
    return add_bias(y, params.get("bias"))


def _pairs_of(neighborhood: Any) -> Pairs:
    """The pairs of a relation of typed edges, all of which carry messages."""
    pairs = getattr(neighborhood, "pairs", None)
    if not isinstance(pairs, Pairs):
        raise ValueError(
            "rgcn_conv needs a relation whose edges have types: give a set of edges of a "
            "jaxgraph.TypedGraph edge_type=..., shard it, and pass "
            "shard.relation(name)"
        )
    if neighborhood.kept_edges is not None:
        raise ValueError(
            "rgcn_conv sums over all edges, and some of these are dropped; call it on the relation "
            "of the shard as it is"
        )
    return pairs


def _matrices(params: Params, pairs: Pairs, x: jax.Array) -> jax.Array:
    """The matrices of the types, [types, blocks, in, out], in the type of x."""
    given = params.keys() - {"self_kernel", "bias"}
    if given not in _MATRICES:
        raise ValueError(
            f"params has {', '.join(sorted(given)) or 'no matrices'}; expected kernel, or bases "
            "and coefficients, or blocks"
        )
    if "bases" in given:
        matrices = jnp.einsum("tb,bio->tio", params["coefficients"], params["bases"])[:, None]
    else:
        matrices = params["blocks"] if "blocks" in given else params["kernel"][:, None]
    types, blocks, width, _ = matrices.shape
    if pairs.num_types > types:
        raise ValueError(
            f"the edges have {pairs.num_types} types, and the layer has matrices for {types}; make "
            f"it with num_types={pairs.num_types}"
        )
    if x.shape[1] != blocks * width:
        raise ValueError(
            f"x has {x.shape[1]} features, and the matrices take {blocks * width}; make the layer "
            f"with in_features={x.shape[1]}"
        )
    return at_use(matrices, x)


def _mapped(matrices: jax.Array, pairs: Pairs, summed: jax.Array) -> jax.Array:
    """Multiplies the row of each pair by the matrix of its type."""
    _, blocks, width, out = matrices.shape
    of_blocks = matrices[pairs.type_of_block]
    rows = summed.reshape(len(of_blocks), pairs.block, blocks, width)
    mapped = jnp.einsum("prbi,pbio->prbo", rows, of_blocks, preferred_element_type=jnp.float32)
    return rounded(mapped.reshape(len(summed), blocks * out), summed)
