"""The protocol of features: what layers, P-TAGS and training ask of x, whatever its kind.

A kind is a subclass of `FeatureKind`, in one file. Dense rows are plain arrays for a user;
`features_of` puts them into `DenseRows`. Everything else asks the protocol, and for no class.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgraph.ops.core.derivatives import custom_vjp
from jaxgraph.ops.core.edges import match_variation, varying_axes
from jaxgraph.ops.core.precision import to_accumulation
from jaxgraph.ops.core.randomness import node_keep_mask
from jaxgraph.ops.core.row_maps import kernel_gradient, map_rows, map_rows_once, map_rows_twice
from pallas_kernels.pytrees import pytree

if TYPE_CHECKING:
    from jaxgraph.parallel.neighborhood import Neighborhood, Nodes

Pytree = Any
Shard = Any
"""A `jaxgraph.parallel.Shard`, which holds features."""
Two = tuple[jax.Array, jax.Array]
Numbers = Callable[[np.ndarray], np.ndarray]
TransformFn = Callable[[Any, Any, Any], jax.Array]

_ROWS_AT_ONCE = 64
"""The number of padding rows that are checked together."""


class Aggregation(Protocol):
    """A parameter-free aggregation of the neighbours' features, of each column by itself.

    Hashable, and holds no arrays.
    """

    def send(self, nodes: Nodes, x: jax.Array, /) -> jax.Array:
        """The values that nodes send, [rows, features], computed from x [rows, features]."""
        ...

    def receive(self, neighborhood: Neighborhood, sent: jax.Array, own: jax.Array, /) -> jax.Array:
        """Aggregates [receivers, features] of the senders' values and the receivers' own ones."""
        ...


@dataclasses.dataclass(frozen=True)
class Shares:
    """This device's share of a layer's output, not computed yet.

    Attributes:
      shard: the shard.
      x: features of the layer.
      kernels: pytree of parameters; arrays have a row per feature of x, scalars go to all devices.
      aggregation: the aggregation of neighbours; None: there is none.
      after: `(kernels, x, aggregated) -> [rows, ...]`, linear in the columns of both.
      before: `(kernels, x) -> (own, sent)`, the values that replace x for the node itself and for
        its neighbours; None: x itself.
      aggregate: [all rows, features], the aggregation of x if it is known, with the rows and
        columns of x, 0 in padding; None: it is computed.
    """

    shard: Shard
    x: Features
    kernels: Pytree
    aggregation: Aggregation | None
    after: TransformFn
    before: Callable[[Any, Any], tuple[Any, Any]] | None = None
    aggregate: jax.Array | None = None


class FeatureKind:
    """Features of nodes. A kind needs `shape` and `rows`, and overrides what it does better.

    A method that returns features returns them as layers take them: dense rows as an array.

    Attributes:
      values: the arrays that a device holds, or other features.
      is_sparse: whether only non-zeros are held, which a layer can map by a matrix and no more.
      is_split: whether a device holds some columns of all nodes, and a layer's output is the sum of
        the devices' shares.
      is_masked: whether the rows of padding are known to be 0.
      derivation: `DerivedFeatures` whose rows a layer's backward recomputes; None: they are there.
    """

    values: Any
    is_sparse: bool = False
    is_split: bool = False
    is_masked: bool = False
    derivation: Any = None

    @property
    def plain(self) -> Any:
        """The features alone, without what is stored with them."""
        return self

    @property
    def dtype(self) -> Any:
        """The type of the values."""
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """[rows, features], with the rows of all nodes where features are split."""
        return self.values.shape

    @property
    def width(self) -> int:
        """The number of features of a node."""
        return self.shape[-1]

    @property
    def columns(self) -> int:
        """The number of columns that this device holds."""
        return self.width

    def narrows(self, kernel: jax.Array, senders: int = 1, receivers: int = 1) -> bool:
        """True where x W of the senders is cheaper than the map of what receivers aggregate."""
        return self.is_sparse or kernel.shape[1] * senders <= self.columns * receivers

    def stores(self, aggregation: Aggregation, joined: bool | None = None) -> bool:
        """True where an aggregation is stored; `joined`: side by side with x, None: either way."""
        return False

    def in_dtype(self, dtype: Any) -> FeatureKind:
        """The features with floating values of another type."""
        return self.astype(dtype) if jnp.issubdtype(self.dtype, jnp.floating) else self

    def astype(self, dtype: Any) -> Any:
        """The features with values of another type."""
        return self._dense("a cast").astype(dtype)

    def masked(self, nodes: Nodes) -> Any:
        """The features with zeros in the rows of padding."""
        return self._dense("shard.mask_rows").masked(nodes)

    def times(self, by: str, kernel: jax.Array) -> jax.Array:
        """x W of features that are masked, and not split, by an implementation."""
        return self._dense("a product with W").times(by, kernel)

    def times_both(self, by: str, kernel: jax.Array, other: jax.Array) -> Two:
        """x W and x V, as `times`."""
        return self.times(by, kernel), self.times(by, other)

    def mapped(self, nodes: Nodes, kernel: jax.Array, *, is_masked: bool = False) -> jax.Array:
        """x W, [rows, out_features] of the own nodes."""
        x = features_of(self.masked(nodes))
        return x.times(nodes.implementation, at_use(kernel, self))

    def sync(self, shares: Shares) -> jax.Array:
        """The sum of the devices' shares; where features are not split there is one share."""
        x: Any = shares.x
        shard, aggregation, aggregated = shares.shard, shares.aggregation, shares.aggregate
        # Features with an aggregate are placed with 0 in padding: masking would copy them.
        own = self.masked(shard) if aggregated is None else x
        if aggregation is not None and aggregated is None:
            sent = aggregation.send(shard.senders, x)
            aggregated = aggregation.receive(shard, sent, shard.own_rows(sent))
        return shares.after(shares.kernels, own, aggregated)

    def aggregated(self, shard: Shard, aggregation: Aggregation, width: int) -> jax.Array:
        """The aggregation of x, 0 in padding; dense rows `width` columns at a time."""
        return self._dense("an aggregation").aggregated(shard, aggregation, width)

    def dropped(self, nodes: Nodes, key: jax.Array, rate: float, offset: Any = 0) -> Any:
        """The features after dropout; their first column is number `offset` of the graph's."""
        return self._dense("dropout").dropped(nodes, key, rate, offset)

    def first_rows(self, count: int) -> Any:
        """The features of the first nodes of the table."""
        return self._dense("message flow").first_rows(count)

    def hidden(self, nodes: Nodes, key: jax.Array, rate: float, first: Any) -> Any:
        """The features with 0 from column `first` on in nodes that are drawn with a probability."""
        return self._dense("hiding columns").hidden(nodes, key, rate, first)

    def check_dense(self, purpose: str) -> None:
        """Raises TypeError where only non-zeros are held."""
        if self.is_sparse:
            raise TypeError(
                f"{purpose} needs dense rows, but x is SparseFeatures (the non-zeros of the nodes' "
                "features); pass it through jaxgraph.nn.Linear first, or make the features dense "
                "before the graph is placed: graph.replace(nodes=graph.nodes.toarray())"
            )

    def rows(self, purpose: str) -> jax.Array:
        """The dense rows of the own nodes, or a TypeError that says why there are none."""
        self.check_dense(purpose)
        plain = self.plain
        if plain is not self:
            return features_of(plain).rows(purpose)
        raise TypeError(f"{purpose} needs rows of the own nodes, but x is {type(self).__name__}")

    def _dense(self, purpose: str) -> DenseRows:
        return DenseRows(self.rows(purpose))

    def gathered(self, shard: Shard, purpose: str) -> jax.Array:
        """As `rows`; moves features that are split."""
        return self.rows(purpose)

    def digest(self, of_rows: np.ndarray, of_columns: Numbers, first: int = 0) -> int:
        """The sum, modulo 2**64, of the bits of host values times numbers of rows and columns.

        Column 0 is number `first` of the graph's. For split features, rows are all nodes.
        """
        return self._dense("a digest").digest(of_rows, of_columns, first)

    def is_digested_on(self, device: int) -> bool:
        """False where a device before this one holds the same values."""
        return True


