"""R-GCN: a matrix for each type of edge.

The sum over the edges of a type commutes with its matrix. Rows are summed for each pair (edge type,
receiver) first, as by any other aggregation: nothing is sent for a type by itself. Pairs are in
blocks of one type, so that one product of blocks by their matrices maps all sums, whatever the
number of types. The backward sums gradients for each pair (edge type, sender) in the same way, and
needs the layer's input alone: SAR's case 1 (section 3.2), with parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.layers.aggregations import NeighborReduction
from jaxgraph.layers.dense import add_bias, check_width, product, rounded
from jaxgraph.layers.edge_data import check_edge_data
from jaxgraph.ops.core.derivatives import custom_vjp, forward_of
from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.precision import accumulation_dtype
from jaxgraph.parallel.conv_stages import Pair
from jaxgraph.parallel.feature_protocol import Features, at_use, features_of
from jaxgraph.parallel.neighborhood import Neighborhood, two_ends
from jaxgraph.parallel.relation import Pairs
from jaxgraph.parallel.whole_graph import on_device

Params = Mapping[str, jax.Array]
_COLUMNS = 64
"""Columns of a mapped row of each pair that are in memory at once, about."""
_BLOCK = 8
"""Pairs of one type in a block, of a sample."""
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
        `jaxgraph.TypedGraph`, or of a sample of one.
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
    num_types = _num_types(neighborhood)
    of_senders, of_receivers = two_ends(x)
    features = features_of(of_senders)
    features.check_dense("rgcn_conv")
    rows = features.rows("rgcn_conv")
    own = neighborhood.own_rows(rows) if of_receivers is None else of_receivers
    kernel, pairs = _matrices(params, num_types, rows), getattr(neighborhood, "pairs", None)
    if pairs is None:
        y = _sampled_sum(reduce, neighborhood, kernel, rows)
    else:
        y = _typed_sum(reduce, pairs, kernel, rows)
    if "self_kernel" in params:
        check_width(neighborhood.receivers, own, params["self_kernel"])
        own = neighborhood.receivers.mask_rows(own)
        kernel = at_use(params["self_kernel"], own)
        y = y + product(neighborhood.implementation, own, kernel)
    return add_bias(y, params.get("bias"))


def _num_types(neighborhood: Any) -> int:
    """The edge types of a relation, all of whose edges carry messages."""
    pairs = getattr(neighborhood, "pairs", None)
    holder = getattr(neighborhood, "exchange", None) if pairs is None else pairs
    found = getattr(holder, "num_types", None)
    if found is None:
        raise ValueError(
            "rgcn_conv needs a relation whose edges have types: give a set of edges of a "
            "jaxgraph.TypedGraph edge_type=..., shard it, and pass shard.relation(name)"
        )
    if neighborhood.kept_edges is not None:
        raise ValueError(
            "rgcn_conv sums over all edges, and some of these are dropped; call it on the relation "
            "of the shard as it is"
        )
    return found


def _matrices(params: Params, num_types: int, x: jax.Array) -> jax.Array:
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
    if num_types > types:
        raise ValueError(
            f"the edges have {num_types} types, and the layer has matrices for {types}; make it "
            f"with num_types={num_types}"
        )
    if x.shape[1] != blocks * width:
        raise ValueError(
            f"x has {x.shape[1]} features, and the matrices take {blocks * width}; make the layer "
            f"with in_features={x.shape[1]}"
        )
    return at_use(matrices, x)


@functools.partial(custom_vjp, nondiff_argnums=(0,))
def _typed_sum(reduce: str, pairs: Pairs, matrices: jax.Array, x: jax.Array) -> jax.Array:
    """sum_r reduce_{j -r-> i}(w_ij x_j) W_r; the backward saves x, and nothing of the pairs."""
    summed = NeighborReduction(reduce).receive(pairs.into, x, x)
    return _mapped_sum(pairs, matrices, summed)


def _forward(reduce: str, pairs: Pairs, matrices: jax.Array, x: jax.Array) -> tuple[jax.Array, Any]:
    y = forward_of(functools.partial(_typed_sum.value, reduce, pairs), matrices, x)
    return y, (pairs, matrices, x)


def _backward(reduce: str, residuals: Any, gradient: jax.Array) -> tuple[None, Any, Any]:
    """dx_j = sum_r t_jr W_r', dW_r = sum_j x_j' t_jr, with t_jr = sum_{j -r-> i} w_ij g_i / c_ir"""
    pairs, matrices, x = residuals
    assert pairs.back is not None
    into = pairs.back.into
    if reduce == "mean":
        # 16 bits hold no count above 256.
        counts = pairs.back.edges_of_pair.astype(accumulation_dtype(x.dtype))
        weight, given = 1 / jnp.maximum(counts, 1), into.edge_weight
        into = into.with_arrays(edge_weight=weight if given is None else weight * given)
    receive = NeighborReduction("sum").receive
    summed = forward_of(lambda gradient: receive(into, gradient, gradient), gradient)
    mapped = functools.partial(_mapped_sum, pairs.back)
    of_x = forward_of(mapped, jnp.swapaxes(matrices, 2, 3), summed)
    return None, _products(pairs.back, x, summed, matrices), of_x


_typed_sum.defvjp(_forward, _backward)


def _mapped_sum(pairs: Pairs, matrices: jax.Array, rows: jax.Array) -> jax.Array:
    """Multiplies the row of each pair by the matrix of its type, and sums over pairs."""

    def summed(mapped: jax.Array) -> jax.Array:
        return NeighborReduction("sum").receive(pairs.out_of, mapped, mapped)

    return _mapped(pairs.type_of_block, matrices, rows, summed)


def _mapped(
    type_of_block: jax.Array,
    matrices: jax.Array,
    rows: jax.Array,
    summed: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """Multiplies rows, in blocks of one type, by the matrix of that type, and sums them."""
    types, blocks, width, out = matrices.shape
    # XLA's CPU compiler copies the operands of an einsum of four axes into other orders.
    of_pairs = rows.reshape(len(type_of_block), -1, blocks, width).swapaxes(1, 2)
    wide, (chunks, size) = accumulation_dtype(rows.dtype), _chunks(blocks, out)

    def of_columns(columns: jax.Array) -> jax.Array:
        of_blocks = columns[type_of_block]
        mapped = jnp.matmul(of_pairs, of_blocks, preferred_element_type=wide).swapaxes(1, 2)
        return summed(rounded(mapped.reshape(len(rows), blocks * size), rows))

    padded = jnp.pad(matrices, ((0, 0), (0, 0), (0, 0), (0, chunks * size - out)))
    columns = padded.reshape(types, blocks, width, chunks, size)
    y = _each(of_columns, jnp.moveaxis(columns, 3, 0))
    y = jnp.moveaxis(y.reshape(chunks, -1, blocks, size), 0, 2)
    return y.reshape(-1, blocks, chunks * size)[..., :out].reshape(-1, blocks * out)


def _sampled_sum(reduce: str, neighborhood: Any, matrices: jax.Array, x: jax.Array) -> jax.Array:
    """As `_typed_sum`, of the edges of a sample: a sort finds their pairs."""
    incoming, types, count = neighborhood.incoming, len(matrices), neighborhood.edge_slots
    # Slots without an edge are of a type of their own, and their rows are 0.
    there = neighborhood.edge_mask
    keys = jnp.where(there, neighborhood.edge_type, types), incoming.receivers
    kind, receiver, slot = jax.lax.sort((*keys, jnp.arange(count)), num_keys=2)
    differs = (kind[1:] != kind[:-1]) | (receiver[1:] != receiver[:-1])
    is_first = jnp.pad(differs, (1, 0), constant_values=True).astype(jnp.int32)

    def added(values: jax.Array, rows: jax.Array, length: int) -> jax.Array:
        zeros = jnp.zeros((length, *values.shape[1:]), values.dtype)
        return match_variation(zeros, values).at[rows].add(values, mode="drop")

    pairs_of_type = added(is_first, kind, types + 1)
    blocks_of_type = -(-pairs_of_type // _BLOCK)
    before = [jnp.cumsum(each) - each for each in (blocks_of_type, pairs_of_type)]
    pair = (_BLOCK * before[0] - before[1])[kind] + jnp.cumsum(is_first) - 1
    num_blocks = count // _BLOCK + types + 1

    wide = accumulation_dtype(x.dtype)
    weight = there if neighborhood.edge_weight is None else there * neighborhood.edge_weight
    rows = x[incoming.by_receiver.neighbors[slot]].astype(wide)
    sums = added(rows * weight[slot].astype(wide)[:, None], pair, num_blocks * _BLOCK)
    if reduce == "mean":
        sums /= jnp.maximum(added(there[slot].astype(wide), pair, len(sums)), 1)[:, None]
    # Of a pair, and of a block, the first edge tells.
    receiver_of_pair = added(receiver * is_first, pair, len(sums))
    type_of_block = added(kind * (is_first & (pair % _BLOCK == 0)), pair // _BLOCK, num_blocks)

    def summed(mapped: jax.Array) -> jax.Array:
        return added(mapped.astype(wide), receiver_of_pair, neighborhood.receiver_rows)

    type_of_block = jnp.minimum(type_of_block, types - 1)
    y = _mapped(type_of_block, matrices, sums.astype(x.dtype), summed)
    if reduce == "sum":
        y *= neighborhood.exchange.share[:, None]
    return y.astype(x.dtype)


def _products(pairs: Pairs, x: jax.Array, rows: jax.Array, like: jax.Array) -> jax.Array:
    """The gradient of the matrices, from x [nodes, in] and the rows of pairs [pairs, out]."""
    types, blocks, width, out = like.shape
    of_pairs = rows.reshape(-1, pairs.block, blocks, out).swapaxes(1, 2)
    wide, (chunks, size) = accumulation_dtype(rows.dtype), _chunks(blocks, width)

    def of_columns(columns: jax.Array) -> jax.Array:
        at_pairs = _at_pairs(pairs, columns).reshape(-1, pairs.block, blocks, size)
        at_pairs = at_pairs.transpose(0, 2, 3, 1)
        found = jnp.matmul(at_pairs, of_pairs, preferred_element_type=wide)
        return jax.ops.segment_sum(found, pairs.type_of_block, types)

    padded = jnp.pad(x.reshape(-1, blocks, width), ((0, 0), (0, 0), (0, chunks * size - width)))
    columns = jnp.moveaxis(padded.reshape(-1, blocks, chunks, size), 2, 0)
    found = _each(of_columns, columns.reshape(chunks, -1, blocks * size))
    found = jnp.moveaxis(found, 0, 2).reshape(types, blocks, chunks * size, out)
    return found[:, :, :width].astype(like.dtype)


def _at_pairs(pairs: Pairs, x: jax.Array) -> jax.Array:
    """The rows of x [nodes, features] at the node of each pair."""
    rows = match_variation(jnp.zeros((len(pairs.types), x.shape[1]), x.dtype), x)
    receive = NeighborReduction("sum").receive
    return jax.vjp(lambda rows: receive(pairs.out_of, rows, rows), rows)[1](x)[0]


def _each(function: Callable[[jax.Array], jax.Array], chunks: jax.Array) -> jax.Array:
    """The results of a function of each chunk, stacked; one after the other."""
    if len(chunks) == 1:
        return function(chunks[0])[None]
    return jax.lax.map(function, chunks)


def _chunks(blocks: int, width: int) -> tuple[int, int]:
    """The number of chunks of columns in which rows of pairs are mapped, and columns of each."""
    chunks = max(1, blocks * width // _COLUMNS)
    return chunks, -(-width // chunks)
