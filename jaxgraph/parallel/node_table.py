"""A node table: ids, masks, degrees and named arrays of one set of nodes on a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxgraph.ops.core.edges import varying_axes
from jaxgraph.parallel.feature_protocol import Features, features_of
from pallas_kernels.pytrees import pytree


@pytree
class Degrees:
    """The edges of a relation at the nodes of one of its tables.

    Attributes:
      in_degree: float32 [rows], edges that enter a node, in the whole graph; None: not known, of
        the senders of a `Bipartite`.
      missing_self_loop: bool [rows], which nodes have no edge to themselves.
      weighted_in_degree: float [rows], the degree where it is not `in_degree`: the sum of
        `edge_weight` over the edges that enter a node, or the degree that was given; or None.
    """

    in_degree: jax.Array | None
    missing_self_loop: jax.Array
    weighted_in_degree: jax.Array | None


@pytree
class NodeTable:
    """The nodes in the rows of a device; rows past them are padding.

    Attributes:
      node_ids: int32 [rows], ids in the whole graph.
      node_mask: bool [rows], False for padding.
      degrees: those of the relation that reads the table; None: the table is read by none.
      nodes, labels, train_mask, val_mask, test_mask, node_data: as of
        `jaxgraph.parallel.Shard`.
      axis: the mesh axes over whose devices the nodes are split; (): they are all here.
      has_padding: whether there may be rows of padding.
      implementation: the implementation that works on the rows: "xla", "cpu" or "mosaic_gpu".
      set_number: of the set of nodes in its graph: sets have random bits of their own.
    """

    node_ids: jax.Array
    node_mask: jax.Array
    degrees: Degrees | None = None
    nodes: Features | None = None
    labels: jax.Array | None = None
    train_mask: jax.Array | None = None
    val_mask: jax.Array | None = None
    test_mask: jax.Array | None = None
    node_data: Mapping[str, jax.Array] = dataclasses.field(default_factory=dict)
    axis: str | tuple[str, ...] = dataclasses.field(default=(), metadata={"static": True})
    has_padding: bool = dataclasses.field(default=True, metadata={"static": True})
    implementation: str = dataclasses.field(default="xla", metadata={"static": True})
    set_number: int = dataclasses.field(default=0, metadata={"static": True})

    def __repr__(self) -> str:
        return f"NodeTable(num_rows={self.num_rows}, axis={self.axis!r})"

    @property
    def num_rows(self) -> int:
        """Rows, padding included."""
        return self.node_ids.shape[-1]

    @property
    def num_nodes(self) -> jax.Array:
        """Nodes of all devices, int32 []; data, since one program serves graphs of any size."""
        return lax.psum(jnp.sum(self.node_mask, dtype=jnp.int32), self.axis)

    @property
    def in_degree(self) -> jax.Array:
        """float32 [rows], edges that enter a node, in the whole graph."""
        if self._degrees.in_degree is None:
            raise ValueError(
                "the senders of a block have no in_degree: the block holds the edges that leave "
                "them. Use .degree: their number, or the sender_degree given to bipartite"
            )
        return self._degrees.in_degree

    @property
    def missing_self_loop(self) -> jax.Array:
        """bool [rows], which nodes have no edge to themselves."""
        return self._degrees.missing_self_loop

    @property
    def weighted_in_degree(self) -> jax.Array | None:
        """float [rows], sum of the weights of the edges that enter a node, or None."""
        return self._degrees.weighted_in_degree

    @property
    def degree(self) -> jax.Array:
        """float [rows], d_i of `gcn_conv`, without the self-loops that it adds.

        `in_degree`, or the sum of the weights of these edges. For the senders of a `Bipartite`:
        that of the edges that leave, or the degree given to `bipartite`.
        """
        weighted = self.weighted_in_degree
        return self.in_degree if weighted is None else weighted

    @property
    def _degrees(self) -> Degrees:
        assert self.degrees is not None
        return self.degrees

    @property
    def senders(self) -> NodeTable:
        """The table itself, for layers that read rows alone."""
        return self

    @property
    def receivers(self) -> NodeTable:
        """The table itself, for layers that read rows alone."""
        return self

    def first_rows(self, rows: int, chosen: jax.Array) -> NodeTable:
        """The first rows; those not `chosen`, bool [rows], count as padding."""
        cut = jax.tree.map(lambda leaf: leaf[:rows], dataclasses.replace(self, nodes=None))
        x = None if self.nodes is None else features_of(self.nodes).first_rows(rows)
        mask = cut.node_mask & chosen[:rows]
        return dataclasses.replace(cut, nodes=x, node_mask=mask, has_padding=True)

    def without_data(self) -> NodeTable:
        """The nodes, with ids, a mask and degrees alone."""
        names = ("nodes", "labels", "train_mask", "val_mask", "test_mask")
        return dataclasses.replace(self, **dict.fromkeys(names), node_data={})

    def own_rows(self, values: Any) -> Any:
        """`values`: senders and receivers are the same nodes."""
        return values

    def mask_rows(self, values: jax.Array) -> jax.Array:
        """`values` [rows, ...] with zeros in the rows of padding."""
        return features_of(values).masked(self)

    def sum(self, values: Any) -> Any:
        """Sums over the tables of all devices, see `jaxgraph.parallel.Shard.sum`."""
        _check_under_spmd(self.axis)
        for path, leaf in jax.tree_util.tree_leaves_with_path(values):
            _check_differs(jax.tree_util.keystr(path), leaf, self.axis)
        return jax.tree.map(lambda leaf: lax.psum(leaf, self.axis), values)


def _check_under_spmd(axis: str | tuple[str, ...]) -> None:
    try:
        lax.axis_size(axis)
    except NameError as error:
        raise ValueError(
            "shard.sum adds over the devices of a running program; call it in a function that "
            "jaxgraph.parallel.spmd runs on every shard"
        ) from error


def _check_differs(where: str, leaf: Any, axis: str | tuple[str, ...]) -> None:
    if varying_axes(leaf) >= ({axis} if isinstance(axis, str) else set(axis)):
        return
    what = f"values{where}" if where else "its argument"
    raise ValueError(
        f"shard.sum: {what} is the same on every device (a constant, the result of another "
        "shard.sum, shard.num_nodes, a parameter or its gradient), so that it would be counted "
        "once per part. Use it as it is: gradients of parameters are summed over the parts "
        "already. To count something per node, sum it over the rows first: "
        "shard.sum(jnp.sum(jnp.where(shard.node_mask, value, 0)))"
    )
