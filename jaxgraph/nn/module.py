"""The base of all modules here: whether a pass trains is an argument of every call."""

from __future__ import annotations

from typing import Any

from flax import nnx


class Module(nnx.Module):
    """A module of Flax NNX without a training mode of its own."""

    def train(self, **attributes: Any) -> None:
        """Refuses to set a mode that no layer would read."""
        raise ValueError(
            f"{type(self).__name__}.train() would have no effect; expected train=True and a random "
            "key in the call: model(graph, x, key=key, train=True)"
        )
