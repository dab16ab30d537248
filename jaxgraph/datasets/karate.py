"""Zachary's karate club, built in."""

from __future__ import annotations

import numpy as np

from jaxgraph import transforms
from jaxgraph.graph import Graph

# For each member, the members of a higher number that he met outside of the club; from 0.
_FRIENDS = {
    0: (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 17, 19, 21, 31),
    1: (2, 3, 7, 13, 17, 19, 21, 30),
    2: (3, 7, 8, 9, 13, 27, 28, 32),
    3: (7, 12, 13),
    4: (6, 10),
    5: (6, 10, 16),
    6: (16,),
    8: (30, 32, 33),
    9: (33,),
    13: (33,),
    14: (32, 33),
    15: (32, 33),
    18: (32, 33),
    19: (33,),
    20: (32, 33),
    22: (32, 33),
    23: (25, 27, 29, 32, 33),
    24: (25, 27, 31),
    25: (31,),
    26: (29, 33),
    27: (33,),
    28: (31, 33),
    29: (32, 33),
    30: (32, 33),
    31: (32, 33),
    32: (33,),
}
_NUM_MEMBERS = 34
_INSTRUCTOR, _PRESIDENT = 0, 33
_WITH_THE_INSTRUCTOR = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 19, 21)
# Four of each club: some with many friends, some with few.
_VALIDATION = (3, 6, 11, 16, 14, 23, 27, 31)


def load_karate() -> Graph:
    """Makes Zachary's karate club; its classes are the instructor's (0) and the president's (1).

    The instructor and the president are the training nodes, one of each class; 8 members are for
    validation, 24 for test. There are no features.

    Returns:
        A graph of 34 nodes and 78 undirected edges, with classes and the three masks.

    References:
        Zachary, "An Information Flow Model for Conflict and Fission in Small Groups", Journal of
        Anthropological Research 33, 1977; Kipf and Welling, "Semi-Supervised Classification with
        Graph Convolutional Networks", ICLR 2017, appendix A (the experiment with few labels).
    """
    senders = np.repeat(list(_FRIENDS), [len(friends) for friends in _FRIENDS.values()])
    receivers = np.concatenate([np.array(friends) for friends in _FRIENDS.values()])
    labels = np.ones(_NUM_MEMBERS, np.int32)
    labels[list(_WITH_THE_INSTRUCTOR)] = 0
    train_mask, val_mask = np.zeros((2, _NUM_MEMBERS), bool)
    train_mask[[_INSTRUCTOR, _PRESIDENT]] = True
    val_mask[list(_VALIDATION)] = True
    graph = Graph.from_edges(
        senders,
        receivers,
        num_nodes=_NUM_MEMBERS,
        labels=labels,
        train_mask=train_mask,
        val_mask=val_mask,
        test_mask=~(train_mask | val_mask),
        name="karate",
    )
    return transforms.to_undirected(graph)
