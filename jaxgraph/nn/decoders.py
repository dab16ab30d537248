"""Scores of links from the rows of both ends.

Each is called as `decoder(heads, tails, links) -> [links, ...]`, and maps one pair of rows as well
as many: heads and tails are float [..., features], and arrays of links are [...].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxgraph.nn import parameters
from jaxgraph.nn.module import Module

LinkData = Mapping[str, Any]


class InnerProduct(Module):
    """s = h_u . h_v

    References:
      Kipf and Welling, "Variational Graph Auto-Encoders", 2016, equation 2.
    """

    def __call__(self, heads: jax.Array, tails: jax.Array, links: LinkData) -> jax.Array:
        """Returns float [links] of heads and tails [links, features]."""
        return jnp.einsum("...d,...d->...", heads, tails)


class DistMult(Module):
    """s = sum_d h_ud r_d h_vd, with a learned row r for the type of the link

    Args:
      num_types: number of types, of which `links["link_type"]` has one for each link; the score of
        another type is NaN.
      features: width of the rows.
      param_dtype: type of the parameters.
      rngs: source of the initial rows (Glorot uniform).

    References:
      Yang et al., "Embedding entities and relations for learning and inference in knowledge bases",
      2015, equation 2.
    """

    def __init__(
        self,
        num_types: int,
        features: int,
        *,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        parameters.check_sizes(num_types=num_types, features=features)
        self.num_types = num_types
        self.rows = parameters.kernel(rngs, num_types, features, param_dtype)

    def __call__(self, heads: jax.Array, tails: jax.Array, links: LinkData) -> jax.Array:
        """Returns float [links] of heads and tails [links, features]."""
        if "link_type" not in links:
            raise ValueError(
                "DistMult: the links have no types; give them with jaxgraph.transforms.with_links("
                "..., node_data={'link_type': types}), or split a graph whose edges have types"
            )
        known = self.rows.get_value().at[links["link_type"]]
        rows = known.get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
        rows = rows.astype(heads.dtype)
        if heads.ndim == tails.ndim:
            # Links (u, v) and (v, u) have one score to the last digit: their tie is one everywhere.
            return jnp.einsum("...d,...d->...", heads * tails, rows)
        # The product of the type's row and one row, not that with each of many candidates.
        one, many = (heads, tails) if heads.ndim < tails.ndim else (tails, heads)
        return jnp.einsum("...d,...d->...", one * rows, many)


class LinkMLP(Module):
    """s = W_2 relu(W_1 [h_u, h_v, x_l] + b_1) + b_2, where x_l are the features of the link

    Args:
      in_features: width of the rows of nodes.
      hidden_features, out_features: widths of the layers; one score is [links].
      link_features: width of the features of links, `with_links(..., nodes=...)`; 0: none.
      param_dtype: type of the parameters.
      rngs: source of the initial parameters (Glorot uniform).
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int = 1,
        *,
        link_features: int = 0,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        sizes = {"in_features": in_features, "hidden_features": hidden_features}
        parameters.check_sizes(**sizes, out_features=out_features)
        if link_features:
            parameters.check_sizes(link_features=link_features)
        widths = {"of_heads": in_features, "of_tails": in_features, "of_links": link_features}
        self.kernels = nnx.Dict(
            {
                name: parameters.kernel(rngs, width, hidden_features, param_dtype)
                for name, width in widths.items()
                if width
            }
        )
        self.bias = parameters.zeros(hidden_features, param_dtype)
        self.out_kernel = parameters.kernel(rngs, hidden_features, out_features, param_dtype)
        self.out_bias = parameters.zeros(out_features, param_dtype)

    def __call__(self, heads: jax.Array, tails: jax.Array, links: LinkData) -> jax.Array:
        """Returns float [links], or [links, out_features] of several outputs."""
        given = {"of_heads": heads, "of_tails": tails, "of_links": links.get("nodes")}
        if "of_links" in self.kernels and given["of_links"] is None:
            raise ValueError(
                "LinkMLP has link_features, and the links have none; give them with "
                "jaxgraph.transforms.with_links(..., nodes=features)"
            )
        for name, kernel in self.kernels.items():
            if given[name].shape[-1] != kernel.shape[0]:
                what = "features of links" if name == "of_links" else "rows of nodes"
                raise ValueError(
                    f"LinkMLP: {what} have width {given[name].shape[-1]}, and the layer takes "
                    f"{kernel.shape[0]}; make it with in_features and link_features of the graph"
                )
        hidden = sum(given[name] @ kernel.get_value() for name, kernel in self.kernels.items())
        hidden = jax.nn.relu(hidden + self.bias.get_value())
        y = hidden @ self.out_kernel.get_value() + self.out_bias.get_value()
        return y[..., 0] if y.shape[-1] == 1 else y
