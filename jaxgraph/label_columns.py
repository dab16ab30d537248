"""Labels of training nodes as columns of the features, which masked label prediction hides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from jaxgraph.graph_arrays import LABEL_COLUMNS
from jaxgraph.kinds import check_graph

if TYPE_CHECKING:
    from jaxgraph.graph import Graph


def with_label_columns(graph: Graph) -> Graph:
    """Appends the labels of the training nodes to the features, a column for each class.

        x_v <- [x_v, onehot(y_v)] of a training node v, else [x_v, 0]

    Train with `jaxgraph.train.MaskedLabelPrediction`: else a model reads the label that it is to
    predict. It comes last, after splits and normalisation. A graph with these columns refuses other
    features, labels or training nodes.

    Args:
        graph: a graph with a class per node and training nodes, with or without features.

    Returns:
        The graph with features [num_nodes, num_features + num_classes], dense or sparse as before,
        and `node_data["label_columns"]`, bool [num_nodes], the nodes whose label they show.

    Raises:
        ValueError: the graph has such columns, no labels, several labels per node, or no training
            nodes.

    References:
        Shi et al., "Masked label prediction: unified message passing model for semi-supervised
        classification", 2020, section 3.2.
    """
    check_graph(graph, "with_label_columns(graph)")
    wrong = {
        "has label columns already; expected one without": LABEL_COLUMNS in graph.node_data,
        "has no labels; expected one with a class per node (Graph labels=...)": (
            graph.labels is None
        ),
        "has labels of several classes at once; expected one class per node": graph.is_multilabel,
        "has no training nodes, whose labels are shown; give Graph train_mask=..., or draw them "
        "with random_split": graph.train_mask is None,
    }
    for what, is_so in wrong.items():
        if is_so:
            raise ValueError(f"with_label_columns: the graph {graph.name!r} {what}.")
    labels: Any = graph.labels
    train_mask: Any = graph.train_mask
    (ids,) = np.nonzero(train_mask)
    entries = np.ones(ids.size, np.float32), (ids, labels[ids])
    columns: Any = sp.csr_array(entries, (graph.num_nodes, graph.num_classes))
    if isinstance(graph.nodes, sp.csr_array):
        nodes = sp.hstack([graph.nodes, columns], "csr")
    else:
        columns = columns.toarray()
        nodes = columns if graph.nodes is None else np.concatenate([graph.nodes, columns], 1)
    return graph.replace(nodes=nodes, node_data={**graph.node_data, LABEL_COLUMNS: train_mask})
