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

from jaxgraph.datasets.edge_list import SUFFIXES
from tests.conftest import ROOT
from tests.datasets.valid_files import FORMATS

FEW, MANY = 180, 900
MODULE = "tests.datasets.damage_worker"
KEPT = Path(tempfile.gettempdir()) / "jaxgraph-damaged-files"


def readable(name: str) -> bool:
    """True where the format can be read: an edge list needs a suffix that the reader knows."""
    return not name.startswith("edges") or next(iter(FORMATS[name].files)).endswith(SUFFIXES)


@pytest.mark.parametrize("name", [name for name in FORMATS if readable(name)])
def test_the_files_are_valid_until_they_are_damaged(tmp_path: Path, name: str) -> None:
    for path, content in FORMATS[name].files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    assert FORMATS[name].read(tmp_path).num_edges >= 120


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
