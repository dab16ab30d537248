"""`jaxgraph train --correct-and-smooth`: predictions improved by the labels of training nodes."""

from typing import Any

import numpy as np

from jaxgraph.graph_facts import GraphFacts

_CANDIDATES: dict[str, Any] = {
    "correct_alpha": (0.5, 0.9),
    "smooth_alpha": (0.5, 0.9),
    "autoscale": (True, False),
}


def check_smoothable(facts: GraphFacts) -> None:
    """Refuses a graph whose predictions cannot be smoothed."""
    if facts.multilabel or facts.num_edge_types:
        found = "several labels per node" if facts.multilabel else "edges with types"
        raise ValueError(
            f"--correct-and-smooth: {facts.name} has {found}; expected one class per node, and "
            "edges without types, which --ignore-edge-data drops."
        )


def smoothed(outputs: np.ndarray, sharded: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """Corrected and smoothed predictions, and their record: the choice, and accuracies."""
    from scipy.special import softmax

    from jaxgraph.train import correct_and_smooth
    from jaxgraph.train.smoothing import accuracies

    chosen: dict[str, Any] = {}
    found = correct_and_smooth(
        softmax(outputs, axis=1), sharded, **_CANDIDATES, on_choice=chosen.update
    )
    del chosen["val_accuracy"]
    accuracy = {"before": accuracies(outputs, sharded), "after": accuracies(found, sharded)}
    return found, {"options": chosen, "accuracy": accuracy}
