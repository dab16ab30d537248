"""Files that cannot be cut as asked: each is refused with what to do, and nothing is lost."""

from __future__ import annotations

import gzip
import resource
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from jaxgraph.datasets import AmbiguousFileError, BrokenFileError
from jaxgraph.external import Request
from jaxgraph.external.limits import amounts_of, check_limit
from jaxgraph.layout.part_files import open_parts
from tests.external import folders

CYCLE = "".join(f"{i},{(i + 1) % 60}\n" for i in range(60))


def cut(source: Path, **options: Any) -> Any:
    return folders.cut(source, source.parent / "out", **options)


@pytest.mark.usefixtures("tiny_chunks")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CYCLE + "x,3\n", r"line 61: the id 'x' is no whole number, unlike .*--relabel"),
        ("a,b\n" * 60 + "7,b\n", r"the id '7' is a number, unlike .*--relabel"),
        (CYCLE + "4,-3\n", "line 61: has a negative id, -3"),
        (CYCLE + "1,2,3\n", "line 61: has 3 columns"),
        (CYCLE + "1\n", "line 61: has 1 columns"),
        (CYCLE + "1,99999999999\n", "the largest id is 99999999999.*--relabel"),
        ("u,v,weight\n" + "0,1,0.5\n" * 50 + "1,2,heavy\n", "line 52: 'heavy' is no number"),
        ("0,1,5\n" * 50, "third column is unnamed"),
        ("7,60\n" + "".join(f"{i % 6},1\n" for i in range(60)), "numbers of nodes"),
    ],
)
def test_broken_and_ambiguous_texts(text: str, message: str, tmp_path: Path):
    (tmp_path / "graph.csv").write_text(text)
    with pytest.raises((AmbiguousFileError, BrokenFileError), match=message):
        cut(tmp_path / "graph.csv")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("tiny_chunks")
def test_a_mixture_is_names_where_the_caller_says_so(tmp_path: Path):
    (tmp_path / "graph.csv").write_text(CYCLE + "x,3\n")
    names = cut(tmp_path / "graph.csv", relabel=True).folder.node_names()
    assert sorted(names) == sorted([*map(str, range(60)), "x"])


def test_truncated_and_foreign_files(tmp_path: Path):
    packed = gzip.compress(CYCLE.encode())
    (tmp_path / "a.csv.gz").write_bytes(packed[:-30])
    np.save(tmp_path / "b.npy", np.arange(12))
    (tmp_path / "c.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "d.xlsx").write_bytes(b"")
    np.save(tmp_path / "e.npy", np.zeros((9, 2), np.int64))
    whole = (tmp_path / "e.npy").read_bytes()
    (tmp_path / "e.npy").write_bytes(whole[:-8])
    pl.DataFrame({"u": [1, None], "v": [2, 3]}).write_parquet(tmp_path / "g.parquet")
    for name, message in {
        "a.csv.gz": "end-of-stream|truncated",
        "b.npy": r"shape \[12\]",
        "c.parquet": "cannot be read as Parquet",
        "d.xlsx": "cannot be read with a limit",
        "e.npy": "in 136 bytes",
        "g.parquet": "row 1: has an empty id",
        "h.csv": "no such file",
    }.items():
        with pytest.raises(ValueError, match=message):
            cut(tmp_path / name)


def test_node_data_must_fit(tmp_path: Path):
    ends = np.stack([np.arange(20), np.roll(np.arange(20), 1)], axis=1)
    np.save(tmp_path / "graph.npy", ends)
    labels, mask = np.arange(20) % 3, np.arange(20) < 5
    for number, (arrays, message) in enumerate(
        [
            ({"labels": labels[:7]}, "largest id is 19, and there are 7 nodes"),
            ({"labels": labels, "train_mask": mask[:9]}, "a row for each node"),
            ({"label": labels}, "unknown name"),
            ({"nodes": np.full((20, 2), np.nan)}, "nodes 0 to 19: .*NaN"),
            ({"train_mask": mask & False}, "selects no node"),
            ({"ids": np.arange(20) // 2}, "repeated"),
            ({"ids": np.arange(20) + 1}, "edge 0: has the id 0 that no node has"),
        ]
    ):
        folder = tmp_path / f"data{number}"
        folder.mkdir()
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)
        with pytest.raises(ValueError, match=message):
            cut(tmp_path / "graph.npy", node_data=folder)


def test_requests_that_need_the_graph_in_memory(tmp_path: Path):
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"method": "metis"}, "leave out the limit"),
        ({"mode": "p3"}, "leave out the limit"),
        ({"method": "given"}, "assignment"),
        ({"undirected": True, "method": "equal-edges"}, "repeated"),
        ({"header": "yes"}, "type bool"),
    )
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            Request(source=tmp_path / "graph.csv", num_parts=2, **options)


def test_a_limit_that_is_too_small_says_what_would_do(monkeypatch: pytest.MonkeyPatch):
    # What a process of tests holds depends on those before.
    monkeypatch.setattr("jaxgraph.external.limits._resident", lambda: 3 * 10**8)
    with pytest.raises(ValueError, match="takes 268,435,456"):
        amounts_of(10**8)
    with pytest.raises(
        ValueError, match=r"limit of \d+\.\dGB, or cut the graph into about \d+ parts"
    ):
        check_limit(2 * 10**9, 1000, [10**8] * 8, 0)
    with pytest.raises(ValueError, match=r"limit of \d+\.\dGB\. What"):
        check_limit(2 * 10**9, 10**9, [10**6], 0)
    check_limit(2 * 10**9, 10**7, [12_500_000] * 8, 0)


def test_a_refused_run_continues_with_a_larger_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    np.save(tmp_path / "graph.npy", np.random.default_rng(0).integers(0, 50, (5000, 2)))
    monkeypatch.setattr("jaxgraph.external.limits._BYTES_PER_EDGE", 10**6)
    with pytest.raises(ValueError, match="limit of"):
        cut(tmp_path / "graph.npy", memory_limit="2.5GB")
    seen: list[Any] = []
    cut(tmp_path / "graph.npy", told=seen, memory_limit="50GB")
    assert "order" in {step for step, *_ in seen} and "split" not in {step for step, *_ in seen}


def test_too_few_open_files_are_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "graph.csv").write_text(CYCLE)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, 64))
    with pytest.raises(ValueError, match=r"96 parts need .* limit is 64.* take 20 parts"):
        cut(tmp_path / "graph.csv", num_parts=96)
    assert not (tmp_path / "out").exists()


def test_parts_that_are_unfinished_are_not_called_damaged(tmp_path: Path):
    (tmp_path / f"work-{'0' * 32}").mkdir()
    with pytest.raises(ValueError, match="unfinished; give the same command"):
        open_parts(tmp_path)
