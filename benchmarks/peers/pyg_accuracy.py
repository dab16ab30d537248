"""Trains PyTorch Geometric's layers for `benchmarks.accuracy`, without importing jaxgraph.

    PYTHON benchmarks/peers/pyg_accuracy.py GRAPH.npz SETTINGS.json

GRAPH.npz holds `senders`, `receivers` int [edges]; the features' non-zeros `rows`, `columns`,
`values` and their `shape`; `labels` int [nodes]; `masks` bool [seeds, 3, nodes]: training,
validation and test. The settings are those of a recipe. It prints a line of JSON for each seed:
accuracy on the test nodes and number of epochs.
"""
# pyright: reportMissingImports=false

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_geometric.nn as pyg
from torch.nn import functional
from torch_geometric.utils import spmm


class Net(torch.nn.Module):
    """Dropout before each layer, an activation after each but the last, as in PyG's examples."""

    def __init__(self, settings: dict[str, Any], in_features: int, out_features: int) -> None:
        super().__init__()
        self.dropout = settings["dropout"]
        self.activation = functional.elu if settings["model"] == "gat" else functional.relu
        width, last = in_features, settings["layers"] - 1
        self.convolutions = torch.nn.ModuleList()
        for index in range(settings["layers"]):
            out = out_features if index == last else settings["hidden"]
            self.convolutions.append(_convolution(settings, width, out, is_last=index == last))
            width = out * (settings["heads"] or 1)

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        for index, convolution in enumerate(self.convolutions):
            x = x if index == 0 else self.activation(x)
            x = convolution(self._dropped(x), adjacency)
        return x

    def _dropped(self, x: torch.Tensor) -> torch.Tensor:
        # For a sparse matrix the stored numbers: dropping a zero changes nothing.
        if x.layout == torch.strided:
            return functional.dropout(x, self.dropout, training=self.training)
        values = functional.dropout(x.values(), self.dropout, training=self.training)
        return torch.sparse_csr_tensor(x.crow_indices(), x.col_indices(), values, x.shape)


class MappedFirst(pyg.SAGEConv):
    """SAGEConv that maps features before it takes their mean, for the same function in less time.

    Otherwise SAGEConv takes means of the 6,805 dense features of Coauthor CS in each pass.
    """

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        mapped = functional.linear(x, self.lin_l.weight)
        return spmm(edge_index, mapped, "mean") + self.lin_l.bias + self.lin_r(x)


def _convolution(
    settings: dict[str, Any], in_features: int, out_features: int, *, is_last: bool
) -> torch.nn.Module:
    if settings["model"] == "gcn":
        return pyg.GCNConv(in_features, out_features, cached=True)
    if settings["model"] == "sage":
        return MappedFirst(in_features, out_features)
    return pyg.GATConv(
        in_features,
        out_features,
        heads=settings["heads"],
        concat=not is_last,
        dropout=settings["dropout"],
    )


def train(
    settings: dict[str, Any],
    x: torch.Tensor,
    adjacency: torch.Tensor,
    labels: torch.Tensor,
    masks: torch.Tensor,
    seed: int,
) -> dict[str, Any]:
    """Trains from one seed; returns the test accuracy at the lowest validation loss."""
    torch.manual_seed(seed)
    model = Net(settings, x.shape[1], int(labels.max()) + 1)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=settings["lr"], weight_decay=settings["weight_decay"]
    )
    training, validation, test = masks
    best_loss, best_epoch, accuracy, epoch = float("inf"), 0, 0.0, 0
    for epoch in range(settings["epochs"]):
        model.train()
        optimizer.zero_grad()
        outputs = model(x, adjacency)
        functional.cross_entropy(outputs[training], labels[training]).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            outputs = model(x, adjacency)
            loss = float(functional.cross_entropy(outputs[validation], labels[validation]))
            if loss < best_loss:
                best_loss, best_epoch = loss, epoch
                right = outputs[test].argmax(1) == labels[test]
                accuracy = float(right.float().mean())
        if settings["patience"] and epoch - best_epoch >= settings["patience"]:
            break
    return {"seed": seed, "accuracy": accuracy, "epochs": epoch + 1}


def main(graph_path: str, settings_path: str) -> None:
    """Reads graph and settings, trains from each seed and prints."""
    settings = json.loads(Path(settings_path).read_text())
    graph = np.load(graph_path)
    places = torch.from_numpy(np.stack([graph["rows"], graph["columns"]]).astype(np.int64))
    values = torch.from_numpy(graph["values"].astype(np.float32))
    x = torch.sparse_coo_tensor(places, values, tuple(graph["shape"])).coalesce()
    x = x.to_sparse_csr() if len(values) < 0.1 * x.numel() else x.to_dense()
    edges = torch.from_numpy(np.stack([graph["senders"], graph["receivers"]]).astype(np.int64))
    labels = torch.from_numpy(graph["labels"].astype(np.int64))
    adjacency = edges
    if settings["model"] != "gat":
        ones = torch.ones(edges.shape[1])
        shape = (len(labels), len(labels))
        adjacency = torch.sparse_coo_tensor(edges.flip(0), ones, shape).coalesce().to_sparse_csr()
    for seed, masks in enumerate(torch.from_numpy(graph["masks"])):
        figures = train(settings, x, adjacency, labels, masks, seed)
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
