"""A host loop over parts and edge groups, with every stage compiled alone, equals the layer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.ops.core.choice import choose_stages
from jaxgraph.ops.core.messages import Wanted
from jaxgraph.ops.core.running import Places
from jaxgraph.parallel import PartAlone, part_alone
from jaxgraph.parallel.conv_stages import ConvStages, Rows
from tests.layers.neighborhood_cases import CASES, doubles
from tests.tolerance import assert_close
from tests.training import crooked_graph, crooked_sharded, oracle_edges

PARTS = 3
ALL = Wanted(True, True, True, False)


class HostLoop:
    """Runs the stages of a convolution part by part, and group by group."""

    def __init__(
        self, stages: ConvStages, params: Any, parts: list[PartAlone], x: np.ndarray
    ) -> None:
        self.stages, self.params, self.parts = stages, params, parts
        device = jax.devices()[0]
        self.parts = [jax.device_put(part, device) for part in parts]
        self.x = [self._features(part, x) for part in self.parts]
        self.rows = [
            self._map(params, part.receivers, x) for part, x in zip(self.parts, self.x, strict=True)
        ]
        self.place = {}
        for index, part in enumerate(self.parts):
            own = np.asarray(part.receivers.node_mask)
            ids = np.asarray(part.receivers.node_ids)[own]
            self.place |= {
                int(i): (index, int(row)) for i, row in zip(ids, np.flatnonzero(own), strict=True)
            }

    def _features(self, part: PartAlone, x: np.ndarray) -> jax.Array:
        mask = np.asarray(part.receivers.node_mask)[:, None]
        return jnp.asarray(np.where(mask, x[np.asarray(part.receivers.node_ids)], 0))

    @partial(jax.jit, static_argnums=0)
    def _map(self, params: Any, nodes: Any, x: jax.Array) -> Rows:
        return self.stages.map(params, nodes, x)

    def halo(self, index: int, step: int) -> list[tuple[int, int]]:
        """Part and row of every row that part `index` reads of the part `step` steps back."""
        table, own = self.parts[index].senders, self.parts[index].receivers.num_rows
        size = (table.num_rows - own) // (PARTS - 1)
        some = slice(own + (step - 1) * size, own + step * size)
        ids, mask = np.asarray(table.node_ids)[some], np.asarray(table.node_mask)[some]
        return [self.place[int(i)] if real else (-1, 0) for i, real in zip(ids, mask, strict=True)]

    def arrived(self, index: int, step: int) -> Any:
        """These rows, [halo rows, ...], looked up on the host."""
        sent = [jax.tree.map(np.asarray, rows.sent) for rows in self.rows]
        places = self.halo(index, step)

        def look_up(*leaves: np.ndarray) -> np.ndarray:
            zero = np.zeros_like(leaves[0][0])
            return np.stack([leaves[p][row] if p >= 0 else zero for p, row in places])

        return jax.tree.map(look_up, *sent)

    @partial(jax.jit, static_argnums=0)
    def _first(self, params: Any, part: PartAlone, rows: Rows) -> Any:
        stages, block, inputs = self._own(params, part, rows)
        return stages.fold(block, inputs)

    def _own(self, params: Any, part: PartAlone, rows: Rows) -> Any:
        """The stages of the reduction, the edges among own rows, and their inputs."""
        block = part.shard.local_block().with_loops(self.stages.self_loops)
        inputs = self.stages.inputs(params, rows.sent, rows.received, ())
        message, reducer = self.stages.message, self.stages.reducer
        return choose_stages(part.shard.incoming, message, reducer, inputs), block, inputs

    @partial(jax.jit, static_argnums=0)
    def _fold(
        self, params: Any, part: PartAlone, rows: Rows, sent: Any, state: Any, step: Any
    ) -> Any:
        stages, _, inputs = self._own(params, part, rows)
        reach, inputs = part.shard.reach, replace(inputs, sender=sent)
        assert reach is not None
        position = reach.position[step - 1]
        return stages.fold_group(part.shard.incoming, step, inputs, state, position, None)[0]

    @partial(jax.jit, static_argnums=0)
    def _finish(self, params: Any, part: PartAlone, rows: Rows, state: Any) -> Any:
        stages, _, inputs = self._own(params, part, rows)
        results = stages.finish(state, inputs)
        return results, self.stages.update(params, part.receivers, rows, results[0])

    def forward(self) -> list[np.ndarray]:
        """y of every part; saves the residuals of the backward."""
        self.results, outputs = [], []
        for index, (part, rows) in enumerate(zip(self.parts, self.rows, strict=True)):
            state = self._first(self.params, part, rows)
            for step in range(1, PARTS):
                sent = self.arrived(index, step)
                state = self._fold(self.params, part, rows, sent, state, jnp.int32(step))
            results, y = self._finish(self.params, part, rows, state)
            self.results.append(results)
            outputs.append(y)
        return outputs

    @partial(jax.jit, static_argnums=0)
    def _pull_own(self, params: Any, part: PartAlone, rows: Rows, results: Any, of_y: Any) -> Any:
        update = lambda params, rows, y: self.stages.update(params, part.receivers, rows, y)  # noqa: E731
        _, pull = jax.vjp(update, params, rows, results[0])
        of_params, of_rows, gradient = pull(of_y)
        stages, block, inputs = self._own(params, part, rows)
        adjoint = stages.adjoint(*results, gradient)
        return of_params, of_rows, adjoint, stages.pull(block, inputs, adjoint, ALL)

    @partial(jax.jit, static_argnums=0)
    def _pull(
        self,
        params: Any,
        part: PartAlone,
        rows: Rows,
        sent: Any,
        adjoint: Any,
        so_far: Any,
        step: Any,
    ) -> Any:
        stages, _, inputs = self._own(params, part, rows)
        reach, inputs = part.shard.reach, replace(inputs, sender=sent)
        assert reach is not None
        places = Places(None, reach.position[step - 1])
        edges = part.shard.incoming
        pulled = stages.pull_group(edges, step, inputs, adjoint, ALL, so_far, places, None)
        return pulled.gradients, pulled.answer

    @partial(jax.jit, static_argnums=0)
    def _pull_map(
        self, params: Any, part: PartAlone, x: jax.Array, of_rows: Rows, rest: Any
    ) -> Any:
        def mapped(params: Any, x: jax.Array) -> Any:
            rows = self.stages.map(params, part.receivers, x)
            return rows, self.stages.message_params(params, rows.sent)

        return jax.vjp(mapped, params, x)[1]((of_rows, rest))

    def backward(self, of_y: list[jax.Array]) -> tuple[Any, list[np.ndarray]]:
        """Gradients of the parameters, and of the features of every part."""
        of_sent = [[np.zeros(x.shape) for x in jax.tree.leaves(rows.sent)] for rows in self.rows]
        of_params, others = jax.tree.map(np.zeros_like, self.params), []
        for index, (part, rows) in enumerate(zip(self.parts, self.rows, strict=True)):
            own = self._pull_own(self.params, part, rows, self.results[index], of_y[index])
            params, of_rows, adjoint, grads = own
            of_params = jax.tree.map(lambda a, b: a + np.asarray(b), of_params, params)
            for total, some in zip(of_sent[index], grads.sender, strict=True):
                total += np.asarray(some)
            for step in range(1, PARTS):
                sent = self.arrived(index, step)
                grads, answer = self._pull(
                    self.params, part, rows, sent, adjoint, grads, jnp.int32(step)
                )
                for number, leaf in enumerate(answer):
                    for (owner, row), gradient in zip(
                        self.halo(index, step), np.asarray(leaf), strict=True
                    ):
                        if owner >= 0:
                            of_sent[owner][number][row] += gradient
            others.append((of_rows, grads.receiver, grads.params))
        of_x = []
        for index, (part, x) in enumerate(zip(self.parts, self.x, strict=True)):
            of_rows, received, params = others[index]
            rows = self.rows[index]

            def added(tree: Any, leaves: Any, like: Any) -> Any:
                structure = jax.tree.structure(like)
                some = structure.unflatten([jnp.asarray(x, jnp.float32) for x in leaves])
                return jax.tree.map(jnp.add, tree, some)

            of_rows = Rows(
                added(of_rows.sent, of_sent[index], rows.sent),
                added(of_rows.received, received, rows.received),
                of_rows.own,
            )
            rest = self.stages.message_params(self.params, rows.sent)
            rest = jax.tree.structure(rest).unflatten([p for p in params])
            pulled = self._pull_map(self.params, part, x, of_rows, rest)
            of_params = jax.tree.map(lambda a, b: a + np.asarray(b), of_params, pulled[0])
            of_x.append(np.asarray(pulled[1]))
        return of_params, of_x


@pytest.mark.expensive
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.stages])
def test_a_loop_of_the_host(name: str) -> None:
    case, graph = CASES[name], crooked_graph()
    assert graph.nodes is not None and case.stages is not None
    sharded = crooked_sharded(PARTS, "hash", "sar")
    params = jax.tree.map(jnp.asarray, case.params)
    parts = [part_alone(sharded, index) for index in range(PARTS)]
    loop = HostLoop(case.stages(params), params, parts, graph.nodes)
    expected, backward = case.oracle(
        doubles(case.params), oracle_edges(graph), graph.nodes.astype(np.float64)
    )
    outputs = loop.forward()
    adjoint = np.random.default_rng(1).standard_normal(expected.shape)
    of_y, found = [], np.zeros(expected.shape)
    for part, y in zip(parts, outputs, strict=True):
        mask, ids = np.asarray(part.receivers.node_mask), np.asarray(part.receivers.node_ids)
        found[ids[mask]] = np.asarray(y)[mask]
        of_y.append(jnp.asarray(np.where(mask[:, None], adjoint[ids], 0), jnp.float32))
    assert_close(found, expected, reduction_length=1000)
    of_params, of_x = loop.backward(of_y)
    expected_of_x, expected_of_params = backward(adjoint)
    found = np.zeros_like(expected_of_x)
    for part, gradient in zip(parts, of_x, strict=True):
        mask, ids = np.asarray(part.receivers.node_mask), np.asarray(part.receivers.node_ids)
        found[ids[mask]] = gradient[mask]
    assert_close(found, expected_of_x, reduction_length=2000, name="gradient of x")
    for key, gradient in expected_of_params.items():
        assert_close(of_params[key], gradient, reduction_length=2000, name=key)
