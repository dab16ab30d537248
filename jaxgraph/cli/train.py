"""`jaxgraph train`: partitions a graph, shards it over devices and trains a model on it."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from jaxgraph.cli.command import option_name
from jaxgraph.cli.devices import mesh_of, start_share
from jaxgraph.cli.display import EpochBar, Output, two_columns
from jaxgraph.cli.graphs import graph_summary, load_typed
from jaxgraph.cli.info import versions
from jaxgraph.cli.options import SETTLED, ProcessOptions, TrainOptions
from jaxgraph.cli.process_group import ProcessGroup, joined
from jaxgraph.cli.recipes import Recipe, build_model, chosen_recipe, optimizer_of, prepared
from jaxgraph.cli.result_files import write_json, write_predictions
from jaxgraph.cli.sampling import check_sampled, dense, loader_of
from jaxgraph.cli.smoothing import check_smoothable, smoothed
from jaxgraph.cli.summary import cost_summary, over_seeds, result_summary, summary_table
from jaxgraph.graph import Graph
from jaxgraph.graph_arrays import LABEL_COLUMNS
from jaxgraph.graph_facts import GraphFacts, TypedFacts, facts_of, facts_of_typed
from jaxgraph.launch.signals import Signals, end_at_once, say
from jaxgraph.layout.part_files import PartFolder, open_parts
from jaxgraph.layout.schema import NODE_PREFIX
from jaxgraph.partition import partition
from jaxgraph.run_log import check_log
from jaxgraph.transforms import with_label_columns
from jaxgraph.typed_graph import TypedGraph
from jaxgraph.written_file import check_writable, write_each

if TYPE_CHECKING:
    from jax.sharding import Mesh

_OF_PROCESS = {field.name for field in fields(ProcessOptions)}
_OF_PROCESS |= {"data_dir", "dataset", "folder", "json", "log", "node_data", "partition"}
_OF_PROCESS |= {"predictions", "profile", "profile_epochs", "resume", "source", "traceback"}
"""Options, and the source of a recipe, that may differ between the processes of a run."""
_LOWER = "Use a smaller --lr; JAX_DEBUG_NANS=1 in the environment shows where it starts."
_FEW_NODES = 100
"""Nodes of a part, below which a limit of memory has cut the graph into very many parts."""


class _Ending:
    """Acts on signals: at once before the first epoch, after an epoch from then on."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.has_results = False

    def __call__(self, number: int) -> None:
        if not self.has_results:
            end_at_once(number)
        if self.received is not None:
            end_at_once(number, "Ended at once.")
        self.received = number
        say("Ending after this epoch; Ctrl-C again ends at once, and saves nothing.")


@dataclass(frozen=True, eq=False)
class _Run:
    """A model on a graph, with all that says how it is trained.

    Args:
        options: The options, with their defaults.
        settings: The recipe.
        facts: The facts of the graph.
        source: The graph and its parts, or the folder of parts that a process reads its own of.
    """

    options: TrainOptions
    settings: Recipe
    facts: GraphFacts
    source: tuple[Graph | TypedGraph, Any] | PartFolder

    def place(self, mesh: "Mesh") -> Any:
        """Places the parts on the devices of a mesh."""
        from jaxgraph import parallel

        how = self.options.named("mode", "prefetch", "folder")
        how["node_dtype"] = self.options.dtype if self.facts.num_features else None
        if isinstance(self.source, PartFolder):
            return parallel.place(self.source, mesh, **how)
        how |= self.options.named("rest", "topology", "chunks")
        if self.options.message_flow:
            how["message_flow"] = self.settings.layers
        return parallel.shard(*self.source, mesh, **how)

    def arrays(self) -> dict[str, Any]:
        """The data that is equal in all processes, by name: arrays, or checksums of their files."""
        if isinstance(self.source, PartFolder):
            contents = self.source.contents
            parts = [part.arrays for part in contents.parts]
            found = {name: [arrays[name] for arrays in parts] for name in parts[0]}
            return found | {"row_lengths": contents.row_lengths}
        graph, parts = self.source
        if isinstance(graph, TypedGraph):
            sets = {**graph.node_sets, **graph.edge_sets}
            found = {str(name): {**vars(each)} for name, each in sets.items()}
            return found | {"partition": {name: x.assignment for name, x in parts.items()}}
        arrays = {name: value for name, value in vars(graph).items() if name != "name"}
        return arrays | {"partition": parts.assignment}

    def node_names(self) -> Any:
        """The names of all nodes, or None."""
        if isinstance(self.source, PartFolder):
            return self.source.node_names()
        graph = self.source[0]
        if isinstance(graph, TypedGraph):
            return graph.node_sets[str(graph.target)].node_names
        return graph.node_names