Features = jax.Array | FeatureKind
"""The input of layers: dense rows of the own nodes, or another kind of features."""


@pytree
class DenseRows(FeatureKind):
    """Dense rows of the own nodes, which layers take as the array that they are.

    Attributes:
      values: float [rows, features].
    """

    values: jax.Array

    @property
    def plain(self) -> jax.Array:
        """The array."""
        return self.values

    def astype(self, dtype: Any) -> jax.Array:
        """The array in another type."""
        return self.values.astype(dtype)

    def masked(self, nodes: Nodes) -> jax.Array:
        """The rows, with zeros in those of padding."""
        # The mask makes values vary over the devices that do not yet, as `sum` demands.
        x = self.values
        if not nodes.has_padding and varying_axes(x) >= varying_axes(nodes.node_mask):
            return x
        mask = nodes.node_mask.reshape(-1, *(1,) * (x.ndim - 1))
        return jnp.where(mask, x, jnp.zeros((), x.dtype))

    def times(self, by: str, kernel: jax.Array) -> jax.Array:
        """x W by the implementation."""
        return map_rows(self.values, kernel, by)

    def times_both(self, by: str, kernel: jax.Array, other: jax.Array) -> Two:
        """x W and x V; the implementation may read x once."""
        return map_rows_twice(self.values, kernel, other, by)

    def mapped(self, nodes: Nodes, kernel: jax.Array, *, is_masked: bool = False) -> jax.Array:
        """x W; the features of the graph are not copied for their padding."""
        x, by = self.values, nodes.implementation
        if x is getattr(nodes, "nodes", None) and nodes.has_padding and not is_masked:
            return map_features(by, x, nodes.node_mask, at_use(kernel, x))
        # The kernel's gradient multiplies the rows of padding by 0, and 0 times NaN is NaN.
        rows = x if is_masked else self.masked(nodes)
        return map_rows(rows, at_use(kernel, x), by)

    def aggregated(self, shard: Shard, aggregation: Aggregation, width: int) -> jax.Array:
        """The aggregation; a halo is no larger than in a layer of that width."""
        x, features = self.values, self.columns

        def of(columns: jax.Array) -> jax.Array:
            sent = aggregation.send(shard.senders, columns)
            found = aggregation.receive(shard, sent, shard.own_rows(sent))
            return shard.mask_rows(found).astype(x.dtype)

        if width >= features:
            return of(x)

        def of_columns(index: jax.Array, aggregate: jax.Array) -> jax.Array:
            # The last slice starts where it fits, and recomputes some columns.
            start = jnp.minimum(index * width, features - width)
            columns = of(lax.dynamic_slice_in_dim(x, start, width, 1))
            return lax.dynamic_update_slice_in_dim(aggregate, columns, start, 1)

        empty = match_variation(jnp.zeros_like(x), x)
        return lax.fori_loop(0, math.ceil(features / width), of_columns, empty)

    def dropped(self, nodes: Nodes, key: jax.Array, rate: float, offset: Any = 0) -> Any:
        """The rows with entries dropped by node and column."""
        keep = node_keep_mask(key, nodes.node_ids, self.columns, rate, offset)
        return scaled(self.values, keep, rate)

    def first_rows(self, count: int) -> jax.Array:
        """The first rows."""
        return self.values[:count]

    def hidden(self, nodes: Nodes, key: jax.Array, rate: float, first: Any) -> Any:
        """The rows, of which some are 0 from a column on."""
        keep = node_keep_mask(key, nodes.node_ids, 1, rate) | (jnp.arange(self.columns) < first)
        return jnp.where(keep, self.values, jnp.zeros((), self.dtype))

    def rows(self, purpose: str) -> jax.Array:
        """The array."""
        return self.values

    def digest(self, of_rows: np.ndarray, of_columns: Numbers, first: int = 0) -> int:
        """The sum over the entries of [rows, ...]."""
        x = np.asarray(self.values)
        bits = np.ascontiguousarray(x.reshape(len(x), -1)).view(f"u{x.dtype.itemsize}")
        columns = of_columns(np.arange(first, first + bits.shape[1]))
        # It makes no copy of all bits in 64 bits.
        found = np.einsum("r,rc,c", of_rows, bits, columns, dtype=np.uint64, casting="unsafe")
        return int(found)


