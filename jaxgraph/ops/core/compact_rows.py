"""The order in which XLA's loops visit rows, computed on the device from compressed rows.

What parts hold of it is computed on the host (`jaxgraph.layout.derived.rows.visited_rows`). A
sample is used once, and most programs read none of this: XLA then leaves it out.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.edges import Orientation


def with_compact_rows(
    tables: dict[str, jax.Array], num_rows: int, longest: int, entries: int, chunk: int
) -> Orientation:
    """An orientation of one group of edges, given its compressed rows.

    Args:
      tables: "neighbors", "compressed_ptr", "compressed_rows", "compressed_starts", and of edges by
        sender "edge_ids".
      num_rows: rows of the table.
      longest: the most edges of a run.
      entries: compact rows and runs that there is room for.
      chunk: edges reduced at a time.
    """
    rows, bounds = tables["compressed_rows"], tables["compressed_starts"]
    count, lengths = tables["compressed_ptr"][1], jnp.diff(bounds)
    # Padding has no edges, and comes last.
    order = jnp.argsort(-lengths, stable=True)
    rows, starts, lengths = rows[order], bounds[:-1][order], lengths[order]
    runs = jnp.where(lengths > longest, -(-lengths // longest), 0)
    ends = jnp.cumsum(runs)
    place = jnp.arange(entries + chunk, dtype=jnp.int32)
    run = place - count
    heavy = jnp.searchsorted(ends, run, side="right", method="sort").astype(jnp.int32)
    is_row, of_run = place < count, jnp.minimum(heavy, len(rows) - 1)
    done = (run - (ends - runs)[of_run]) * longest
    of_row = jnp.minimum(place, len(rows) - 1)
    is_heavy = runs[of_row] > 0
    first_run = count + (ends - runs)[of_row]
    exists = is_row | (run < ends[-1])

    def visited(row: jax.Array, of_run: jax.Array) -> jax.Array:
        return jnp.where(exists, jnp.where(is_row, row, of_run), 0).astype(jnp.int32)

    listed = jnp.where(lengths > 0, rows, num_rows)
    position = jnp.full(num_rows, -1, jnp.int32)
    return Orientation(
        neighbors=tables["neighbors"],
        edge_ids=tables.get("edge_ids"),
        rows=visited(rows[of_row], rows[of_run]),
        starts=visited(jnp.where(is_heavy, first_run, starts[of_row]), starts[of_run] + done),
        degrees=visited(
            jnp.where(is_heavy, runs[of_row], lengths[of_row]),
            jnp.minimum(lengths[of_run] - done, longest),
        ),
        run_ptr=jnp.stack([jnp.zeros_like(count), count + ends[-1]]).astype(jnp.int32),
        heavy_rows=jnp.sum(runs > 0, dtype=jnp.int32)[None],
        position=position.at[listed].set(jnp.arange(len(rows), dtype=jnp.int32), mode="drop"),
        compressed_ptr=tables["compressed_ptr"],
        compressed_rows=tables["compressed_rows"],
        compressed_starts=tables["compressed_starts"],
    )


def receivers_of_slots(by_receiver: Orientation) -> jax.Array:
    """int32 [slots], the row of each slot; any in padding."""
    lengths = jnp.diff(by_receiver.compressed_starts)
    slots = by_receiver.neighbors.shape[0]
    return jnp.repeat(by_receiver.compressed_rows, lengths, total_repeat_length=slots)