def run_train(options: TrainOptions) -> None:
    """Train a model on a graph that is sharded over devices.

    Ctrl-C and SIGTERM end it after the current epoch, with the summary of the epochs so far.
    """
    ending = _Ending()
    with Signals(ending), joined(options) as group:
        if group.is_first:
            check_writable("--json", options.json)
            check_writable("--predictions", options.predictions)
        if options.log is not None:
            check_log("--log", options.log)
        if options.profile is not None:
            try:
                options.profile.mkdir(exist_ok=True)
            except OSError as error:
                raise ValueError(
                    f"--profile: {options.profile} is no folder, and none can be made there."
                ) from error
            check_writable("--profile", options.profile / "trace")
        run = _read(options, group)
        if options.correct_and_smooth:
            check_smoothable(run.facts)
        _check_alike(run, group)
        output = Output()
        if run.options.mode == "auto":
            run = _planned(run, group)
            prefetch = " with prefetch" if run.options.prefetch else ""
            output.print(f"mode: {run.options.mode}{prefetch}")
        recipe = {name.replace("_", " "): value for name, value in asdict(run.settings).items()}
        output.print(two_columns(f"Recipe on {run.facts.name}", recipe))
        result, writes = _train(run, group, ending, output)
        if options.json is not None and group.is_first:
            writes.append(partial(write_json, options.json, result))
        try:
            write_each(*writes)
        finally:
            output.print(summary_table(result))
        if result["diverged"] is not None:
            raise FloatingPointError(result["diverged"])
    if ending.received is not None:
        raise typer.Exit(128 + ending.received)


def _check_alike(run: _Run, group: ProcessGroup) -> None:
    """Refuses a run whose processes have other options, or another graph, than the first."""
    if group.count == 1:
        return
    options = run.options
    start_share(max(options.devices or options.parts or 1, group.count), group.count)
    from jaxgraph.train.agreement import check_alike
    from jaxgraph.train.identity import definition

    chosen = asdict(options) | asdict(run.settings)
    chosen["checkpoint"] = options.checkpoint is not None
    alike = {option_name(name): x for name, x in chosen.items() if name not in _OF_PROCESS}
    alike |= {"versions": {**versions(), "python": ""}} | run.arrays()
    entries = {name: definition(value) for name, value in alike.items()}
    check_alike(entries, "Give all processes the same options, and the same graph.")


def _read(options: TrainOptions, group: ProcessGroup) -> _Run:
    """Reads and partitions the graph, or opens its folder."""
    if options.partition is not None:
        return _opened(options, options.partition, group)
    settings = chosen_recipe(options, str(options.dataset))
    mode, partitioner = options.mode or "sar", options.partitioner or "metis"
    finds_parts = mode == "stream" and options.memory_limit and options.parts is None
    devices = options.devices
    if devices is None and (mode == "stream" or options.parts is None):
        devices = group.default_parts()
    options = replace(
        options,
        mode=mode,
        partitioner=partitioner,
        devices=devices if mode == "stream" else None,
        parts=None if finds_parts else options.parts or devices,
    )
    loaded = load_typed(options)
    if settings.model == "rgcn" and isinstance(loaded, Graph) and loaded.edge_type is not None:
        loaded = TypedGraph.of(loaded)
    if isinstance(loaded, TypedGraph):
        return _of_types(options, settings, loaded)
    graph = prepared(settings, loaded)
    divided = settings.normalize and graph.nodes is not None
    if options.sample is not None:
        graph = dense(graph, says=group.is_first)
    if options.labels_as_inputs is not None:
        graph = with_label_columns(graph)
    facts = facts_of(graph, dataset=options.dataset, normalized=divided)
    _check_trainable(facts)
    if options.sample is not None:
        check_sampled(options, settings, facts, options.parts or 1)
    how: dict[str, Any] = {"method": partitioner, "seed": options.seed, "order": options.order}
    if not finds_parts:
        parts = partition(graph, options.parts or 1, **how)
        return _Run(options, settings, facts, (graph, parts))
    from jaxgraph.planner import fewest_parts

    model = build_model(settings, facts, options.seed, options.dtype)
    how["mesh"] = mesh_of(devices or 1, group.count)
    optimizer, limit = optimizer_of(settings), str(options.memory_limit)
    parts = fewest_parts(model, graph, optimizer, limit, task=_task_of(options), **how)
    options = replace(options, parts=parts.num_parts)
    _warn_of_many_parts(options, facts, group)
    return _Run(options, settings, facts, (graph, parts))


