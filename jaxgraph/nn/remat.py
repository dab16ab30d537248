"""The default policies of a `Stack`, chosen by measured memory.

The figures are ratios of temporary memory of a compiled training step on CPU, without a rule over
with it: a random graph of 16,384 nodes, degree 16 and 64 features, 3 layers of 64 features
(attention with 4 heads of 16), on one device or in 4 parts under SAR.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxgraph import layers
from jaxgraph.layers import RematPolicy
from jaxgraph.nn.layer import Layer
from jaxgraph.nn.protocol import Declaration, declaration
from jaxgraph.parallel import KEPT, Shard
from jaxgraph.parallel.feature_protocol import Features, features_of, plain_features
from jaxgraph.parallel.relation import Relation

Policies = RematPolicy | Sequence[RematPolicy] | None
"""One policy for all layers, one for each, or None: `default_policy`."""


@dataclasses.dataclass(frozen=True)
class Facts:
    """The facts about a layer and its pass that `default_policy` uses.

    Attributes:
      convolution: its convolution's declaration.
      previous: that of the previous layer's convolution; None: this is the first layer.
      is_last: whether no layer follows.
      has_norm: whether a norm follows the previous layer's convolution.
      num_parts: parts of the graph.
      is_16_bits: whether the layer computes in 16 bits.
      train: whether this is a training pass.
      drops: whether features are dropped.
      in_features: width of the graph's features.
      has_sums: whether the features come with the first layer's aggregate.
    """

    convolution: Declaration
    previous: Declaration | None
    is_last: bool
    has_norm: bool
    num_parts: int
    is_16_bits: bool
    train: bool
    drops: bool
    in_features: int
    has_sums: bool


def default_policy(facts: Facts) -> RematPolicy:
    """Returns the policy of one layer."""
    recompute = _recomputed_by_convolution(facts)
    if _saves_the_rest(facts):
        return RematPolicy(save=_materialized(facts), recompute=recompute)
    # Nothing is sent or aggregated again. Several parts serve to save memory, and recompute
    # products; with one part that would take 1.14 times the epoch of GIN with 500 features.
    products = () if facts.num_parts > 1 else (layers.MAPPED,)
    return RematPolicy((layers.STATISTICS, *KEPT, *products), recompute=recompute, rest="recompute")


def _saves_the_rest(facts: Facts) -> bool:
    if facts.num_parts == 1:
        # XLA fuses cheap steps into the backward, and a recomputation would start from copies: 0.86
        # to 1.6. In 16 bits its CPU compiler would save operands in 32: up to 1.4.
        return not facts.is_16_bits
    if facts.previous is not None or facts.drops:
        return False
    if facts.convolution.first_aggregation is None:
        # Recomputed products of wide features take 1.46 times the epoch of GAT with 1433 features.
        return True
    # Only the output is left to save. A recomputation would copy the features and their sums: 1
    # here, 2.6 (GCN) and 5.8 (SAGE) with 1433 features.
    return facts.has_sums


def _recomputed_by_convolution(facts: Facts) -> tuple[str, ...]:
    """Names tensors that attention's backward reads twice, and recomputes: 1.6 to 1.9, SAR 1.1."""
    columns = facts.convolution.mapped_features
    if columns is None or (facts.is_16_bits and facts.num_parts == 1):
        return ()
    # Recomputing these products takes 1.14 times the epoch of GAT with 500 features, and saves
    # little: the backward of the last layer comes first, and the first layer has fewer columns than
    # features.
    saves_products = facts.is_last or (facts.previous is None and columns < facts.in_features)
    products = () if saves_products else (layers.MAPPED,)
    if facts.previous is None and not facts.drops:
        return products  # The features are saved anyway: 1.2.
    return (layers.INPUT, *products)


def _materialized(facts: Facts) -> tuple[str, ...]:
    """Names one tensor of a layer, instead of which XLA's CPU compiler would save its operands."""
    if facts.previous is None or not facts.train:
        return ()
    if not facts.has_norm:
        return (layers.ACTIVATED,)  # 1.15 to 1.8, and 1.5 times the epoch with dropout
    # 1.2 to 1.3 for GCN. Attention saves its own output: a copy would cost 1.3.
    return (layers.LAYER_INPUT,) if facts.previous.mapped_features is None else ()


def checked_policies(policy: Policies, num_layers: int) -> tuple[RematPolicy, ...] | None:
    """Returns one policy for each layer, or None for the defaults."""
    if policy is None:
        return None
    policies = (policy,) * num_layers if isinstance(policy, RematPolicy) else policy
    if isinstance(policies, str) or not all(isinstance(each, RematPolicy) for each in policies):
        raise TypeError(
            f"policy is {policy!r}; expected jaxgraph.layers.RematPolicy, or one for each layer"
        )
    if len(policies) != num_layers:
        raise ValueError(
            f"policy has {len(policies)} entries for {num_layers} layers; pass one RematPolicy for "
            "all of them, or one for each"
        )
    return tuple(policies)


def policies_for(
    policy: tuple[RematPolicy, ...] | None,
    stacked: Sequence[Layer],
    shard: Shard | Relation,
    x: Features,
    *,
    dtype: DTypeLike | None,
    train: bool,
    drops: bool,
) -> Sequence[RematPolicy]:
    """Returns the policies of layers in a pass."""
    declared = [declaration(layer.convolution) for layer in stacked]
    if isinstance(shard, Shard) and shard.streamed:
        return [RematPolicy()] * len(declared)
    if policy is not None:
        return [
            given if each.mapped_features else dataclasses.replace(given, recompute=())
            for given, each in zip(policy, declared, strict=True)
        ]
    last = len(declared) - 1
    of_pass: dict[str, Any] = {
        "num_parts": shard.exchange.num_parts,
        "is_16_bits": _is_16_bits(x, dtype),
        "train": train,
        "drops": drops,
        "in_features": _width(x),
        "has_sums": _has_sums(x, declared[0], dtype),
    }
    return [
        default_policy(
            Facts(
                each,
                declared[index - 1] if index else None,
                is_last=index == last,
                has_norm=index > 0 and stacked[index - 1].norm is not None,
                **of_pass,
            )
        )
        for index, each in enumerate(declared)
    ]


def _floating(x: Features) -> list[jax.Array]:
    leaves = jax.tree.leaves(plain_features(x))
    return [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]


def _is_16_bits(x: Features, dtype: Any) -> bool:
    types = [leaf.dtype for leaf in _floating(x)] if dtype is None else [jnp.dtype(dtype)]
    return any(each.itemsize <= 2 for each in types)


def _width(x: Features) -> int:
    # No policy recomputes sparse features, whatever their width.
    floating = _floating(x)
    return floating[0].shape[-1] if floating else 0


def _has_sums(x: Features, first: Declaration, dtype: Any) -> bool:
    found = first.first_aggregation
    if found is None or not features_of(x).stores(found.aggregation):
        return False
    is_cast = dtype is not None and dtype != features_of(x).dtype
    return found.is_followed_by_maps and not is_cast
