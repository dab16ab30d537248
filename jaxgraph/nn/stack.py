"""Stacked convolutions, and the steps between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxgraph import layers
from jaxgraph.layers import RematPolicy
from jaxgraph.layers.aggregated import FirstAggregation
from jaxgraph.layers.dense import check_rate
from jaxgraph.nn import parameters
from jaxgraph.nn.layer import (
    Layer,
    Norm,
    activated,
    check_norm,
    dropped,
    joined_width,
    layer_keys,
)
from jaxgraph.nn.linear import Linear
from jaxgraph.nn.module import Module
from jaxgraph.nn.normalization import BatchNorm
from jaxgraph.nn.protocol import Convolution, declaration
from jaxgraph.nn.remat import Policies, checked_policies, policies_for
from jaxgraph.parallel import Neighborhood, Shard
from jaxgraph.parallel.feature_protocol import Features
from jaxgraph.parallel.neighborhood import check_neighborhood
from jaxgraph.parallel.whole_graph import edges_of_slots, on_device

if TYPE_CHECKING:
    from jaxgraph.graph import Graph


@dataclasses.dataclass(frozen=True)
class _Named:
    """An object of a module, which pickle finds by its name."""

    name: str

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return resolve_name, (self.name,)


class Stack(Module):
    """h = dropout(x_l);  x_{l+1} = activation(norm(conv_l(h) + residual_l(h)))

    The last layer is dropout and convolution alone. With jumping knowledge its input is
    h = dropout(concatenate(x_1, ..., x_l)) or h = dropout(max(x_1, ..., x_l)), where x_1 to x_l
    are the outputs of all layers before it.

    Args:
      convolutions: see `jaxgraph.nn.protocol.Convolution`.
      widths: features of the input and of the output of each convolution.
      dropout: probability of dropping a feature in training.
      norm: "batch", "layer", "restricted-batch" or None.
      residual: whether layers before the last have a residual connection.
      outer_residual: whether every layer has one around its norm and activation, the last only
        without jumping knowledge: x_{l+1} = activation(norm(conv_l(h))) + residual_l(h).
      activation: elementwise function.
      jumping: input of the last layer: "cat", the outputs of all layers before it, concatenated;
        "max", their maximum; None: the previous layer's output. "cat" and "max" save these outputs
        for the backward, whatever the policies.
      policy: the tensors that layers save for the backward, a `jaxgraph.layers.RematPolicy` for all
        or one for each; None: `jaxgraph.nn.remat.default_policy`.
      dtype: type of activations and messages, such as jnp.bfloat16; outputs then have at least 32
        bits, for the loss. None: that of x.
      param_dtype: type of the parameters.
      rngs: source of the initial parameters.

    Raises:
      ValueError: a rate or a name is not one of those allowed, or widths do not fit.

    References:
      Xu et al., "Representation learning on graphs with jumping knowledge networks", 2018.
    """

    def __init__(
        self,
        convolutions: Sequence[Convolution],
        widths: Sequence[int],
        *,
        dropout: float,
        norm: str | None,
        residual: bool = False,
        outer_residual: bool = False,
        activation: Callable[[jax.Array], jax.Array],
        jumping: str | None = None,
        policy: Policies = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        check_rate(dropout)
        check_norm(norm)
        if not callable(activation):
            raise ValueError(
                f"activation is {activation!r}; expected an elementwise function, such as "
                "jax.nn.relu"
            )
        _check_first(convolutions[0])
        self.policy = checked_policies(policy, len(convolutions))
        last = len(convolutions) - 1
        # Jumping knowledge needs no residual connection around its map.
        around_last = outer_residual and jumping is None
        self.layers = nnx.List(
            Layer(
                convolution,
                *pair,
                norm=norm if index < last else None,
                residual=around_last if index == last else residual or outer_residual,
                dtype=dtype,
                param_dtype=param_dtype,
                rngs=rngs,
            )
            for index, (convolution, pair) in enumerate(
                zip(convolutions, _ends(widths, jumping), strict=True)
            )
        )
        self.jumping = jumping
        self.dtype = parameters.checked_dtype(dtype, param_dtype)
        self.param_dtype = jnp.dtype(param_dtype)
        self.dropout = dropout
        self.outer_residual = outer_residual
        self.activation = activation

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickle, which cannot write most functions of JAX: their names are there."""
        state = super().__getstate__()
        name = getattr(self.activation, "__name__", "")
        for module in (jax.nn, jnp, layers):
            if getattr(module, name, None) is self.activation:
                state["activation"] = _Named(f"{module.__name__}:{name}")
        return state

    @property
    def first_aggregation(self) -> FirstAggregation | None:
        """The first layer's parameter-free aggregation of the features, or None."""
        found = declaration(self.layers[0].convolution).first_aggregation
        if found is None or self.dropout == 0:
            return found
        # Only evaluation reads the aggregate: too little use for a second copy of the features.
        return dataclasses.replace(found, in_training=False, is_joined_with_features=False)

    @property
    def edge_layers(self) -> int:
        """Layers that read edges: as many neighbourhoods the model takes."""
        return sum(map(_reads_edges, self.layers))

    def with_policy(self, policy: Policies) -> Stack:
        """The same layers, with the same variables, under another policy.

        Args:
          policy: as of the constructor.

        Returns:
          A model of the same kind.
        """
        other: Stack = nnx.merge(*nnx.split(self))
        other.policy = checked_policies(policy, len(self.layers))
        return other

    def __call__(
        self,
        shard: Graph | Neighborhood | Sequence[Neighborhood],
        x: Features,
        *,
        key: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """Computes the outputs of the last layer for the nodes that it receives at.

        Args:
          shard: a graph, on one device; the shard, under `spmd`; or neighbourhoods, one for each
            layer, such as those of a sample or `shard.flow`: the receivers of each are the senders
            of the next.
          x: float [rows, in_features], such as `shard.nodes`, with or without aggregate, or this
            device's columns of all nodes. Of neighbourhoods: rows of the first one's senders.
          key: scalar random key, the same on every device; needed in training with dropout.
          train: whether to drop features, normalise by the statistics of this pass and update the
            running ones.

        Returns:
          float [rows, out_features].

        Raises:
          ValueError: x has another width than the model, a needed key is missing, or there are
            not as many neighbourhoods as layers.
        """
        if not isinstance(shard, Sequence):
            shard, x = on_device(shard, x)
        steps = _of_layers(shard, self.layers)
        policies = [RematPolicy()] * len(steps)
        first: Any = shard[0] if isinstance(shard, Sequence) else shard
        # A block of a sample, which has no axis, is small, and saves all.
        if isinstance(first, Shard) or (first is not shard and first.exchange.axis):
            options: dict[str, Any] = {"dtype": self.dtype, "train": train}
            options["drops"] = train and self.dropout > 0
            policies = policies_for(self.policy, self.layers, first, x, **options)
        return self._outputs(steps, x, key, train, policies, _convolved)

    def attention_weights(self, shard: Graph | Shard, x: Features) -> list[jax.Array]:
        """Computes the coefficients of attention of every layer that has it, without dropout.

        Args:
          shard: a graph, on one device, or the shard, under `spmd`.
          x: as for a call.

        Returns:
          For each of these layers, float [slots, heads] (`jaxgraph.parallel.gather_edges` puts them
          into the graph's order), or for a graph [num_edges, heads] in that order. Coefficients of
          added self-loops are not among them.

        Raises:
          ValueError: no layer has attention, or x has another width than the model.
        """
        convolutions = [layer.convolution for layer in self.layers]
        if not any(hasattr(each, "attention_weights") for each in convolutions):
            kinds = ", ".join(dict.fromkeys(type(each).__name__ for each in convolutions))
            raise ValueError(
                f"{type(self).__name__} has no attention: its layers are {kinds}; expected a model "
                "such as jaxgraph.nn.GAT, GATv2 or Transformer"
            )
        given = shard
        shard, x = on_device(given, x)
        steps = _of_layers(shard, self.layers)
        found: list[jax.Array] = []

        def convolve(convolution: Any, shard: Any, x: Features, **options: Any) -> jax.Array:
            if hasattr(convolution, "attention_weights"):
                found.append(convolution.attention_weights(shard, x))
            return convolution(shard, x, **options)

        # Policies that recompute nothing: `convolve` keeps values of the trace it is called in.
        policies = [RematPolicy()] * len(convolutions)
        self._outputs(steps, x, None, False, policies, convolve)
        return edges_of_slots(given, found)

    def _outputs(
        self,
        steps: Sequence[Neighborhood],
        x: Features,
        key: jax.Array | None,
        train: bool,
        policies: Sequence[RematPolicy],
        convolve: Callable[..., jax.Array],
    ) -> jax.Array:
        """See `__call__`; `convolve(convolution, step, x, ...)` calls a convolution."""
        count = len(self.layers)
        keys = layer_keys(key, count) if train and key is not None else [(None, None)] * count
        y: Any = x
        norm, skip = None, None
        passed: tuple[jax.Array, ...] = ()
        # A layer's norm and activation run with the next convolution, so that only the output of
        # its convolution has to be saved.
        for index, (layer, step, policy) in enumerate(
            zip(self.layers, steps, policies, strict=True)
        ):
            run = partial(self._layer, policy, convolve, index, train)
            takes_initial = declaration(layer.convolution).takes_initial
            others = passed if self._joins(index) else passed[:1] if takes_initial else ()
            with jax.named_scope(f"layer_{index}_{type(layer.convolution).__name__}"):
                y, skip, statistics, hidden = policy.run(
                    run, step, norm, layer, keys[index], y, skip, others
                )
            passed += () if hidden is None else (hidden,)
            passed = tuple(map(step.own_rows, passed))
            if isinstance(norm, BatchNorm) and train:
                norm.update(*statistics)
            norm = layer.norm
        y = y if skip is None else y + skip
        return y if self.dtype is None else y.astype(jnp.promote_types(y.dtype, jnp.float32))

    def _layer(
        self,
        policy: RematPolicy,
        convolve: Callable[..., jax.Array],
        index: int,
        train: bool,
        step: Neighborhood,
        norm: Norm | None,
        layer: Layer,
        keys: tuple[jax.Array | None, jax.Array | None],
        y: Any,
        skip: jax.Array | None,
        others: tuple[jax.Array, ...],
    ) -> tuple[jax.Array, jax.Array | None, Any, jax.Array | None]:
        """x = before(norm(y)) + skip;  h = dropout(x);  conv(h) + residual(h), statistics, and x.

        `others` are outputs of earlier layers: those that are joined with x, or the first
        layer's for a convolution that takes it. x is returned if a later layer reads it. It has a
        row for each sender of the step, the result one for each receiver.
        """
        nodes: Any = step.senders
        before, joins, statistics = self._in_dtype, self._joins(index), None
        if index:
            before, y = policy.activation(self.activation), policy.named(y, layers.LAYER_INPUT)
        if norm is not None:
            y, statistics = norm.normalize(nodes, y, train)
        drop = partial(dropped, self.dropout if train else 0.0, joins)
        hidden = activated(before, y, skip)
        to_join = others if joins else ()
        h = drop(_as_it_is, nodes, hidden, None, keys[0], to_join)
        make = partial(drop, before)
        given = policy.input(step, h, make, (y, skip, keys[0], to_join))
        extra = {}
        if declaration(layer.convolution).takes_initial:
            extra["initial"] = step.own_rows(others[0] if others else hidden)
        y = convolve(layer.convolution, step, given, key=keys[1], train=train, **extra)
        skip = layer.skip(step, h)
        if skip is not None and not self.outer_residual:
            y, skip = y + skip, None
        return y, skip, statistics, hidden if self._passes(index) else None

    def _joins(self, index: int) -> str | None:
        return self.jumping if index == len(self.layers) - 1 else None

    def _passes(self, index: int) -> bool:
        """True if later layers also read the input of layer `index`."""
        last = len(self.layers) - 1
        later = (declaration(layer.convolution).takes_initial for layer in self.layers[index + 1 :])
        return 0 < index < last and (self.jumping is not None or (index == 1 and any(later)))

    def _in_dtype(self, x: Features) -> Features:
        return parameters.in_dtype(x, self.dtype)


def _convolved(convolution: Any, step: Any, x: Any, **options: Any) -> jax.Array:
    return convolution(step, x, **options)


def _of_layers(given: Any, stacked: Sequence[Layer]) -> Sequence[Any]:
    """The neighbourhood of each layer, of a shard, or of one for each layer that reads edges."""
    reads_edges = list(map(_reads_edges, stacked))
    count = sum(reads_edges)
    if not isinstance(given, Sequence):
        if count > 1 and given.sender_rows != given.receiver_rows:
            raise ValueError(
                f"a model of {count} layers was given one {type(given).__name__}, whose receivers "
                "are other nodes than its senders; expected a shard, or a list of neighbourhoods, "
                "one for each layer, the receivers of each being the senders of the next"
            )
        if not count:
            return [given.senders] * len(stacked)
        given = [given] * count
    if len(given) != count:
        raise ValueError(
            f"{len(given)} neighbourhoods for {count} layers that read edges; expected one for each"
        )
    for each in given:
        check_neighborhood(each)
    for index, (one, following) in enumerate(pairwise(given)):
        if one.receiver_rows != following.sender_rows:
            raise ValueError(
                f"neighbourhood {index} has {one.receiver_rows} receivers, and the next one "
                f"{following.sender_rows} senders; expected the same nodes"
            )
    steps, left = [], iter(given)
    for reads in reads_edges:
        steps.append(next(left) if reads else steps[-1].receivers if steps else given[0].senders)
    return steps


def _reads_edges(layer: Layer) -> bool:
    return not isinstance(layer.convolution, Linear)


def _as_it_is(x: Any) -> Any:
    return x


def _ends(widths: Sequence[int], jumping: str | None) -> list[tuple[int, int]]:
    """Features of the input and of the output of each layer."""
    ends = list(pairwise(widths))
    if jumping is not None:
        ends[-1] = (joined_width(jumping, widths[1:-1]), widths[-1])
    return ends


def _check_first(convolution: Convolution) -> None:
    if declaration(convolution).takes_initial:
        raise ValueError(
            f"the first convolution is a {type(convolution).__name__}, which takes the output of "
            "the first layer; put another one before it, such as jaxgraph.nn.Linear"
        )
