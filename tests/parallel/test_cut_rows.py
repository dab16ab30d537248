"""Rows cut for GPU kernels: every slot of every group stands in one piece or in one whole row."""

import numpy as np

from jaxgraph.parallel.cut_rows import cut_arrays, cut_rows_at, cut_shapes


def orientation(degrees_of_groups: list[list[int]], slots: int) -> dict[str, np.ndarray]:
    degrees = [np.sort(np.asarray(each, np.int32))[::-1] for each in degrees_of_groups]
    joined = np.concatenate(degrees)
    arrays = {
        "neighbors": np.zeros(slots, np.int32),
        "compressed_ptr": np.cumsum([0, *map(len, degrees)]).astype(np.int32),
        "rows": np.concatenate([np.arange(len(each))[::-1] for each in degrees]).astype(np.int32),
        "starts": (np.cumsum(joined) - joined).astype(np.int32),
        "degrees": joined,
    }
    padding = {"rows": 9, "starts": 9, "degrees": 10**6}
    return {
        f"edges/{name}": np.append(values, [padding[name]] * 2).astype(np.int32)[None]
        if name in padding
        else values[None]
        for name, values in arrays.items()
    }


def test_every_slot_is_in_one_place():
    part = orientation([[700, 300, 5, 1], [], [1300, 2]], 2400)
    made = cut_arrays(part)
    shapes = cut_shapes({name: (x.shape[1:], x.dtype) for name, x in part.items()})
    assert {name: (x.shape[1:], x.dtype) for name, x in made.items()} == shapes
    cut = cut_rows_at(made, "edges")
    assert cut is not None and cut.counts[0].tolist() == [2, 0, 1]
    pointers, seen = part["edges/compressed_ptr"][0], []
    for group in range(3):
        pieces = slice(*cut.piece_ptr[0, group : group + 2])
        seen += zip(cut.piece_starts[0, pieces], cut.piece_lengths[0, pieces], strict=True)
        whole = slice(pointers[group] + cut.counts[0, group], pointers[group + 1])
        seen += zip(part["edges/starts"][0, whole], part["edges/degrees"][0, whole], strict=True)
        assert (cut.piece_lengths[0, pieces] <= cut.longest[0, group]).all()
        rows = slice(*cut.row_ptr[0, group : group + 2])
        assert cut.pieces[0, rows].sum() == pieces.stop - pieces.start
        first = pointers[group]
        long = part["edges/rows"][0, first : first + cut.counts[0, group]]
        np.testing.assert_array_equal(cut.rows[0, rows], long)
    slots = np.concatenate([np.arange(start, start + length) for start, length in seen])
    np.testing.assert_array_equal(np.sort(slots), np.arange(2308))


def test_few_edges_are_not_cut():
    part = orientation([[90, 10]], 100)
    assert cut_arrays(part) == {} and cut_rows_at(part, "edges") is None
