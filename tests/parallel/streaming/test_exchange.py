"""The rows that parts need of each other: each reads its own from tables that are handed on."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from jaxgraph.parallel.streaming.exchange import Exchange, Listed

PARTS, ROWS = 6, 40


def some_rows(seed: int = 0) -> tuple[Listed, ...]:
    """Rows of each part for every step; a third of the pairs of parts share none."""
    rng, listed = np.random.default_rng(seed), []
    for _ in range(PARTS):
        sizes = [0 if rng.random() < 1 / 3 else int(rng.integers(1, 30)) for _ in range(PARTS - 1)]
        rows = [np.sort(rng.choice(ROWS, size, replace=False)) for size in sizes]
        ptr = np.cumsum([0, *sizes])
        listed.append(Listed(np.concatenate(rows).astype(np.int32), ptr.astype(np.int32)))
    return tuple(listed)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("devices", [1, 2, 3, 6])
def test_every_part_finds_its_rows_once(devices: int, sign: int) -> None:
    listed = some_rows()
    exchange = Exchange(listed, sign, devices, node_rows=ROWS, most=29)
    seen: Counter[tuple[int, int]] = Counter()
    for turn in range(PARTS // devices):
        for other in exchange.visits(turn):
            parts = [other * devices + at for at in range(devices)]
            # Values that name part and row.
            tables = [
                1000 * part + rows
                for part, rows in zip(parts, exchange.tables(other, turn), strict=True)
            ]
            tables = [np.append(table, -1) for table in tables]
            if other == turn:
                tables = tables[-1:] + tables[:-1]
            for steps, places in exchange.moves(other, turn):
                for at, (table, step) in enumerate(zip(tables, steps, strict=True)):
                    to = turn * devices + at
                    of = int(to - sign * step) % PARTS
                    found = (
                        table[:-1] if places is None else np.take(table, places[at], mode="clip")
                    )
                    expected = 1000 * of + listed[of].of_step(int(step))
                    np.testing.assert_array_equal(found[: len(expected)], expected)
                    assert (found[len(expected) :] == -1).all()
                    seen[of, to] += 1
                tables = tables[-1:] + tables[:-1]
    needed = {(of, (of + sign * s) % PARTS) for of in range(PARTS) for s in range(1, PARTS)}
    needed = {(of, to) for of, to in needed if len(listed[of].of_step(sign * (to - of) % PARTS))}
    assert needed <= set(seen) and set(seen.values()) == {1}
