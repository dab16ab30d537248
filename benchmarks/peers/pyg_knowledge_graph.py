"""Trains PyTorch Geometric's R-GCN example for `benchmarks.knowledge_graph`, without jaxgraph.

    PYTHON benchmarks/peers/pyg_knowledge_graph.py INPUTS.npz STEPS SEED RESULTS.npz

INPUTS.npz holds `triples` int [triples, 3] (head, tail, type), and the initial weights: `rows` of
nodes, `types`, and the weight, root and bias of the layers `first` and `second`. Model, loss and
steps are those of examples/rgcn_link_pred.py. RESULTS.npz gets the rows of nodes and of types after
the last step, and the seconds of each step.
"""
# pyright: reportMissingImports=false

import sys
import time

import numpy as np
import torch
from torch.nn import functional
from torch_geometric.nn import RGCNConv
from torch_geometric.utils import negative_sampling


class Relational(RGCNConv):
    """The layer, with a row for each pair of a type and a receiver that has edges of it.

    `RGCNConv` keeps the mean of every node for every type, [types, nodes, width], for the backward
    pass: 14 GB a layer on FB15k-237.
    """

    def forward(self, x: torch.Tensor, pairs: tuple) -> torch.Tensor:
        edge_index, receivers, counts = pairs
        size = (len(x), len(receivers))
        means = self.propagate(edge_index, x=x, edge_type_ptr=None, size=size)
        of_types = means.view(-1, *self.weight.shape[1:3]).split(counts)
        products = zip(of_types, self.weight, strict=True)
        rows = torch.cat([torch.einsum("abc,bcd->abd", *each) for each in products])
        out = x @ self.root + self.bias
        return out.index_add(0, receivers, rows.view(-1, self.out_channels))


def paired(edge_index: torch.Tensor, edge_type: torch.Tensor, sizes: tuple[int, int]) -> tuple:
    """Edges to pairs of a type and a receiver, the receivers of pairs, and the pairs of types."""
    num_nodes, num_types = sizes
    numbers, places = (edge_type * num_nodes + edge_index[1]).unique(return_inverse=True)
    counts = torch.bincount(numbers // num_nodes, minlength=num_types)
    return torch.stack([edge_index[0], places]), numbers % num_nodes, counts.tolist()


def check() -> None:
    """Raises AssertionError unless `Relational` is `RGCNConv`."""
    edge_index, edge_type = torch.randint(9, (2, 40)), torch.randint(3, (40,))
    layer, x = RGCNConv(10, 10, 4, num_blocks=5), torch.randn(9, 10)
    other = Relational(10, 10, 4, num_blocks=5)
    other.load_state_dict(layer.state_dict())
    found = other(x, paired(edge_index, edge_type, (9, 4)))
    torch.testing.assert_close(found, layer(x, edge_index, edge_type))


class Encoder(torch.nn.Module):
    """Learned rows of nodes, and two layers."""

    def __init__(self, num_nodes: int, width: int, num_types: int) -> None:
        super().__init__()
        self.rows = torch.nn.Parameter(torch.empty(num_nodes, width))
        blocks = {"num_blocks": 5}
        self.first = Relational(width, width, num_types, **blocks)
        self.second = Relational(width, width, num_types, **blocks)

    def forward(self, edges: tuple) -> torch.Tensor:
        x = self.first(self.rows, edges).relu()
        x = functional.dropout(x, 0.2, training=self.training)
        return self.second(x, edges)


def main() -> None:
    """Trains for some steps, and writes the rows."""
    given, results = np.load(sys.argv[1]), sys.argv[4]
    steps, seed = int(sys.argv[2]), int(sys.argv[3])
    torch.manual_seed(seed)
    torch.set_num_threads(2)
    (num_nodes, width), num_types = given["rows"].shape, len(given["types"])
    links = torch.from_numpy(given["triples"][:, :2].T.copy()).long()
    kinds = torch.from_numpy(given["triples"][:, 2].copy()).long()
    check()
    both = torch.cat([links, links.flip(0)], 1), torch.cat([kinds, kinds + num_types])
    edges = paired(*both, (num_nodes, 2 * num_types))
    encoder = Encoder(num_nodes, width, 2 * num_types)
    encoder.load_state_dict({name: torch.from_numpy(given[name]) for name in encoder.state_dict()})
    of_types = torch.nn.Parameter(torch.from_numpy(given["types"]))
    parameters = [*encoder.parameters(), of_types]
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    seconds = []

    def scores(z: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        return (z[pairs[0]] * of_types[kinds] * z[pairs[1]]).sum(1)

    for _ in range(steps):
        started = time.perf_counter()
        encoder.train()
        optimizer.zero_grad()
        z = encoder(edges)
        others = negative_sampling(links, num_nodes)
        found = torch.cat([scores(z, links), scores(z, others)])
        wanted = torch.cat([torch.ones(len(kinds)), torch.zeros(len(kinds))])
        loss = functional.binary_cross_entropy_with_logits(found, wanted)
        loss = loss + 1e-2 * (z.pow(2).mean() + of_types.pow(2).mean())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        torch.nn.utils.clip_grad_norm_([of_types], 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - started)
    encoder.eval()
    with torch.no_grad():
        z = encoder(edges)
    np.savez(results, nodes=z.numpy(), types=of_types.detach().numpy(), seconds=seconds)


if __name__ == "__main__":
    main()
