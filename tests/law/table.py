"""The rows of the law: the models, layouts, modes and data that meet, and in which tier."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import pytest

from jaxgraph.ops.cpu.library import missing
from tests.covering import cover
from tests.oracles.models import Model
from tests.training import MODES, P3_MODES


class Case(NamedTuple):
    """One row of the matrix; its fields are the factors."""

    model: str
    layout: str
    method: str
    mode: str
    implementation: str
    dropout: float
    features: str

    @property
    def parts(self) -> int:
        return int(self.layout.partition("on")[0])

    @property
    def hosts(self) -> int:
        hosts, by, _ = self.layout.partition("on")[2].partition("x")
        return int(hosts) if by else 1

    @property
    def devices(self) -> int:
        return math.prod(map(int, self.layout.partition("on")[2].split("x")))

    @property
    def name(self) -> str:
        return "-".join(map(str, self))


FACTORS: dict[str, Sequence[Any]] = {
    "model": ("gcn", "sage", "gat", "gatv2", "gin"),
    "layout": ("1on1", "2on2", "3on3", "4on4", "8on8", "6on2", "4on2x2"),
    "method": ("hash", "equal-edges", "metis", "reordered"),
    "mode": (*MODES, "stream"),
    "implementation": ("xla",) if missing() else ("cpu", "xla"),
    "dropout": (0.4, 0.0),
    "features": ("dense", "sparse", "with-edge-data"),
}
"""A layout is parts on devices, or on hosts x devices. "reordered": by hash, the nodes of each part
in another order. Edge data is weights, or features for attention."""


OTHER_MODELS = {
    "gcn-residual": Model("gcn", residual=True, norm="layer", dropout=0.2),
    "gcn-no-loops": Model("gcn", add_self_loops=False, activation="elu"),
    "gcn-jumping": Model("gcn", jumping="cat", norm="batch", residual=True, dropout=0.2),
    "sage-max": Model("sage", reduce="max", residual=True, norm="batch"),
    "gat-layer-norm": Model("gat", 3, residual=True, norm="layer", activation="elu", dropout=0.3),
    "gat-jumping": Model("gat", 2, jumping="max", activation="elu", dropout=0.2),
    "gatv2-no-loops": Model("gatv2", 2, add_self_loops=False, norm="layer"),
    "gin-plain": Model("gin", dropout=0.3),
    "gine": Model("gine", norm="batch", dropout=0.4, activation="elu", edge_features=2),
    "transformer": Model("transformer", 2, residual=True, norm="batch", dropout=0.3),
    "pna": Model("pna", norm="batch", residual=True, dropout=0.2),
    "appnp": Model("appnp", norm="layer"),
    "gcnii": Model("gcnii", dropout=0.2, activation="elu"),
    "gcnii-jumping": Model("gcnii", jumping="cat", norm="batch", dropout=0.2),
}
NUM_LAYERS = {"gcn-jumping": 3, "gat-layer-norm": 3, "sage-max": 3, "gcnii-jumping": 4}


def exists(case: Case) -> bool:
    """True where the library has the combination: P3 gives every device its own columns."""
    return case.mode not in P3_MODES or case.parts == case.devices


def seconds(case: Case) -> float:
    """A rough time of the case, by which the matrix prefers cheap cases."""
    attention = case.model.startswith("gat")
    unrolled = case.mode in ("prefetch", "stream", "p3-sar", "p3-sar-pushed")
    return (
        (1 + attention)
        * (1 + (2 + attention) * (case.implementation == "xla"))
        * (1 + case.parts * unrolled / 4)
        * (1 + (case.mode == "stream"))
    )


CASES = [case for case in map(Case._make, product(*FACTORS.values())) if exists(case)]
PAIRS = cover([case for case in CASES if seconds(case) <= 8], 2, cost=seconds)
"""Cases in which every two values of different factors meet."""
EVERY_MODE = FACTORS["mode"]


def triples() -> list[Case]:
    """Cases in which every three values of different factors meet."""
    return cover(CASES, 3, first=PAIRS, cost=seconds)


def one_mode_each(names: Sequence[str], modes: Sequence[str] = EVERY_MODE) -> list[Any]:
    """A row of every name and mode; of each name one is core, so that all modes take turns."""
    return [
        pytest.param(name, mode, marks=() if at == index % len(modes) else pytest.mark.slow)
        for index, name in enumerate(names)
        for at, mode in enumerate(modes)
    ]
