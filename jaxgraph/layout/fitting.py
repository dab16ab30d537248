"""Manifests of several graphs brought to the same shapes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxgraph.layout.derived import row_splits, rows
from jaxgraph.layout.manifest import FeatureSizes, Manifest, Shapes
from jaxgraph.layout.row_lengths import EdgeLengths

_ROWS = ("node_rows", "boundary_rows")
_SIZES = ("num_classes", "num_edge_types", *_ROWS)
_UNITS = ("halo_units", "reach_units")
_ADVICE = "make shapes that hold all graphs with jaxgraph.parallel.common_shapes"


def fit(manifest: Manifest, pad_to: Manifest) -> Manifest:
    """The shapes of `pad_to` with the counts of a graph that they hold."""
    _check_kind(manifest, pad_to)
    offered = pad_to.array_shapes()
    needed = _resized(manifest, pad_to)
    unheard = sorted(needed.keys() - offered.keys())
    if unheard:
        raise ValueError(f"pad_to has no room for {', '.join(unheard)}; {_ADVICE}")
    small = [
        f"{name} {getattr(manifest, name)} > {getattr(pad_to, name)}"
        for name in _SIZES
        if getattr(manifest, name) > getattr(pad_to, name)
    ]
    for name in _UNITS:
        more = np.asarray(getattr(manifest, name)) > np.asarray(getattr(pad_to, name))
        if more.any():
            small.append(f"{name} of {int(more.sum())} pairs of parts")
    for layout in (rows, row_splits):
        pairs = layout.compare(manifest, pad_to).items()
        small += [f"{name} {mine} > {theirs}" for name, (mine, theirs) in pairs if mine > theirs]
    small += [
        f"{name} {list(shape)} > {list(offered[name][0])}"
        for name, (shape, _) in needed.items()
        if any(mine > theirs for mine, theirs in zip(shape, offered[name][0], strict=True))
    ]
    if small:
        more = f" and {len(small) - 4} more" if len(small) > 4 else ""
        raise ValueError(
            f"the graph does not fit into pad_to: {', '.join(small[:4])}{more}; {_ADVICE}"
        )
    has_padding = (
        pad_to.has_padding or manifest.has_padding or manifest.node_rows < pad_to.node_rows
    )
    return dataclasses.replace(pad_to, has_padding=has_padding, counts=manifest.counts)


def merge(manifests: Sequence[Manifest]) -> Manifest:
    """The smallest shapes into which several graphs fit."""
    first = manifests[0]
    for other in manifests[1:]:
        _check_kind(first, other)
        _check_kind(other, first)
    common = dataclasses.replace(
        first,
        multilabel=any(manifest.multilabel for manifest in manifests),
        shapes=(),
        lengths=_all_lengths([manifest.lengths for manifest in manifests]),
        features=_all_features(manifests),
        has_padding=True,
        counts=None,
        **{
            name: _plain(np.max([getattr(manifest, name) for manifest in manifests], axis=0))
            for name in (*_SIZES, *_UNITS)
        },
    )
    shapes: Shapes = {}
    for manifest in manifests:
        for name, (shape, dtype) in _resized(manifest, common).items():
            known, _ = shapes.get(name, (shape, dtype))
            shapes[name] = tuple(map(max, known, shape)), dtype
    return common.listing(shapes)


def _all_features(manifests: Sequence[Manifest]) -> FeatureSizes | None:
    sizes = [manifest.features for manifest in manifests if manifest.features is not None]
    if not sizes:
        return None
    return FeatureSizes(sizes[0].num_columns, _all_lengths([each.lengths for each in sizes]))


def _all_lengths(several: Sequence[tuple[EdgeLengths, ...]]) -> tuple[EdgeLengths, ...]:
    """The row lengths of all graphs, each once, in an order that does not depend on theirs."""
    found = {lengths.digest: lengths for some in several for lengths in some}
    return tuple(found[digest] for digest in sorted(found))


def with_headroom(manifest: Manifest, headroom: float, longer: float | None = None) -> Manifest:
    """Larger shapes, for graphs that are not known yet."""
    scale = 1 + headroom
    # Similar graphs differ more in their longest row than in their totals.
    longer = 2 * scale if longer is None else longer
    sizes = {
        name: _plain(np.ceil(np.multiply(getattr(manifest, name), scale)))
        for name in (*_ROWS, *_UNITS)
    }

    def with_room(several: tuple[EdgeLengths, ...]) -> tuple[EdgeLengths, ...]:
        return tuple(
            dataclasses.replace(each, more=each.more * scale, longer=each.longer * longer)
            for each in several
        )

    features = manifest.features
    if features is not None:
        features = dataclasses.replace(features, lengths=with_room(features.lengths))
    lengths = with_room(manifest.lengths)
    larger = dataclasses.replace(manifest, **sizes, lengths=lengths, features=features, shapes=())
    return larger.listing(_resized(manifest, larger, scale))


def _plain(sizes: Any) -> Any:
    """A size as an integer, and those of pairs of parts as tuples."""
    found = np.asarray(sizes).astype(np.int64).tolist()
    return tuple(map(tuple, found)) if isinstance(found, list) else found


def _check_kind(manifest: Manifest, pad_to: Manifest) -> None:
    """Raises `ValueError` where `manifest` differs from `pad_to` in more than its sizes."""
    if manifest.columns is not None or pad_to.columns is not None:
        raise ValueError(
            "a graph in mode 'p3' has shapes of its own, which no other graph takes on; shard each "
            "graph without pad_to, or all of them in mode 'sar' or 'domain'"
        )
    for name in ("mode", "num_parts", "halo_unit"):
        mine, theirs = getattr(manifest, name), getattr(pad_to, name)
        if mine != theirs:
            raise ValueError(
                f"graphs with {name} {mine!r} and {theirs!r} cannot have the same shapes; {_ADVICE}"
                ", from (graph, partition) pairs of the same number of parts"
            )
    _check_features(manifest.features, pad_to.features)
    mine, theirs = manifest.array_shapes(), pad_to.array_shapes()
    fields = pad_to.fields
    missing = sorted(x for x in theirs.keys() - mine.keys() if not fields[x].may_lack)
    if missing:
        raise ValueError(
            f"graphs with and without {', '.join(missing)} cannot have the same shapes; give both "
            "the same kinds of data"
        )
    for name in sorted(x for x in mine.keys() & theirs.keys() if fields[x].is_data):
        own, other = (mine[name][0][1:], mine[name][1]), (theirs[name][0][1:], theirs[name][1])
        if own != other:
            raise ValueError(
                f"{name} has {list(own[0])} of {own[1]} per row in one graph and {list(other[0])} "
                f"of {other[1]} in another; expected the same"
            )


def _check_features(mine: FeatureSizes | None, theirs: FeatureSizes | None) -> None:
    if (mine is None) != (theirs is None):
        raise ValueError(
            "a graph with sparse features and one without cannot have the same shapes; "
            "graph.replace(nodes=graph.nodes.toarray()) makes them dense"
        )
    if mine is not None and theirs is not None and mine.num_columns != theirs.num_columns:
        raise ValueError(
            f"sparse features have {mine.num_columns} columns in one graph and "
            f"{theirs.num_columns} in another; expected the same"
        )


def _resized(manifest: Manifest, like: Manifest, scale: float = 1.0) -> Shapes:
    """The same contents, or `scale` times as much, under the sizes of another manifest."""
    known, shapes = dataclasses.replace(like, shapes=()).schema(manifest.fields), {}
    for name, ((first, *row), dtype) in manifest.array_shapes().items():
        size = math.ceil((first - manifest.fields[name].slack) * scale)
        shapes[name] = known[name].shape(size, tuple(row)), dtype
    return shapes