def _task_of(options: TrainOptions) -> Any:
    """The task to learn; None: node classification."""
    from jaxgraph.train import MaskedLabelPrediction

    shown = options.labels_as_inputs
    return None if shown is None else MaskedLabelPrediction(shown=shown)


def _of_types(options: TrainOptions, settings: Recipe, graph: TypedGraph) -> _Run:
    """A run on a graph whose edges have types, of one set of nodes and one of edges."""
    if options.mode not in ("sar", "domain") or options.repartition is not None:
        raise ValueError(
            f"{graph.name} has typed edges, which are trained on with --mode sar or --mode domain, "
            "and without --repartition."
        )
    options.refuse(["labels_as_inputs", "sample"], f"not for {graph.name}, whose edges have types.")
    facts = facts_of_typed(graph, dataset=options.dataset).of_one()
    if "train" not in facts.splits:
        raise ValueError(f"{facts.name} has no training nodes.")
    how: dict[str, Any] = {"seed": options.seed, "order": options.order}
    parts = partition(graph, options.parts or 1, method=str(options.partitioner), **how)
    return _Run(options, settings, facts, (graph, parts))


def _opened(options: TrainOptions, path: Any, group: ProcessGroup) -> _Run:
    """Opens a folder of parts, whose graph and mode are settled."""
    settled = SETTLED if options.mode == "stream" else SETTLED | {"mode"}
    options.refuse(sorted(settled), f"settled when the parts in {path} were written; leave it out.")
    folder = open_parts(path)
    facts, columns = folder.graph, folder.manifest.columns
    has_columns = f"{NODE_PREFIX}{LABEL_COLUMNS}" in folder.contents.parts[0].arrays
    if has_columns and options.labels_as_inputs is None:
        raise ValueError(
            f"--partition: the parts in {path} have label columns; give --labels-as-inputs 0.5."
        )
    if not has_columns:
        options.refuse(
            ["labels_as_inputs"],
            f"the parts in {path} have no label columns; give --dataset instead of --partition, or "
            "write parts of jaxgraph.transforms.with_label_columns(graph).",
        )
    is_typed = isinstance(facts, TypedFacts)
    facts = facts.of_one() if is_typed else facts
    settings = chosen_recipe(options, str(facts.dataset))
    options = replace(
        options,
        parts=folder.num_parts,
        mode=options.mode or folder.mode,
        devices=(options.devices or group.default_parts()) if options.mode else None,
        rest=None if columns is None else folder.manifest.mode,
        topology=None if columns is None else columns.topology,
        chunks=None if columns is None else columns.chunks,
    )
    settings = replace(settings, normalize=facts.normalized)
    if not is_typed:
        _check_trainable(facts)
    return _Run(options, settings, facts, folder)


