"""Results of a training run: accuracy, time, memory, traffic, padding."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from jaxgraph.cli.display import byte_text, second_text, two_columns

_RATIOS = {"edges": "edge_ratio", "halo rows": "halo_ratio", "nodes": "node_ratio"}
"""The shares that padding adds, by their names in the table."""


def result_summary(history: Any) -> dict[str, Any]:
    """The metrics of the best epoch, and the time that training took."""
    metrics = history.records[history.best_epoch - 1].metrics
    splits = [split for split in ("train", "val", "test") if split in metrics]
    return {
        "evaluation": {split: dict(metrics[split]) for split in splits},
        "epochs": len(history.epoch_seconds),
        "best_epoch": history.best_epoch,
        "median_epoch_seconds": statistics.median(history.epoch_seconds),
        "compile_seconds": history.compile_seconds,
        "history": history.to_dict(),
        "memory_plan": [] if history.memory_plan is None else history.memory_plan.lines(),
    }


def over_seeds(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The means of the metrics of the best epochs, their deviations, and the rows of the seeds."""

    def of_metrics(figure: Callable[[list[float]], float]) -> dict[str, dict[str, float]]:
        splits = [row["evaluation"] for row in rows]
        return {
            split: {name: figure([each[split][name] for each in splits]) for name in metrics}
            for split, metrics in splits[0].items()
        }

    def deviation(values: list[float]) -> float:
        return statistics.stdev(values) if len(values) > 1 else math.nan

    return {
        "evaluation": of_metrics(statistics.fmean),
        "deviation": of_metrics(deviation),
        "compile_seconds": sum(row["compile_seconds"] for row in rows),
        "seeds": list(rows),
    }


def cost_summary(programs: Sequence[Any], sharded: Any, history: Any, steps: int) -> dict[str, Any]:
    """Memory and traffic of one epoch per device (training steps and evaluation), and padding.

    Of several programs the first runs `steps` times an epoch.
    """
    from jaxgraph.analysis import traffic, traffic_by_link

    padding = sharded.padding()
    ratios = {name: getattr(padding, name) for name in _RATIOS.values()}
    found: dict[str, Any] = {"padding": asdict(padding) | ratios}
    if history.needs is not None:
        needs = history.needs
        found["memory_per_device"], found["memory_on_host"] = {"total": needs.device}, needs.host
        found["traffic"] = {"to the device": needs.sent, "back": needs.returned}
    else:
        sizes = max(map(_memory_of, programs), key=lambda each: each["total"])
        sent: Counter[str] = Counter()
        between, hosts = 0, sharded.shards.exchange.hosts
        for program, times in zip(programs, (steps, *[1] * len(programs)), strict=False):
            sent.update({kind: times * count for kind, count in traffic(program).items()})
            if hosts > 1:
                by_link = traffic_by_link(program, sharded.mesh.size // hosts)
                between += times * sum(by_link.between.values())
        found["memory_per_device"], found["traffic"] = sizes, dict(sent)
        if hosts > 1:
            found["bytes_between_hosts"] = between
    return found | {"bytes_sent_per_epoch": sum(found["traffic"].values())}


def _memory_of(program: Any) -> dict[str, int]:
    memory = program.memory_analysis()
    names = {"temporary": "temp", "arguments": "argument", "outputs": "output"}
    sizes = {name: getattr(memory, f"{of}_size_in_bytes") for name, of in names.items()}
    return sizes | {"total": sum(sizes.values()) - memory.alias_size_in_bytes}


def summary_table(result: Mapping[str, Any]) -> Table:
    """The table that ends a training run."""
    options, memory, padding = result["options"], result["memory_per_device"], result["padding"]
    graph = result["graph"]
    on = f"{options['devices']}, parts " if options["mode"] == "stream" else ""
    rest = f", then {options['rest'] or 'domain'}" if options["mode"] == "p3" else ""
    prefetch = " with prefetch" if options["prefetch"] else ""
    cut = f"; interrupted before {options['epochs']}" if result["interrupted"] else ""
    rows = {
        "graph": f"{graph['name']}: {graph['nodes']:,} nodes, {graph['edges']:,} edges",
        "model": f"{options['model']}, {options['layers']} layers, {options['dtype']}",
        "devices": f"{on}{options['parts']}, {options['mode']}{rest}{prefetch}",
    }
    if options["sample"] is not None:
        stale = f", stale by {options['staleness']} steps" if options["staleness"] else ""
        rows["mini-batches"] = f"of {options['batch_size']:,}, fan-outs {options['sample']}{stale}"
    if "seeds" in result:
        seeds = [row["seed"] for row in result["seeds"]]
        rows["seeds"] = f"{len(seeds)}, from {seeds[0]}: means, and deviations over seeds"
    for split, metrics in result["evaluation"].items():
        of_split = result.get("deviation", {}).get(split, {})
        around = {x: f" ± {y:.4f}" for x, y in of_split.items() if not math.isnan(y)}
        texts = (f"{name} {value:.4f}{around.get(name, '')}" for name, value in metrics.items())
        rows[split] = ", ".join(texts)
    if "correct_and_smooth" in result:
        record = result["correct_and_smooth"]
        before, after = record["accuracy"]["before"], record["accuracy"]["after"]
        changes = [f"{split} {before[split]:.4f} to {after[split]:.4f}" for split in after]
        rows["correct and smooth"] = f"accuracy {', '.join(changes)}"
        chosen = [f"{n.replace('_', ' ')} {value}" for n, value in record["options"].items()]
        rows["by validation nodes"] = ", ".join(chosen)
    of_seed = f" of seed {result['seed']}" if "seeds" in result else ""
    best = f"the best one is number {result['best_epoch']}{of_seed}"
    rows["epochs"] = f"{result['epochs']}, {best}{cut}"
    if result.get("resumed"):
        rows["resumed"] = f"after epoch {result['resumed']}"
    rows["median epoch time"] = second_text(result["median_epoch_seconds"])
    if "waited" in result["history"]:
        waited = statistics.median(result["history"]["waited"])
        rows["devices waited"] = f"{waited:.1%} of the time of steps, for mini-batches"
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
    kinds = [f"{name} {byte_text(count)}" for name, count in result["traffic"].items() if count]
    by_kind = f" ({', '.join(kinds)})" if kinds else ""
    rows["bytes sent per epoch"] = byte_text(result["bytes_sent_per_epoch"]) + by_kind
    if "bytes_between_hosts" in result:
        rows["of them between hosts"] = byte_text(result["bytes_between_hosts"])
    rows["padding"] = ", ".join(f"{name} {padding[of]:.3f}" for name, of in _RATIOS.items())
    return two_columns("Training", rows)
