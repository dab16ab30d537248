"""Shapes that several graphs share, so that one compiled program fits all of them."""

from __future__ import annotations

from typing import Protocol

from jaxgraph.graph import Graph
from jaxgraph.kinds import check_graph, kind_of
from jaxgraph.layout.description import choose_halo_unit, describe
from jaxgraph.layout.fitting import merge, with_headroom
from jaxgraph.layout.manifest import Manifest
from jaxgraph.layout.shard_tables import PartTables
from jaxgraph.layout.survey import survey
from jaxgraph.partition.assignment import Partition


class _Described(Protocol):
    @property
    def manifest(self) -> Manifest: ...


def common_shapes(
    *graphs: tuple[Graph, Partition] | Manifest | _Described,
    mode: str | None = None,
    headroom: float = 0.0,
) -> Manifest:
    """The smallest shapes into which several graphs fit.

    Pass the result as `pad_to` when sharding each of them, or any other graph that fits: a function
    compiled for one then runs on all of them.

    Args:
      *graphs: pairs of a graph and its partition, sharded graphs, sources of parts, or manifests.
        Pairs get a common unit of messages. The others keep the unit that they were laid out with,
        and may therefore have no common shapes.
      mode: the mode of the pairs; None: that of the others, or "sar".
      headroom: the share by which to enlarge the shapes, for graphs that are not known yet.

    Returns:
      The shapes, without counts.

    Raises:
      ValueError: no graph was passed, headroom is negative, or the graphs differ in mode, number of
        parts, number of features, kinds of data or unit of messages.
    """
    if not graphs:
        raise ValueError("common_shapes needs at least one graph")
    if not 0 <= headroom < float("inf"):
        raise ValueError(f"headroom is {headroom}; expected a share from 0 up, such as 0.1")
    fixed = [_manifest(each) for each in graphs if not isinstance(each, tuple | PartTables)]
    made = [each.survey for each in graphs if isinstance(each, PartTables)]
    if mode is None:
        modes = [manifest.mode for manifest in fixed] + [found.extents.mode for found in made]
        mode = modes[0] if modes else "sar"
    for graph, *_ in (each for each in graphs if isinstance(each, tuple)):
        check_graph(graph, "common_shapes((graph, partition), ...)")
    made += [survey(*each, mode) for each in graphs if isinstance(each, tuple)]
    unit = fixed[0].halo_unit if fixed else choose_halo_unit([found.extents for found in made])
    described = [describe(x.extents, unit, features=x.feature_sizes) for x in made]
    common = merge([*fixed, *described])
    return with_headroom(common, headroom) if headroom else common


def _manifest(graph: Manifest | _Described) -> Manifest:
    manifest = graph if isinstance(graph, Manifest) else getattr(graph, "manifest", None)
    if not isinstance(manifest, Manifest):
        raise ValueError(
            f"common_shapes: got {kind_of(graph)}; expected pairs (graph, partition), sharded "
            "graphs, sources of parts or manifests, each an argument: common_shapes(*graphs)"
        )
    return manifest
