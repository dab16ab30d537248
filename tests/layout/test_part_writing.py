"""Parts are written whole or not at all, whatever stops the writer."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxgraph import Graph
from jaxgraph.layout import part_writing
from jaxgraph.layout.part_files import open_parts
from jaxgraph.layout.part_writing import check_target
from jaxgraph.layout.shard_tables import PartTables
from tests.conftest import ROOT
from tests.layout.part_folders import fast_disk, source_of, write
from tests.strategies import complete, random_edges

KILLS = """
import os, random, signal, sys, time
from pathlib import Path
from jaxgraph.layout.part_files import open_parts
from tests.layout.test_part_writing import two_parts
from tests.layout.part_folders import fast_disk, write

folder, kills = Path(sys.argv[1]), int(sys.argv[2])
sources = [two_parts(seed) for seed in (0, 1)]
started = time.perf_counter()
with fast_disk():
    write(*sources[0], folder)
seconds, latest, seen = time.perf_counter() - started, 0, set()
for kill in range(kills):
    child = os.fork()
    if child == 0:
        with fast_disk():
            while True:
                latest = 1 - latest
                write(*sources[latest], folder)
    time.sleep(random.Random(kill).uniform(0, 4 * seconds))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found = open_parts(folder)
    (latest,) = [i for i, (graph, _) in enumerate(sources) if graph.name == found.graph.name]
    for part in range(2):
        found.part(part)
    assert (found.node_names() == sources[latest][0].node_names).all()
    seen.add(len(list(folder.iterdir())))
write(*sources[0], folder)
left = sorted(each.name[:5] for each in folder.iterdir())
assert left == ["data-", "manif"], left
print("entries after a kill:", sorted(seen))
"""


def ring(seed: int) -> Graph:
    names = np.array([f"{seed}-{node}" for node in range(40)])
    senders, receivers = random_edges(40, 160, seed)
    return complete(senders, receivers, 40, f"ring {seed}", seed).replace(node_names=names)


def two_parts(seed: int) -> tuple[Graph, PartTables]:
    graph = ring(seed)
    return graph, source_of(graph, np.arange(40) % 2, 2, "sar")


def contents(folder: Path) -> dict[str, bytes]:
    files = (each for each in folder.rglob("*") if each.is_file())
    return {str(each.relative_to(folder)): each.read_bytes() for each in files}


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_killed_writer_leaves_old_or_new_parts(kills: int, tmp_path: Path):
    arguments = [sys.executable, "-c", KILLS, str(tmp_path), str(kills)]
    result = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("entries after a kill: ["), result.stdout


class _Stop(BaseException):
    pass


def failing(function: Callable[..., Any], calls: int, error: BaseException) -> Callable[..., Any]:
    """A function that raises after so many calls."""
    made = iter(range(calls))

    def replaced(*arguments: Any, **options: Any) -> Any:
        if next(made, None) is None:
            raise error
        return function(*arguments, **options)

    return replaced


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize(
    ("stage", "calls"),
    [("_write_file", 0), ("_write_file", 50), ("_sync", 0), ("write_atomically", 0)],
)
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), _Stop()], ids=repr)
def test_a_failed_writer_leaves_the_old_parts_and_nothing_else(
    stage: str,
    calls: int,
    error: BaseException,
    is_new: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    folder = tmp_path / "parts"
    with fast_disk():
        if not is_new:
            write(*two_parts(0), folder)
        before = contents(tmp_path)
        stopped = failing(getattr(part_writing, stage), calls, error)
        monkeypatch.setattr(part_writing, stage, stopped)
        with pytest.raises(type(error)) as raised:
            write(*two_parts(1), folder)
    assert contents(tmp_path) == before and folder.exists() is not is_new
    if isinstance(error, OSError):
        left = "no parts" if is_new else "the parts that were there are unchanged"
        assert str(raised.value).endswith(
            f"parts could not be written (no space left on device); {left}."
        )


def test_all_is_on_the_disk_before_the_manifest_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    synced: set[str] = set()
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.add(str(Path(f"/proc/self/fd/{fd}").resolve()))
    )
    replace = Path.replace

    def replaced(path: Path, target: Path) -> Path:
        (data,) = tmp_path.glob("data-*")
        needed = {str(each) for each in (tmp_path, data, *data.rglob("*"), path)}
        assert needed <= synced
        synced.clear()
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", replaced)
    write(*two_parts(0), tmp_path)
    assert synced == {str(tmp_path)}


def test_folders_that_hold_something_else_are_refused(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "manifest.json").write_text("{}")
    for name, message in {
        "file": "file is no folder",
        "full": "holds 'thesis.tex' and no parts of a graph",
        "json": "holds 'manifest.json' and no parts of a graph",
        "missing/parts": "there is no folder .*missing; make it first",
    }.items():
        before = contents(tmp_path)
        with pytest.raises(ValueError, match=message):
            write(*two_parts(0), tmp_path / name)
        assert contents(tmp_path) == before


def test_files_beside_the_parts_stay(tmp_path: Path):
    with fast_disk():
        write(*two_parts(0), tmp_path)
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / f"data-{'0' * 32}").symlink_to(tmp_path.parent)
        write(*two_parts(1), tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine" and tmp_path.parent.is_dir()
    assert open_parts(tmp_path).graph.name == "ring 1"


def test_two_writers_do_not_share_a_folder(tmp_path: Path):
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another process writes to it"):
            write(*two_parts(0), tmp_path)
    finally:
        os.close(descriptor)
    assert check_target(tmp_path) == tmp_path and not list(tmp_path.iterdir())
