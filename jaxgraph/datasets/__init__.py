"""Readers of the field's file formats, and generators of graphs."""

from jaxgraph.datasets.convert import from_networkx, from_scipy, to_scipy
from jaxgraph.datasets.edge_list import read_edge_list
from jaxgraph.datasets.files import (
    AmbiguousFileError,
    BrokenFileError,
    MissingFileError,
)
from jaxgraph.datasets.frames import from_pandas
from jaxgraph.datasets.generators import chung_lu, random_graph, rmat, stochastic_block_model
from jaxgraph.datasets.gnn_benchmark import load_gnn_benchmark
from jaxgraph.datasets.hetero import from_hetero
from jaxgraph.datasets.karate import load_karate
from jaxgraph.datasets.matlab import load_matlab
from jaxgraph.datasets.ogb import load_ogb, load_ogb_typed, read_ogb_folder
from jaxgraph.datasets.planetoid import load_planetoid
from jaxgraph.datasets.read_report import ReadReport
from jaxgraph.datasets.registry import load, names
from jaxgraph.datasets.triples import load_aifb, read_ntriples, read_openke
from jaxgraph.datasets.tu import load_tu
from jaxgraph.other_names import refuse_names

__all__ = [
    "AmbiguousFileError",
    "BrokenFileError",
    "MissingFileError",
    "ReadReport",
    "chung_lu",
    "from_hetero",
    "from_networkx",
    "from_pandas",
    "from_scipy",
    "load",
    "load_aifb",
    "load_gnn_benchmark",
    "load_karate",
    "load_matlab",
    "load_ogb",
    "load_ogb_typed",
    "load_planetoid",
    "load_tu",
    "names",
    "random_graph",
    "read_edge_list",
    "read_ntriples",
    "read_ogb_folder",
    "read_openke",
    "rmat",
    "stochastic_block_model",
    "to_scipy",
]


def __dir__() -> list[str]:
    return sorted(__all__)


refuse_names(__name__)