def is_kind(x: Any) -> bool:
    """True for features that are no array."""
    return isinstance(x, FeatureKind)


def features_of(x: Any) -> FeatureKind:
    """The features of nodes, as a layer was given them, by their protocol."""
    if x is None:
        raise ValueError(
            "x is None: the graph has no node features; use jaxgraph.nn.NodeEmbedding, or make "
            "some with jaxgraph.transforms.degree_features"
        )
    return x if is_kind(x) else DenseRows(x)


def plain_features(x: Any) -> Any:
    """Returns x as layers take it, without what is stored with it, such as its aggregate."""
    return None if x is None else features_of(x).plain


def plain_of(x: Any) -> FeatureKind:
    """`plain_features` of x, by their protocol."""
    return features_of(plain_features(x))


def in_dtype(x: Pytree, dtype: Any) -> Pytree:
    """Casts floating arrays, and features with floating values."""

    def cast(leaf: Any) -> Any:
        if is_kind(leaf):
            return leaf.in_dtype(dtype)
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(cast, x, is_leaf=is_kind)


def rounded(values: jax.Array, like: Features) -> jax.Array:
    """Casts `values` to the type of `like`, if that is a floating type."""
    return values.astype(like.dtype) if jnp.issubdtype(like.dtype, jnp.floating) else values


