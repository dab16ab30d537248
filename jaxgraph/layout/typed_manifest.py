"""The exchange contract of a graph of several node tables and relations."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

from jaxgraph.layout.manifest import ColumnSchedule, Counts, Flow, Manifest, Shapes


@dataclasses.dataclass(frozen=True)
class Ends:
    """The names of what a relation reads.

    Attributes:
      senders, receivers: its tables.
      exchange: the exchange between them, which serves several relations.
    """

    senders: str
    receivers: str
    exchange: str


@dataclasses.dataclass(frozen=True)
class Paired:
    """The pairs (edge type, receiver) of a relation; see `jaxgraph.layout.typed_pairs`.

    Attributes:
      table: the table of the pairs.
      into: the relation from the senders to the pairs.
      out_of: the relation from the pairs to the receivers.
      block: rows of a block, which has one type.
      num_types: the largest type plus one.
      back: those of its edges turned round, (edge type, sender), for the backward.
    """

    table: str
    into: str
    out_of: str
    block: int = 1
    num_types: int = 0
    back: Paired | None = None


@dataclasses.dataclass(frozen=True)
class CountsOfSets(Counts):
    """The sizes of a graph of several sets.

    Attributes:
      of_tables: nodes of each set.
    """

    of_tables: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class TypedManifest:
    """The manifests of the tables and relations of a graph, by name.

    The manifest of a table lists the arrays of its nodes, and has no edges. The manifest of a
    relation lists its edges, and the degrees of both ends. The first relation of an exchange also
    lists the rows that parts send.

    Attributes:
      tables: each table's name and manifest.
      relations: each relation's name and manifest.
      ends: what each relation reads.
      paired: the pairs of each relation that has edge types.
      target: the table that a shard stands for; None: none.
      flow: the relations of layers that compute what a loss needs alone; None: there are none.
    """

    tables: tuple[tuple[str, Manifest], ...]
    relations: tuple[tuple[str, Manifest], ...]
    ends: tuple[tuple[str, Ends], ...]
    paired: tuple[tuple[str, Paired], ...] = ()
    target: str | None = None
    flow: Flow | None = None

    def __repr__(self) -> str:
        tables, relations = ([name for name, _ in x] for x in (self.tables, self.relations))
        return f"TypedManifest(mode={self.mode!r}, {tables=}, {relations=})"

    @functools.cached_property
    def members(self) -> Mapping[str, Manifest]:
        """The manifests by the prefix of the names of their arrays."""
        return {f"tables/{name}/": each for name, each in self.tables} | {
            f"relations/{name}/": each for name, each in self.relations
        }

    @property
    def mode(self) -> str:
        """The schedule, "sar" or "domain"."""
        return self.tables[0][1].mode

    @property
    def num_parts(self) -> int:
        """The number of parts."""
        return self.tables[0][1].num_parts

    @property
    def columns(self) -> ColumnSchedule | None:
        """None: features are split by node."""
        return None

    @property
    def counts(self) -> CountsOfSets | None:
        """The sizes of all tables and relations together, or None where they are not known."""
        derived = self.derived
        tables = {name: each.counts for name, each in self.tables if name not in derived}
        relations = {name: each.counts for name, each in self.relations if name not in derived}
        by_exchange = {
            ends.exchange: relations[name] for name, ends in self.ends if name in relations
        }
        if None in (*tables.values(), *relations.values()):
            return None
        nodes = {name: each.num_nodes for name, each in tables.items() if each is not None}
        return CountsOfSets(
            sum(nodes.values()),
            sum(each.num_edges for each in relations.values() if each is not None),
            sum(each.halo_rows_needed for each in by_exchange.values() if each is not None),
            nodes,
        )

    @property
    def of_target(self) -> Manifest:
        """The manifest of the target."""
        if self.target is None:
            names = ", ".join(repr(name) for name, _ in self.tables if name not in self.derived)
            raise ValueError(
                f"the graph has the sets of nodes {names}; say which a task is about: "
                "TypedGraph(..., target=name)"
            )
        return dict(self.tables)[self.target]

    @property
    def node_rows(self) -> int:
        """Rows of nodes per part of the target."""
        return self.of_target.node_rows

    @property
    def num_classes(self) -> int:
        """Classes of the labels of the target, or labels if a node has several."""
        return self.of_target.num_classes

    @property
    def derived(self) -> frozenset[str]:
        """The tables and relations of pairs and of layers, which the user did not give."""
        found = [each for _, each in self.paired]
        found += [each.back for each in found if each.back is not None]
        of_layers = () if self.flow is None else self.flow.relations
        of_pairs = (x for each in found for x in (each.table, each.into, each.out_of))
        return frozenset((*of_pairs, *of_layers))

    @property
    def shapes(self) -> tuple[tuple[str, tuple[int, ...], str], ...]:
        """(name, shape, dtype) of every array of a part that a source lists."""
        return tuple(
            (prefix + name, shape, dtype)
            for prefix, each in self.members.items()
            for name, shape, dtype in each.shapes
        )

    def counted(self, counts: Counts | None) -> TypedManifest:
        """The manifest as it is: its members are counted one by one, when they are made."""
        del counts
        return self

    def array_shapes(self) -> Shapes:
        """Shape and dtype of each array of a part, by name."""
        return {
            prefix + name: kind
            for prefix, each in self.members.items()
            for name, kind in each.array_shapes().items()
        }

    def each(self, change: Callable[[Manifest], Manifest]) -> TypedManifest:
        """The manifest with all of its members changed."""
        tables, relations = (
            tuple((name, change(each)) for name, each in some)
            for some in (self.tables, self.relations)
        )
        return dataclasses.replace(self, tables=tables, relations=relations)
