"""Mistakes on the command line: each is one line, in words of the command, before any work."""

import shlex
from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import refused, run

SBM = "--dataset sbm --num-nodes 200 --num-classes 4"
KARATE, TWO = "train --dataset karate", "--num-processes 2 --process-id"
CUT = "partition --dataset EDGES --parts 2"
BOUNDED = f"{CUT} --out OUT --process-memory 2GB"
COUNTS = "--num-nodes 2e4 --num-edges 2e5 --num-features 16 --num-classes 4"
MISTAKES: dict[str, dict[str, str]] = {
    f"train {SBM} --layers 1": {
        "--model gta": "Did you mean 'gat'?",
        "--partitioner metsi": "--partitioner: got 'metsi'; expected one of hash,",
        "--parts 500": "num_parts: got 500 for a graph of 200 nodes",
        "--model gcn --heads 4": "no attention heads",
        "--memory-limit '16 quarks'": "--memory-limit: got '16 quarks'; expected an amount of",
        "--labels-as-inputs 1": "--labels-as-inputs: got 1.0; expected a number of at most 0.99",
        "--dropout 1.5": "--dropout: got 1.5; expected a number of at most 1.",
        "--lr nan": "--lr: got nan; expected",
        "--lr inf": "--lr: got inf; expected",
        "--lr -1": "--lr: got -1.0; expected",
        "--mode domain --prefetch": "prefetch=True needs mode='sar'",
        "--mode auto --message-flow": "--message-flow: not for --mode auto; expected",
        "--mode p3 --message-flow": "mode is 'p3', and message_flow is 1; expected one of 'sar'",
        "--rest sar": "--rest: for mode='p3' only; mode is 'sar'",
        "--devices 2": "--devices: for --mode stream only; the mode is sar",
        "--labels-per-class 90": "labels_per_class + val_per_class = 120, but class",
        "--data-dir missing": "--data-dir: missing is no folder",
        "--json missing/out.json": "--json: there is no folder missing",
        "--dataset corra": "name: no data set 'corra'; did you mean 'cora'?",
        "--log FULL/thesis.tex": "is no log of training",
        "--profile FULL/thesis.tex": "--profile:",
        "--profile /proc/none": "--profile: /proc/none is no folder, and none can be made",
        "--profile-epochs 0": "--profile-epochs: got 0",
        "--seeds 0": "--seeds: got 0; expected at least 1",
        "--seeds 3 --seed 4294967294": "--seeds: got 3 seeds from 4294967294; expected the last",
        "--seeds 3 --checkpoint RUN --log LOG": "--checkpoint, --log: for one run, and --seeds 3",
        "--parts 4 --hosts 3": "hosts=3 do not have equally many of 4",
        "--predictions FULL": "--predictions: FULL is a folder",
        "--batch-size 64 --sample-cache 1MB": "--batch-size, --sample-cache: for mini-batches; add",
        "--sample 15,10,5": "--sample: got 3 fan-outs for 1 layers; expected one for each",
        "--sample 15,0": "--sample: got '15,0'; expected the most neighbours of each layer",
        "--sample 5 --sample-method labour": "Did you mean 'labor'?",
        "--sample 5 --sample-cache lots": "--sample-cache: got 'lots'; expected an amount of",
        "--sample 5 --batch-size 0": "--batch-size: got 0; expected at least 1",
        "--sample 5 --mode p3 --sample-cache 1MB": "--sample-cache: not for --mode p3, where no",
        "--sample 5 --mode stream": "--sample: for --mode sar, domain or p3; the mode is stream",
        "--sample 5 --mode auto": "--sample: for --mode sar, domain or p3; the mode is auto",
        "--mode p3 --staleness 3": "--staleness: for mini-batches; add the fan-outs of layers",
        "--sample 5 --staleness 3": "--staleness: got 3 for --mode sar; expected 0, or --mode p3",
        "--sample 5 --mode p3 --staleness 2": "--staleness: got 2; expected 0, or 3 with --mode",
        "--sample 5 --mode p3 --staleness -1": "--staleness: got -1; expected at least 0",
        "--sample 5 --message-flow": "--message-flow: for steps over the whole graph; leave it out",
        "--sample 5 --memory-limit 1GB": "A smaller --batch-size needs less memory",
        "--sample 5 --repartition auto": "--repartition: for steps over the whole graph",
        "--sample 5 --model appnp": "--sample: appnp reads one neighbourhood many times",
        "--sample 5 --norm batch --parts 2": "--norm: batch has the statistics of a batch, whose",
    },
    "train": {
        "--dataset EDGES": "A file of edges gets them by the column label of --node-data",
        "--dataset EDGES --node-data FULL": "--node-data: FULL is no file; expected a table of",
        "--dataset EDGES --node-data TABLE": "no validation nodes; mark some nodes with a label",
        "--dataset karate --node-data FULL": "--node-data: no option of the data set 'karate'",
        "--dataset aifb --node-data FULL": "--node-data: not for aifb, whose edges have types",
    },
    KARATE: {
        "--num-processes 2": "--coordinator, --num-processes, --process-id: expected all three",
        "--num-processes 1 --process-id 1": "--process-id: got 1; expected 0 to 0",
        f"--coordinator h {TWO} 0": "--coordinator: got 'h'; expected HOST:PORT",
        "--step-timeout nan": "--step-timeout: got nan",
        "--sample 5,5": "--sample: karate has no features",
        "--heartbeat-fd 999": "--heartbeat-fd: 999 is no socket",
    },
    "launch": {
        "-n 2 -- plan": "launch: got the command 'plan'; expected train",
        "-n 0 -- train": "--num-processes: got 0; expected at least 1",
        f"-n 2 -- {KARATE} --coordinator h:1 {TWO} 0": "leave these out",
    },
    "train --partition PARTS": {
        "--mode domain": "--mode: settled when the parts in PARTS were written",
        "--undirected --parts 4": "--parts, --undirected: settled when",
        "--normalize": "--normalize: settled when",
        "--repartition auto": "--repartition: settled when",
        "--message-flow": "--message-flow: settled when",
        "--sample 5,5": "--partition: --sample draws from a whole graph; give --dataset",
        "--dataset karate": "--dataset, --partition: expected one of them",
        "--labels-as-inputs 0.5": "--labels-as-inputs: the parts in PARTS have no label columns",
        "--model gine": "--model: gine reads features of edges, and karate has none",
    },
    f"partition {SBM} --parts 2": {
        "--partitioner metsi": "Did you mean 'metis'?",
        "--parts 201": "num_parts: got 201 for a graph of 200 nodes",
        "--option homofily=1": "did you mean 'homophily'?",
        "--json missing/out.json": "there is no folder missing",
        "--mode domain --raw": "--mode, --normalize: for parts that are written; add --out",
        "--out FULL": "holds 'thesis.tex' and no parts of a graph",
    },
    CUT: {
        "--out OUT --mode p3": "mode='p3' splits node features by column, and the graph has none",
        "--out OUT --node-data FULL": "--process-memory",
        "--process-memory 2GB --partitioner hash": "--out",
        "--out OUT --partitioner hash --process-memory 1MB": "takes 268,435,456",
    },
    BOUNDED: {"": "cut by one of hash"},
    f"{BOUNDED} --partitioner hash": {
        "--mode p3": "mode='p3'",
        "--order rcm": "--order",
        "--labels-per-class 5": "--labels-per-class",
        "--option format=text": "format",
        "--dataset cora": "no file or folder",
    },
    "plan": {
        f"{COUNTS} --target cpu --sample 5": "--sample: draws from a graph; give --dataset",
        f"{SBM} --target cpu --batch-size 5": "--batch-size: for mini-batches; add the fan-outs",
        f"{SBM} --target cpu --sample 5 --save OUT": "--save: for steps over the whole graph",
        f"{SBM} --target cpu --layers 2 --sample 5": "--sample: got 1 fan-outs for 2 layers",
        "--dataset karate --target cpu --layers 1 --sample 5": "--sample: karate has no features",
        f"{COUNTS} --target h20x8": "Did you mean 'h200'?",
        f"{COUNTS} --target cpux2 --num-nodes -5": "--num-nodes: got -5",
        "--num-nodes 5 --target cpu": "--num-features, --num-classes: missing",
        f"{COUNTS} --dataset cora --target cpu": "--num-edges: for a graph by its",
        f"{COUNTS} --target cpu --memory-limit 12XB": "as 16GB, 80GiB or a whole",
    },
    "plot": {
        "LOG -o curves": "ends in none of .png",
        "LOG -o a.png": "holds no epoch",
        "missing.jsonl -o a.png": "No such file",
    },
}


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    names = ("OUT", "FULL", "EDGES", "TABLE", "PARTS", "LOG")
    found = {name: tmp_path / name.lower() for name in names}
    found["EDGES"], found["LOG"] = tmp_path / "a.csv", tmp_path / "a.jsonl"
    found["FULL"].mkdir()
    (found["FULL"] / "thesis.tex").write_text("mine\n")
    found["LOG"].touch()
    ends = np.random.default_rng(0).integers(0, 90, (700, 2)).tolist()
    found["EDGES"].write_text("source,target\n" + "".join(f"u{a},u{b}\n" for a, b in ends))
    rows = "".join(f"u{i},{i % 2},{'train' if i < 9 else 'test'}\n" for i in range(90))
    found["TABLE"].write_text(f"id,label,split\n{rows}")
    run("partition", "--dataset", "karate", "--parts", "2", "--out", str(found["PARTS"]))
    return found


def test_a_mistake_is_one_line(places: dict[str, Path]):
    def placed(text: str) -> str:
        for name, path in places.items():
            text = text.replace(name, str(path))
        return text

    for command, of_command in MISTAKES.items():
        for options, message in of_command.items():
            found = refused(*shlex.split(placed(f"{command} {options}")))
            assert placed(message) in found, (command, options)
    (thesis,) = places["FULL"].iterdir()
    assert thesis.read_text() == "mine\n" and not places["OUT"].exists()
