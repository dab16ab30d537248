"""Parts on disk: what was written is read, and what is damaged is refused."""

import dataclasses
import json
import os
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxgraph.layout.index_check import check_indices
from jaxgraph.layout.part_files import PartFolder, open_parts
from jaxgraph.layout.placed import listed_part, placed_part
from jaxgraph.layout.shard_tables import PartTables
from tests.layout.part_folders import KINDS, REQUESTS, fast_disk, of_kind, source_of, write
from tests.strategies import assignments, complete, graphs, random_edges


def assert_same_parts(found: PartFolder, source: PartTables) -> None:
    shapes = source.manifest.array_shapes()
    for index in range(source.manifest.num_parts):
        own, expected = (
            listed_part(each, source.manifest, index, shapes) for each in (found, source)
        )
        for name in shapes:
            np.testing.assert_array_equal(own[name], expected[name], err_msg=name)
            assert own[name].dtype == expected[name].dtype == shapes[name][1]


@given(data=st.data(), graph=graphs(edge_data=True), parts=st.integers(1, 4))
def test_what_was_written_is_read(data: Any, graph: Any, parts: int):
    graph = of_kind(graph, data.draw(st.sampled_from(KINDS)))
    allowed = [x for x in REQUESTS if graph.num_features >= parts or not x.startswith("p3")]
    assignment = data.draw(assignments(graph.num_nodes, parts))
    source = source_of(graph, assignment, parts, data.draw(st.sampled_from(allowed)))
    with tempfile.TemporaryDirectory() as folder, fast_disk():
        written, found = write(graph, source, Path(folder)), open_parts(folder)
        assert found.manifest == source.manifest == written.manifest
        assert found.manifest.counts == source.manifest.counts
        assert found.graph == written.graph
        assert_same_parts(found, source)
        names = found.node_names()
        if graph.node_names is None:
            assert names is None
        else:
            np.testing.assert_array_equal(names, graph.node_names)


def hub(kind: str) -> Any:
    """A graph with a row long enough to be split."""
    senders, receivers = random_edges(60, 300, 0)
    receivers[:200] = 0
    return of_kind(complete(senders, receivers, 60, "hub", edge_data=True), kind)


@pytest.fixture(scope="module", params=["sar dense", "domain dense", "p3 sparse"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    mode, kind = request.param.split()
    path, graph = tmp_path_factory.mktemp("parts"), hub(kind)
    with fast_disk():
        write(graph, source_of(graph, np.arange(60) % 2, 2, mode), path)
    return path


def read_all(folder: Path) -> dict[str, Any]:
    """All that can be read from a folder, after the checks of placement."""
    found = open_parts(folder)
    manifest, read = found.manifest, {"names": found.node_names(), "graph": found.graph}
    for index in range(found.num_parts):
        shapes = manifest.array_shapes()
        read[f"{index}"] = part = listed_part(found, manifest, index, shapes)
        check_indices(part, manifest, index)
    return read


def assert_equal(found: Any, expected: Any) -> None:
    if isinstance(found, dict):
        assert found.keys() == expected.keys()
        for name in found:
            assert_equal(found[name], expected[name])
    elif isinstance(found, np.ndarray):
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at // 8 % len(content)] ^= 1 << at % 8
    path.write_bytes(content)


def truncate(path: Path, at: int) -> None:
    os.truncate(path, at % path.stat().st_size)


def extend(path: Path, at: int) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def delete(path: Path, at: int) -> None:
    path.unlink()


def loop(path: Path, at: int) -> None:
    path.unlink()
    path.symlink_to(path.name)


def turn_into_folder(path: Path, at: int) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = (flip, flip, flip, truncate, extend, delete, loop, turn_into_folder)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_is_named(folder: Path, data: Any):
    files = sorted(each for each in folder.rglob("*") if each.is_file())
    path = data.draw(st.sampled_from([folder / "manifest.json", *files]))
    damage, at = data.draw(st.sampled_from(DAMAGES)), data.draw(st.integers(0, 2**24))
    before, content = read_all(folder), path.read_bytes()
    damage(path, at)
    try:
        assert_equal(read_all(folder), before)
        # White space around the content may change.
        assert path.name == "manifest.json" and damage in (flip, extend, truncate)
    except ValueError as error:
        assert path.name in str(error) and "write it again" in str(error)
    finally:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.write_bytes(content)


def test_parts_without_a_number_of_edge_types_are_read(folder: Path):
    """An earlier version did not write it; nor does this one where edges have no types."""
    path, before = folder / "manifest.json", open_parts(folder)
    original = path.read_text()
    content = json.loads(original)["content"]
    assert content["manifest"].pop("num_edge_types") > 1
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    head = f'{{"format":"jaxgraph parts 2","crc32":{zlib.crc32(text.encode())},"content":'
    try:
        path.write_text(f"{head}{text}}}")
        assert open_parts(folder).manifest == dataclasses.replace(before.manifest, num_edge_types=0)
    finally:
        path.write_text(original)


@pytest.mark.parametrize("request_name", ["sar", "p3 pushed"])
def test_a_process_reads_its_own_parts_alone(request_name: str, tmp_path: Path):
    graph = hub("dense")
    source = source_of(graph, np.arange(60) % 2, 2, request_name)
    with fast_disk():
        found = write(graph, source, tmp_path)
    (other,) = tmp_path.glob("data-*/part-0001")
    shutil.rmtree(other)
    own = placed_part(open_parts(tmp_path), source.manifest, 0, "cpu")
    for name, values in placed_part(source, source.manifest, 0, "cpu").items():
        np.testing.assert_array_equal(own[name], values)
    with pytest.raises(ValueError, match=r"part-0001/.*: it cannot be read \(no such file"):
        placed_part(found, source.manifest, 1, "cpu")
    assert all(isinstance(x, np.memmap) or not x.size for x in found.part(0).values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is no manifest of parts"),
        ("[" * 100_000, "it is no manifest of parts"),
        ("[]", "it is no manifest of parts"),
        ('{"format":"jaxgraph parts 4","crc32":1,"content":{}}', "reads 'jaxgraph parts 2'"),
        ('{"format":"jaxgraph parts 2","crc32":1,"content":1e999}', "it is no manifest of parts"),
        ('{"format":"jaxgraph parts 2","crc32":1,"content":{}}', "its CRC-32 is"),
    ],
)
def test_other_files_are_no_manifests(text: str, message: str, tmp_path: Path):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=rf"manifest\.json: .*{message}"):
        open_parts(tmp_path)


def test_a_missing_folder_is_named_with_the_way_to_one(tmp_path: Path):
    with pytest.raises(ValueError, match="no such folder; write one with jaxgraph partition"):
        open_parts(tmp_path / "missing")
    with pytest.raises(ValueError, match=r"manifest\.json: it cannot be read \(no such file"):
        open_parts(tmp_path)
