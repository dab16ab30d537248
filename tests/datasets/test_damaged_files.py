"""No file, however damaged, ends the interpreter or raises anything but an error of ours."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from jaxgraph.datasets import BrokenFileError, MissingFileError
from jaxgraph.datasets.edge_list import SUFFIXES
from tests.conftest import ROOT
from tests.datasets.valid_files import FORMATS

FEW, MANY = 180, 900
MODULE = "tests.datasets.damage_worker"
KEPT = Path(tempfile.gettempdir()) / "jaxgraph-damaged-files"


def readable(name: str) -> bool:
    """True where the format can be read: an edge list needs a suffix that the reader knows."""
    return not name.startswith("edges") or next(iter(FORMATS[name].files)).endswith(SUFFIXES)


def write(folder: Path, name: str) -> None:
    for path, content in FORMATS[name].files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


@pytest.mark.parametrize("name", [name for name in FORMATS if readable(name)])
def test_the_files_are_valid_until_they_are_damaged(tmp_path: Path, name: str) -> None:
    write(tmp_path, name)
    assert FORMATS[name].read(tmp_path).num_edges >= 120


@pytest.mark.parametrize(
    ("name", "path", "kind", "origin"),
    [
        ("planetoid, protocol 5", "planetoid/ind.pubmed.y", "a pickle", "kimiyoung"),
        ("planetoid, protocol 5", "planetoid/ind.pubmed.tx", "a pickle", "kimiyoung"),
        ("planetoid, protocol 5", "planetoid/ind.pubmed.graph", "a pickle", "kimiyoung"),
        ("planetoid, protocol 5", "planetoid/ind.pubmed.test.index", "", "kimiyoung"),
        ("gnn-benchmark, plain", "amazon_photo.npz", "an npz", "amazon_electronics_photo.*shchur"),
        ("MATLAB", "blogcatalog.mat", "a MATLAB file", "deepwalk"),
        ("OGB, text", "raw/edge.csv.gz", "", "ogb.stanford.edu"),
        ("OGB, text", "split/time/valid.csv.gz", "", "ogb.stanford.edu"),
        ("OGB, typed", "raw/num-node-dict.csv.gz", "", "ogb.stanford.edu"),
        ("OGB, typed", "raw/relations/author___writes___paper/edge.csv.gz", "", "ogb.stanford.edu"),
        ("OGB, typed", "split/time/paper/test.csv.gz", "", "ogb.stanford.edu"),
        ("TU", "Small/Small_graph_labels.txt", "", "graphlearning.io"),
        ("TU, packed", "Small.zip", "a zip", "graphlearning.io"),
        ("edges, csv.gz", "edges.csv.gz", "", ""),
        ("edges, npy", "edges.npy", "", ""),
        ("edges, npz", "edges.npz", "", ""),
    ],
)
def test_what_is_missing_or_broken_is_named(
    tmp_path: Path, name: str, path: str, kind: str, origin: str
) -> None:
    write(tmp_path, name)
    broken, read = tmp_path / path, FORMATS[name].read
    message = f"{broken.name}: cannot be read as {kind}"
    for content, fault in (
        (broken.read_bytes()[:-20], message),
        (b"", f"{broken.name}: no line of numbers" if name == "edges, csv.gz" else message),
        (b"\x89HDF\r\n\x1a\n" + bytes(200), f"{broken.name}: "),
    ):
        broken.write_bytes(content)
        with pytest.raises(BrokenFileError, match=fault):
            read(tmp_path)
    broken.unlink()
    with pytest.raises(MissingFileError, match=f"{broken.name}: no such file.*{origin}"):
        read(tmp_path)


def run(count: int, folder: Path, *, first: int = 0) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Reads damaged files in other processes, and returns the faults and the outcomes."""
    wrong: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    report, files = folder / "report", folder / "files"
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    while first < count:
        report.unlink(missing_ok=True)
        worker = subprocess.run(
            [sys.executable, "-W", "error", "-m", MODULE, str(first), str(count), files, report],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [json.loads(line) for line in report.read_text().splitlines()]
        wrong += [line for line in lines if "raised" in line]
        if worker.returncode == 0:
            counts.update(lines[-1]["counts"])
            break
        case = [line["case"] for line in lines if "case" in line][-1]
        KEPT.mkdir(exist_ok=True)
        kept = shutil.copytree(files, KEPT / str(case), dirs_exist_ok=True)
        ended = f"exit status {worker.returncode}, files in {kept}\n{worker.stderr[-2000:]}"
        wrong.append({"case": case, "ended": ended})
        first = case + 1
    return wrong, counts


def check(count: int, folder: Path) -> Counter[str]:
    wrong, counts = run(count, folder)
    assert not wrong, "\n".join(
        f"case {line['case']} {line.get('format', '')}: {line.get('raised') or line.get('ended')}"
        for line in wrong[:5]
    )
    # Damage is neither so harmless that all is read, nor so coarse that nothing is.
    assert counts["graph"] + counts["refused"] == count
    assert min(counts["graph"], counts["refused"]) > count // 20
    return counts


def test_damaged_files_are_refused_or_read(tmp_path: Path) -> None:
    check(FEW, tmp_path)


@pytest.mark.slow
def test_many_damaged_files_are_refused_or_read(tmp_path: Path) -> None:
    counts = check(MANY, tmp_path)
    # A reader that fails in this process would refuse all.
    assert all(counts[f"graph: {name}"] for name in FORMATS)
