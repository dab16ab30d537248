"""Results of a training run: accuracy, time, memory, traffic, padding."""

import statistics
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rich.table import Table

from jaxgraph.cli.display import byte_text, second_text, two_columns

__all__ = ["cost_summary", "recipe_table", "result_summary", "summary_table"]

_SHOWN = MappingProxyType(
    {
        "model": ("hidden", "layers", "heads", "dropout", "norm"),
        "training": ("lr", "weight_decay", "epochs", "patience"),
    }
)
_PADDING = (
    "edge_slots",
    "edges",
    "edge_ratio",
    "halo_rows_sent",
    "halo_rows_needed",
    "halo_ratio",
    "node_rows",
    "nodes",
    "node_ratio",
)


def recipe_table(graph: str, settings: Mapping[str, Any], chosen: Mapping[str, Any]) -> Table:
    """Makes the table that begins a training run: the settings in use and their sources.

    Args:
        graph: The name of the graph.
        settings: The fields of the `Recipe` in use.
        chosen: Its `source`, the `split`, and in `given` the names of the settings given as
            options.
    """
    features = "rows divided by their sum" if settings["normalize"] else "as read"
    rows = {"source": chosen["source"], "split": chosen["split"], "features": features}
    for title, names in _SHOWN.items():
        present = (name for name in names if settings[name] is not None)
        rows[title] = ", ".join(f"{name.replace('_', ' ')} {settings[name]}" for name in present)
    if chosen["given"]:
        rows["of it by option"] = ", ".join(name.replace("_", " ") for name in chosen["given"])
    return two_columns(f"Recipe: {settings['model']} on {graph}", rows)


def result_summary(history: Any) -> dict[str, Any]:
    """The metrics of the best epoch, and the time that training took.

    Args:
        history: The result of `jaxgraph.train.fit`, of one epoch at least.

    Returns:
        `evaluation` (the metrics after the best epoch, whose parameters the model holds), `epochs`,
        `best_epoch` (from 1), `median_epoch_seconds`, `compile_seconds`, `history`, and in
        `memory_plan` the plan that keeps `--memory-limit`.
    """
    metrics = history.records[history.best_epoch - 1].metrics
    return {
        "evaluation": {
            split: dict(metrics[split]) for split in ("train", "val", "test") if split in metrics
        },
        "epochs": len(history.epoch_seconds),
        "best_epoch": history.best_epoch,
        "median_epoch_seconds": statistics.median(history.epoch_seconds),
        "compile_seconds": history.compile_seconds,
        "history": history.to_dict(),
        "memory_plan": [] if history.memory_plan is None else history.memory_plan.lines(),
    }


def cost_summary(programs: Sequence[Any], sharded: Any, history: Any) -> dict[str, Any]:
    """Memory and traffic of one epoch per device (training step and evaluation), and padding.

    Args:
        programs: The program of an epoch, a `jax.stages.Compiled`, that `jaxgraph.train.fit` runs,
            first.
        sharded: The result of `jaxgraph.parallel.shard`.
        history: The history of the run.

    Returns:
        `memory_per_device` and `traffic`, in bytes, `bytes_between_hosts` of a mesh of several, and
        `padding`, stored over needed. In mode "stream" the traffic is that of the host and the
        device, and `memory_on_host` is of what waits there.
    """
    from jaxgraph.analysis import traffic, traffic_by_link

    if history.needs is not None:
        needs = history.needs
        sent = {"to the device": needs.sent, "back": needs.returned}
        padding = sharded.padding()
        return {
            "memory_per_device": {"total": needs.device},
            "memory_on_host": needs.host,
            "traffic": sent,
            "bytes_sent_per_epoch": sum(sent.values()),
            "padding": {name: getattr(padding, name) for name in _PADDING},
        }
    compiled = programs[0]
    memory = compiled.memory_analysis()
    sent = dict(traffic(compiled))
    hosts, between = sharded.shards.hosts, {}
    if hosts > 1:
        by_link = traffic_by_link(compiled, sharded.mesh.size // hosts)
        between = {"bytes_between_hosts": sum(by_link.between.values())}
    padding = sharded.padding()
    return {
        "memory_per_device": {
            "temporary": memory.temp_size_in_bytes,
            "arguments": memory.argument_size_in_bytes,
            "outputs": memory.output_size_in_bytes,
            "total": memory.temp_size_in_bytes
            + memory.argument_size_in_bytes
            + memory.output_size_in_bytes
            - memory.alias_size_in_bytes,
        },
        "traffic": sent,
        "bytes_sent_per_epoch": sum(sent.values()),
        **between,
        "padding": {name: getattr(padding, name) for name in _PADDING},
    }


def summary_table(result: Mapping[str, Any]) -> Table:
    """The table that ends a training run.

    Args:
        result: The union of `result_summary`, `cost_summary` and the `options` of the run.
    """
    options, memory, padding = result["options"], result["memory_per_device"], result["padding"]
    rows = {
        "graph": f"{result['graph']['name']}: {result['graph']['nodes']:,} nodes, "
        f"{result['graph']['edges']:,} edges",
        "model": f"{options['model']}, {options['layers']} layers, {options['dtype']}",
        "devices": (f"{options['devices']}, parts " if options["mode"] == "stream" else "")
        + f"{options['parts']}, {options['mode']}"
        + (f", then {options['rest'] or 'domain'}" if options["mode"] == "p3" else "")
        + (" with prefetch" if options["prefetch"] else ""),
    }
    for split, metrics in result["evaluation"].items():
        shown = (f"{name} {value:.4f}" for name, value in metrics.items())
        rows[split] = ", ".join(shown)
    rows["epochs"] = f"{result['epochs']}, the best one is number {result['best_epoch']}" + (
        f"; interrupted before {options['epochs']}" if result["interrupted"] else ""
    )
    if result.get("resumed"):
        rows["resumed"] = f"after epoch {result['resumed']}"
    rows["median epoch time"] = second_text(result["median_epoch_seconds"])
    rows["compile time"] = second_text(result["compile_seconds"])
    for move in result["history"].get("measured", {}).get("moves", ()):
        gains = [second_text(move["predicted_gain"])]
        if move["measured_gain"] is not None:
            gains.append(f"measured {second_text(move['measured_gain'])}")
        rows[f"moved after epoch {move['epoch']}"] = f"an epoch saves, predicted {', '.join(gains)}"
    rows["memory per device"] = byte_text(memory["total"])
    if "temporary" in memory:
        rows["memory per device"] += f", of which temporary {byte_text(memory['temporary'])}"
    if "memory_on_host" in result:
        rows["activations on the host"] = byte_text(result["memory_on_host"])
    if result["memory_plan"]:
        rows["memory plan"] = "\n".join(result["memory_plan"])
    by_collective = ", ".join(
        f"{name} {byte_text(count)}" for name, count in result["traffic"].items() if count
    )
    rows["bytes sent per epoch"] = byte_text(result["bytes_sent_per_epoch"]) + (
        f" ({by_collective})" if by_collective else ""
    )
    if "bytes_between_hosts" in result:
        rows["of them between hosts"] = byte_text(result["bytes_between_hosts"])
    rows["padding"] = (
        f"edges {padding['edge_ratio']:.3f}, halo rows {padding['halo_ratio']:.3f}, "
        f"nodes {padding['node_ratio']:.3f}"
    )
    return two_columns("Training", rows)