def _planned(run: _Run, group: ProcessGroup) -> _Run:
    """The run with the mode that is predicted to be fastest, its settings, and its parts.

    On one device a limit of memory decides whether the graph is streamed.
    """
    from jaxgraph.planner import choose

    options = run.options
    assert not isinstance(run.source, PartFolder)
    graph, on_one = run.source[0], options.parts == 1
    assert isinstance(graph, Graph)
    mesh = mesh_of(options.parts or 1, group.count, options.hosts)
    plan = choose(
        build_model(run.settings, run.facts, options.seed),
        graph,
        mesh,
        optimizer_of(run.settings),
        methods=(str(options.partitioner),),
        memory_limit=options.memory_limit if on_one else None,
        task=_task_of(options),
        compile=on_one and options.memory_limit is not None,
    )
    chosen: dict[str, Any] = {**plan.shard_options(), "parts": plan.num_parts}
    if plan.mode != "stream":
        return replace(run, options=replace(options, **chosen, folder=None))
    options = replace(options, **chosen, devices=options.parts)
    _warn_of_many_parts(options, run.facts, group)
    return replace(run, options=options, source=(graph, plan.partition(graph, options.seed)))


def _warn_of_many_parts(options: TrainOptions, facts: GraphFacts, group: ProcessGroup) -> None:
    parts = options.parts or 1
    if group.is_first and parts > 1 and facts.num_nodes < _FEW_NODES * parts:
        say(
            f"Warning: --memory-limit {options.memory_limit} cuts {facts.num_nodes:,} nodes into "
            f"{parts} parts, and an epoch visits every pair of them; a larger limit is faster."
        )


def _check_trainable(facts: GraphFacts) -> None:
    if not facts.num_classes:
        raise ValueError(
            f"{facts.name} has no labels; training needs a class for each node. A file of edges "
            "gets them by the column label of --node-data nodes.csv (for another name add --option "
            "label_column=NAME), or by jaxgraph partition --process-memory 2GB --node-data FOLDER "
            "--out PARTS."
        )
    words = {"train": "training", "val": "validation"}
    lacking = [word for split, word in words.items() if split not in facts.splits]
    if lacking:
        advice = "--labels-per-class 20 draws a split."
        if "train" in facts.splits:
            advice = "mark some nodes with a label as val in the column split of --node-data."
        raise ValueError(f"{facts.name} has no {' and no '.join(lacking)} nodes; {advice}")


def _train(
    run: _Run, group: ProcessGroup, ending: _Ending, output: Output
) -> tuple[dict[str, Any], list[Callable[[], None]]]:
    """Trains, and returns the result to show and write, and the write of the predictions."""
    group.heartbeat.enter("place")
    # Imported late, so that a wrong name or a missing file is reported without waiting for jax.
    import jax

    from jaxgraph import train

    options, settings, facts = run.options, run.settings, run.facts
    if options.dtype == "float64":
        # The command owns the process.
        jax.config.update("jax_enable_x64", True)
    mesh = mesh_of(options.devices or options.parts or 1, group.count, options.hosts)
    source = sharded = run.place(mesh)
    if options.sample is not None:
        graph: Any = run.source[0]  # pyright: ignore[reportIndexIssue]
        source = loader_of(options, graph, sharded)
    steps = 1 if source is sharded else len(source) + options.staleness
    hosts, log = sharded.shards.exchange.hosts, None
    if options.log is not None:
        per_host = mesh.size // hosts if hosts > 1 else None
        log = train.EpochLog(options.log, per_host=per_host, steps=steps)
    programs: list[Any] = []
    ended: list[Any] = []
    share = sharded.parts.moved.share_of_epoch if sharded.is_streamed else None
    trace = ExitStack()

    def begin(compiled: Sequence[Any]) -> None:
        if programs:  # Those of the first seed, which the others run, too.
            return
        programs.extend(compiled)
        group.meet()
        if log is not None:
            log.compiled(compiled)
        if options.profile is not None:
            # Processes of one host would write the same file.
            name = f"process-{group.index}" if group.count > 1 else "."
            trace.enter_context(jax.profiler.trace(options.profile / name))
        group.heartbeat.enter("epoch", 1)
        ending.has_results = True

    further: dict[str, Any] = {"task": _task_of(options)}
    if options.checkpoint is not None:
        every, resume = options.checkpoint_every, options.resume
        further["checkpoint"] = train.Checkpoints(options.checkpoint, every, resume=resume)
    if options.repartition is not None:
        assert not isinstance(run.source, PartFolder)
        graph: Any = run.source[0]
        further |= {"source": graph, "repartition": options.repartition}

    def fit(model: Any, seed: int) -> Any:
        if options.seeds > 1:
            output.print(f"seed {seed}")
        if source is not sharded:
            source.seed = seed
        bar = EpochBar(settings.epochs, output, share)

        def end_epoch(record: Any) -> None:
            ended.append(record)
            bar.update(record)
            if log is not None:
                log(record)
            if len(ended) == options.profile_epochs:
                trace.close()
            if ending.received is not None:
                raise KeyboardInterrupt
            if record.epoch < settings.epochs:
                of_seeds = (seed - options.seed) * settings.epochs
                group.heartbeat.enter("epoch", of_seeds + record.epoch + 1)

        with bar, trace:
            return train.fit(
                model,
                source,
                optimizer_of(settings),
                epochs=settings.epochs,
                staleness=options.staleness,
                seed=seed,
                memory_limit=options.memory_limit,
                patience=settings.patience or None,
                on_epoch=end_epoch,
                on_compile=begin,
                **further,
            )

    group.heartbeat.enter("compile")
    try:
        trained = _with_seeds(run, fit, ending)
    finally:
        group.heartbeat.enter("evaluate")
    writes: list[Callable[[], None]] = []
    smoothing, smooths = {}, options.correct_and_smooth and trained.diverged is None
    if options.predictions is not None or smooths:
        outputs = train.predict(trained.model, sharded)
        if smooths:
            outputs, record = smoothed(outputs, sharded)
            smoothing = {"correct_and_smooth": record}
        if options.predictions is not None and group.is_first:
            table = (options.predictions, outputs, run.node_names(), facts.multilabel)
            writes.append(partial(write_predictions, *table))
    result = {
        "versions": versions(),
        "options": asdict(options) | asdict(settings),
        "graph": graph_summary(facts),
        "interrupted": trained.is_cut,
        "diverged": trained.diverged,
        "resumed": trained.history.resumed,
        **trained.result,
        **(over_seeds(trained.rows) if options.seeds > 1 else {}),
        **smoothing,
        **cost_summary(programs, sharded, trained.history, steps),
    }
    return result, writes


