"""Runs PyTorch Geometric's modules for `benchmarks.correct_and_smooth`, without importing jaxgraph.

    PYTHON benchmarks/peers/pyg_correct_and_smooth.py GRAPH.npz RESULTS.npz

GRAPH.npz holds `senders`, `receivers` int [edges], `labels`, `train` and `predictions` of the
nodes. RESULTS.npz gets the outputs, and the seconds of each run of them.
"""
# pyright: reportMissingImports=false

import sys
import time

import numpy as np
import torch
from torch_geometric.nn.models import CorrectAndSmooth, LabelPropagation

torch.set_num_threads(2)
given = {name: torch.from_numpy(values) for name, values in np.load(sys.argv[1]).items()}
edges = torch.stack([given["senders"].long(), given["receivers"].long()])
train, labels = given["train"], given["labels"].long().clamp(0)
shown = predictions, of_train, train, edges = given["predictions"], labels[train], train, edges
autoscale, fixed = CorrectAndSmooth(50, 0.9, 50, 0.8), CorrectAndSmooth(50, 0.9, 50, 0.8, False)
propagation, results = LabelPropagation(50, 0.9), {}
runs = {
    "autoscale": lambda: autoscale(*shown),
    "fixed scale": lambda: fixed(*shown),
    "label propagation": lambda: propagation(labels, edges, mask=train),
}
for name, run in runs.items():
    seconds = []
    for _ in range(6):
        started = time.perf_counter()
        results[name] = run().numpy()
        seconds.append(time.perf_counter() - started)
    results[f"{name}, seconds"] = np.array(seconds[1:])
np.savez(sys.argv[2], **results)
