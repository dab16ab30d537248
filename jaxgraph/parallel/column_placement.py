"""The request for features split by column, and the mesh that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jaxgraph.layout.column_tables import ColumnRequest
from jaxgraph.layout.manifest import MODES, ColumnSchedule


def column_request(
    mode: str, options: Mapping[str, Any], node_dtype: np.dtype | None, *, has_target: bool
) -> tuple[ColumnRequest | None, str]:
    """Checks the mode and its options, and returns the request for columns and the schedule."""
    given = [name for name, value in options.items() if value is not None]
    if mode != "p3":
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}; expected one of {', '.join((*MODES, 'p3'))}")
        if given:
            raise ValueError(f"{', '.join(given)}: for mode='p3' only; mode is {mode!r}")
        return None, mode
    rest = options["rest"]
    if rest is not None and rest not in MODES:
        raise ValueError(f"rest is {rest!r}; expected one of {', '.join(MODES)}")
    if has_target:
        raise ValueError(
            "mode='p3' takes no pad_to: how its edges are cut depends on the graph; shard in mode "
            "'sar' or 'domain' where one program is to serve several graphs"
        )
    names = {"topology": "topology", "chunks": "chunks", "budget": "feature_budget"}
    wanted = {name: options[key] for name, key in names.items() if key in given}
    return ColumnRequest(**wanted, node_dtype=node_dtype), "domain" if rest is None else rest


def mesh_of_columns(mesh: Mesh, schedule: ColumnSchedule) -> Mesh:
    """Arranges the devices in rows that each hold every slice of the features once."""
    axis, kind = mesh.axis_names[-1], mesh.axis_types[-1]
    if schedule.replicas == 1:
        return Mesh(mesh.devices.reshape(-1), (axis,), axis_types=(kind,))
    devices = mesh.devices.reshape(schedule.replicas, schedule.groups)
    return Mesh(devices, (f"{axis}_replicas", axis), axis_types=(kind, kind))