@dataclass(frozen=True, eq=False)
class _Trained:
    """The model of the seed with the lowest validation loss, and the results of all seeds.

    Args:
        model: The model.
        history: Its history.
        result: Its result.
        rows: The results of all seeds.
        is_cut: Whether a signal ended the run before its last epoch.
        diverged: The loss that ended it, or None.
    """

    model: Any
    history: Any
    result: dict[str, Any]
    rows: list[dict[str, Any]]
    is_cut: bool
    diverged: str | None


def _with_seeds(run: _Run, fit: Callable[[Any, int], Any], ending: _Ending) -> _Trained:
    """Trains a model with each seed; of several, one whose epochs were ended early is left out."""
    from jaxgraph import train

    options, epochs = run.options, run.settings.epochs
    seeds = range(options.seed, options.seed + options.seeds)
    rows: list[dict[str, Any]] = []
    best: tuple[float, Any, Any, dict[str, Any]] | None = None
    diverged, is_ended, is_cut = None, False, False
    for seed in seeds:
        model = build_model(run.settings, run.facts, seed, options.dtype)
        try:
            history = fit(model, seed)
        except train.TrainingInterrupted as error:
            ending.received = error.number or ending.received
            history, is_ended = error.history, True
            is_cut = len(history.records) < epochs or seed != seeds[-1]
        except train.DivergenceError as error:
            of_seed = f"seed {seed}, " if len(seeds) > 1 else ""
            history, is_ended, diverged = error.history, True, f"{of_seed}{error.loss}. {_LOWER}"
            if not (history.records or rows):
                raise FloatingPointError(diverged) from error
        if not rows or not is_ended or len(history.records) == epochs:
            rows.append({"seed": seed, **result_summary(history)})
            assert history.state is not None
            val_loss = float(history.state.best_val_loss)
            if best is None or val_loss < best[0]:
                best = val_loss, model, history, rows[-1]
        if is_ended:
            break
    assert best is not None
    return _Trained(*best[1:], rows, is_cut, diverged)
