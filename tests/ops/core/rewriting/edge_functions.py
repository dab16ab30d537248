"""Random functions of (sender, receiver, edge), made of the operations that users write."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

WIDTHS = {"sender": 6, "receiver": 5, "edge": 3}
UNARY = {
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "sin": jnp.sin,
    "half": lambda x: 0.5 * x + 0.25,
}
BINARY = {"add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply}


@st.composite
def edge_functions(draw, depth=4):
    """A pair (function of params and of an edge's arrays, params)."""
    kernels: list[jax.Array] = []
    seed = draw(st.integers(0, 1 << 16))
    rng = np.random.default_rng(seed)

    def kernel(rows, columns):
        kernels.append(jnp.asarray(rng.normal(size=(rows, columns)) / rows**0.5, jnp.float32))
        return len(kernels) - 1

    def expression(depth):
        """A function of (params, values by end), and its width."""
        kind = draw(st.sampled_from(("leaf", "map", "joined", "unary", "binary")))
        if depth == 0 or kind == "leaf":
            end = draw(st.sampled_from(tuple(WIDTHS)))
            return (lambda params, ends: ends[end]), WIDTHS[end]
        if kind == "unary":
            inner, width = expression(depth - 1)
            apply = UNARY[draw(st.sampled_from(tuple(UNARY)))]
            return (lambda params, ends: apply(inner(params, ends))), width
        if kind == "map":
            inner, width = expression(depth - 1)
            columns = draw(st.integers(1, 9))
            number = kernel(width, columns)
            return (lambda params, ends: inner(params, ends) @ params[number]), columns
        if kind == "joined":
            parts = [expression(depth - 1) for _ in range(draw(st.integers(2, 3)))]
            columns = draw(st.integers(1, 9))
            number = kernel(sum(width for _, width in parts), columns)

            def joined(params, ends):
                values = [part(params, ends) for part, _ in parts]
                return jnp.concatenate(values, -1) @ params[number]

            return joined, columns
        (left, width), (right, other) = (expression(depth - 1) for _ in range(2))
        apply, least = BINARY[draw(st.sampled_from(tuple(BINARY)))], min(width, other)

        def combined(params, ends):
            return apply(left(params, ends)[:, :least], right(params, ends)[:, :least])

        return combined, least

    inner, _ = expression(depth)

    def function(params, sender, receiver, edge):
        ends = {"sender": sender, "receiver": receiver, "edge": edge}
        return jnp.tanh(inner(params, ends))

    return function, kernels
