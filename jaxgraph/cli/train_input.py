"""The graph of a training run: read and partitioned now, or from a folder of parts."""

from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import scipy.sparse as sp

from jaxgraph.cli.graph_options import GraphOptions
from jaxgraph.cli.limits import option_name
from jaxgraph.graph import Graph
from jaxgraph.graph_facts import GraphFacts
from jaxgraph.layout.part_files import PartFolder
from jaxgraph.partition import Partition

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jaxgraph.parallel import ShardedGraph

__all__ = ["FolderInput", "GraphInput", "TrainInput", "of_folder", "refuse_graph_options"]

Options = TypeVar("Options", bound=Any)


class TrainInput(Protocol):
    """A partitioned graph to train on."""

    @property
    def facts(self) -> GraphFacts:
        """Facts of the graph that a model and its training need."""
        ...

    def place(self, options: Any, mesh: "Mesh") -> "ShardedGraph":
        """Places the parts on the devices of a mesh."""
        ...

    def arrays(self) -> dict[str, Any]:
        """The data that is equal in all processes, by name: arrays, or checksums of their files."""
        ...

    def node_names(self) -> np.ndarray | None:
        """The names of all nodes, or None."""
        ...


@dataclass(frozen=True, eq=False)
class GraphInput:
    """A graph in memory.

    Args:
        graph: The graph.
        parts: A part for every node.
        facts: The facts of the graph.
    """

    graph: Graph
    parts: Partition
    facts: GraphFacts

    def place(self, options: Any, mesh: "Mesh") -> "ShardedGraph":
        """Shards the graph as the options say."""
        from jaxgraph import parallel

        return parallel.shard(
            self.graph,
            self.parts,
            mesh,
            mode=options.mode,
            prefetch=options.prefetch,
            implementation=options.implementation,
            node_dtype=options.dtype if self.facts.num_features else None,
            rest=options.rest,
            topology=options.topology,
            chunks=options.chunks,
            feature_budget=options.feature_budget,
            folder=options.folder if options.mode == "stream" else None,
        )

    def arrays(self) -> dict[str, Any]:
        """The arrays of the graph, and the part of every node."""
        names = {field.name for field in fields(self.graph)} - {"name", "num_nodes"}
        found: dict[str, Any] = {name: getattr(self.graph, name) for name in sorted(names)}
        if sp.issparse(self.graph.nodes):
            nodes = self.graph.nodes
            found["nodes"] = (nodes.data, nodes.indices, nodes.indptr)
        return found | {"partition": self.parts.assignment}

    def node_names(self) -> np.ndarray | None:
        """The names of all nodes, or None."""
        return self.graph.node_names


@dataclass(frozen=True, eq=False)
class FolderInput:
    """Parts in a folder, of which a process reads those of its own devices.

    Args:
        folder: The folder.
    """

    folder: PartFolder

    @property
    def facts(self) -> GraphFacts:
        """The facts of the graph, as the folder holds them."""
        return self.folder.graph

    def place(self, options: Any, mesh: "Mesh") -> "ShardedGraph":
        """Reads the parts of the own devices."""
        from jaxgraph import parallel

        return parallel.place(
            self.folder,
            mesh,
            options.mode,
            prefetch=options.prefetch,
            implementation=options.implementation,
            node_dtype=options.dtype if self.facts.num_features else None,
            folder=options.folder,
        )

    def arrays(self) -> dict[str, Any]:
        """Size and CRC-32 of the files of each array, in order of the parts."""
        contents = self.folder.contents
        parts = [part.arrays for part in contents.parts]
        found = {name: [arrays[name] for arrays in parts] for name in parts[0]}
        return found | {"row_lengths": contents.row_lengths}

    def node_names(self) -> np.ndarray | None:
        """The names of all nodes, or None."""
        return self.folder.node_names()


def refuse_graph_options(options: Any, folder: Path, others: tuple[str, ...]) -> None:
    """Refuses options that choose or change a graph which a folder of parts holds already.

    Args:
        options: The options of the command.
        folder: The folder.
        others: The names of further options that were settled when it was written.

    Raises:
        ValueError: One is given; the message names it.
    """
    of_graph = {field.name for field in fields(GraphOptions)} - {"seed"}
    for field in fields(options):
        if field.name not in of_graph | set(others):
            continue
        factory = field.default_factory
        default = field.default if factory is MISSING else factory()
        if getattr(options, field.name) != default:
            raise ValueError(
                f"{option_name(field.name)}: settled when the parts in {folder} were written; "
                "leave it out, or give it to jaxgraph partition --out."
            )


def of_folder(options: Options, folder: PartFolder) -> Options:
    """Returns the options with the mode and the number of parts of a folder.

    Args:
        options: The options of the command.
        folder: The folder of its parts.

    Raises:
        ValueError: An option contradicts the folder; the message names it.
    """
    manifest, columns = folder.manifest, folder.manifest.columns
    # Parts that devices hold can be streamed, too.
    streams = options.mode == "stream" and folder.mode == "sar"
    settled: dict[str, Any] = {
        "parts": folder.num_parts,
        "mode": "stream" if streams else folder.mode,
        "rest": None if columns is None else manifest.mode,
        "topology": None if columns is None else columns.topology,
        "chunks": None if columns is None else columns.chunks,
    }
    for name, value in settled.items():
        given = getattr(options, name)
        if given is not None and given != value:
            raise ValueError(
                f"{option_name(name)}: got {given}, but the parts in {folder.path} are for "
                f"{value}; leave it out, or write others with jaxgraph partition --out."
            )
    normalized = folder.graph.normalized
    if options.normalize not in (None, normalized):
        option, found = ("--raw", "were") if normalized else ("--normalize", "were not")
        raise ValueError(
            f"{option}: features in {folder.path} {found} divided by their sum when they were "
            f"written; leave it out, or give {option} to jaxgraph partition --out."
        )
    settled["normalize"] = normalized
    return replace(options, **settled)