def at_use(parameter: jax.Array, x: Features) -> jax.Array:
    """Casts a parameter to the type of the activations, so that 16 bits stay 16 bits."""
    return rounded(match_variation(parameter, x), x)


def scaled(x: jax.Array, keep: jax.Array, rate: float) -> jax.Array:
    """x keep / (1 - rate)"""
    # A factor of 16 bits would make all kept values wrong by up to 2^-9 of themselves.
    kept = rounded(to_accumulation(x) * (1.0 / (1.0 - rate)), x)
    return jnp.where(keep, kept, jnp.zeros((), kept.dtype))


@functools.partial(custom_vjp, nondiff_argnums=(0,), loops=False)
def map_features(by: str, x: jax.Array, mask: jax.Array, kernel: jax.Array) -> jax.Array:
    """x W with 0 in the rows of padding, for x that is an input of the program.

    No earlier computation can write these zeros, so that they take a copy of x.
    """
    return _without_padding(x, mask, lambda x: map_rows(x, kernel, by))


def _map_features_forward(by, x, mask, kernel):
    y = _without_padding(x, mask, lambda x: map_rows_once(x, kernel, by))
    return y, (x, mask, kernel)


def _map_features_backward(by, residuals, gradient):
    x, mask, kernel = residuals
    of_x = jnp.where(mask[:, None], map_rows_once(gradient, kernel.T, by), 0)
    return of_x, None, _without_padding(x, mask, lambda x: kernel_gradient(x, gradient, by))


map_features.defvjp(_map_features_forward, _map_features_backward)


def _without_padding(
    x: jax.Array, mask: jax.Array, function: Callable[[jax.Array], jax.Array]
) -> jax.Array:
    """Applies `function` to x with 0 in the rows of padding; copies x only where it has others."""
    rows = min(x.shape[0], _ROWS_AT_ONCE)
    padding = x.shape[0] - jnp.sum(mask, dtype=jnp.int32)

    def still_zero(chunk: jax.Array, so_far: jax.Array) -> jax.Array:
        # Padding comes last; the topmost chunk may overlap the next.
        start = jnp.maximum(x.shape[0] - (chunk + 1) * rows, 0)
        some = lax.dynamic_slice_in_dim(x, start, rows)
        real = lax.dynamic_slice_in_dim(mask, start, rows)
        return so_far & jnp.all(real[:, None] | (some == 0))

    chunks = (padding + rows - 1) // rows
    is_zero = lax.fori_loop(0, chunks, still_zero, match_variation(jnp.bool_(True), (x, mask)))
    return lax.cond(is_zero, function, lambda x: function(jnp.where(mask[:, None], x, 0)), x)
