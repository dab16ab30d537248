import json
from pathlib import Path

import pytest

from benchmarks.cpu.limits import Limits
from benchmarks.cpu.measure import Measurement, Memory
from benchmarks.cpu.record import Machine, Record, this_machine
from benchmarks.cpu.report import circumstances, markdown
from benchmarks.cpu.sheets import Sheet, details, summaries
from benchmarks.cpu.tasks import Attention, Epoch, SpMM, Task
from benchmarks.cpu.work import Size, work

SIZE = Size(num_nodes=10, num_edges=50, num_features=8, num_classes=4, num_missing_loops=9)


def measurement(task: Task, contestant: str, milliseconds: float, **fields) -> Measurement:
    seconds = [milliseconds / 1000 * factor for factor in (0.9, 1.0, 1.0, 1.0, 1.1)]
    return Measurement("small", task, contestant, seconds, error=1e-7, **fields)


@pytest.fixture
def record() -> Record:
    made = Record("python -m benchmarks.cpu", Machine("a cpu", 2, 1 << 30, "linux"), 2, "default")
    made.sizes["small"] = SIZE
    made.versions["jaxgraph"] = {"jax": "0.10.2"}
    made.absent["PyG"] = "ModuleNotFoundError: No module named 'torch'"
    memory = Memory(1_000_000, 2_000_000, 5_000_000)
    made.peers = [
        measurement(SpMM(16), "jaxgraph", 2.0, memory=memory),
        measurement(SpMM(16), "DGL", 4.0),
        measurement(SpMM(128), "jaxgraph", 10.0),
        measurement(SpMM(128), "DGL", 5.0),
        Measurement("small", Attention(4, 32), "jaxgraph", failure="wrong: y", error=0.5),
        measurement(Attention(4, 32), "DGL", 8.0),
    ]
    return made


def sheet(record: Record, title: str) -> Sheet:
    (found,) = [each for each in summaries(record) if each.title.startswith(title)]
    return found


def test_times_and_ratios_stand_beside_each_other(record: Record):
    found = sheet(record, "SpMM")
    assert found.columns[-1] == "DGL"
    assert [row[-1] for row in found.rows] == ["4 (2.00)", "5 (0.50)"]
    assert found.rows[0][:4] == ("small", "SpMM 16", "2", "2 - 2")


def test_shares_of_the_limit(record: Record):
    bytes_moved = work(SpMM(16), SIZE)
    assert bytes_moved is not None
    # A machine that would need 1 ms for all gathered bytes, of the 2 ms measured.
    record.limits = Limits(bandwidth=bytes_moved.gathered_bytes * 1000.0, rate=1e12)
    row = sheet(record, "SpMM").rows[0]
    share = bytes_moved.single_bytes / bytes_moved.gathered_bytes / 2
    assert row[4:6] == ("50%", f"{share:.0%}")


def test_means_are_over_sizes(record: Record):
    rows = {row[0]: row[2:] for row in sheet(record, "Times faster").rows}
    assert rows["SpMM"] == ("1.00 (0.50)",)
    assert rows["attention forward"] == ("-",)


def test_who_did_no_task_of_a_group_has_no_mean(record: Record):
    record.peers.append(measurement(SpMM(16), "portable", 3.0))
    rows = [row[:2] for row in sheet(record, "Times faster").rows]
    assert rows == [
        ("SpMM", "jaxgraph"),
        ("SpMM", "portable"),
        ("attention forward", "jaxgraph"),
    ]


def test_means_are_over_what_nobody_disturbed(record: Record):
    record.peers[3].disturbed = 1
    rows = {row[0]: row[2] for row in sheet(record, "Times faster").rows}
    assert rows["SpMM"] == "2.00 (2.00)"
    record.peers[0].disturbed = 1
    rows = {row[0]: row[2] for row in sheet(record, "Times faster").rows}
    assert rows["SpMM"] == "1.00 (0.50)*"


def test_what_failed_says_so(record: Record):
    assert sheet(record, "attention").rows[0][2] == "failed"
    assert details(record.peers, "small").rows[4][-1] == "wrong: y"
    assert list(record.faults(["jaxgraph"], "portable")) == [
        "jaxgraph, small, attention forward 4 x 32: wrong: y"
    ]


def test_only_a_peer_may_be_absent_or_fail(record: Record):
    record.peers = [
        Measurement("small", SpMM(1), "DGL", failure="no room"),
        Measurement("small", SpMM(1), "portable", failure="no room"),
    ]
    assert list(record.faults(["jaxgraph"], "portable")) == ["portable, small, SpMM 1: no room"]
    record.peers.clear()
    record.absent = {"portable": "not needed", "jaxgraph": "ImportError: no jax"}
    assert list(record.faults(["jaxgraph"], "portable")) == [
        "jaxgraph does not take part: ImportError: no jax"
    ]


def test_memory_is_above_the_loaded_graph(record: Record):
    assert sheet(record, "Memory: peak").rows[0][2:] == ("4", "-")


def test_temporary_memory_of_a_run_is_compared_with_its_arrays(record: Record):
    # 3 MB, 640 bytes of them for y, where x and y have 10 rows of 16 numbers each.
    assert sheet(record, "Temporary memory").rows[0][2:] == (f"{(3e6 - 640) / 1280:.2f}", "-")


def test_sar_is_compared_with_one_device(record: Record):
    epoch = Epoch("gcn")
    record.sar = [
        measurement(epoch, "1 device", 20.0, compile_seconds=1.5),
        measurement(epoch, "SAR, 2 parts", 23.0, compile_seconds=2.25),
    ]
    assert sheet(record, "SAR").rows == (("small", "GCN 2 x 128", "20", "23 (1.15)"),)
    assert sheet(record, "Compilation").rows == (("small", "GCN 2 x 128", "1.5", "2.2"),)


def test_markdown_has_a_rule_under_every_heading(record: Record):
    lines = markdown(record).splitlines()
    heading = lines.index(next(line for line in lines if line.startswith("| graph | task")))
    assert lines[heading + 1].count("---") == lines[heading].count("|") - 1
    assert "- PyG does not take part: ModuleNotFoundError: No module named 'torch'." in lines


def test_circumstances_name_command_and_limits(record: Record):
    record.limits = Limits(48e9, 200e9)
    text = "\n".join(circumstances(record))
    assert "python -m benchmarks.cpu" in text and "48.0 GB/s" in text and "200 GFlop/s" in text


def test_what_others_disturbed_is_marked(record: Record):
    assert "marked with *" not in "\n".join(circumstances(record))
    record.peers[1].disturbed = 2
    assert "rounds of 1 measurements, marked with *" in "\n".join(circumstances(record))
    assert sheet(record, "SpMM").rows[0][-1] == "4* (2.00)"
    assert details(record.peers, "small").rows[1][4] == "5*"


def test_everything_is_in_the_json_file(record: Record, tmp_path: Path):
    record.write(tmp_path / "run.json")
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["machine"]["cpu"] == "a cpu" and found["malloc"] == "default"
    row = found["peers"][0]
    assert row["task"] == {"kind": "spmm", "features": 16, "weighted": False}
    assert len(row["seconds"]) == 5 and row["memory"]["peak"] == 5_000_000
    assert row["work"]["gathered_bytes"] > row["work"]["single_bytes"]


def test_this_machine_has_a_name_and_cores():
    machine = this_machine()
    assert machine.cpu and machine.cores >= 1 and machine.memory_bytes > 1 << 20
