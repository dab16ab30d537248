import pytest

from benchmarks.cpu.__main__ import read_arguments
from benchmarks.cpu.plan import TOPICS, pace, peers, peers_tasks, sar_contestants, sits_out
from benchmarks.cpu.tasks import Attention, Epoch, SpMM, Task
from benchmarks.cpu.worker import LIBRARIES


def test_a_full_run_has_all_sizes():
    tasks = peers_tasks("arxiv-size", TOPICS, quick=False)
    sums = [task for task in tasks if isinstance(task, SpMM)]
    assert {task.features for task in sums if task.weighted} == {16, 41, 128, 256}
    assert {task.features for task in sums if not task.weighted} == {16, 41, 128, 256}
    heads = {(t.heads, t.features, t.backward) for t in tasks if isinstance(t, Attention)}
    assert heads == {(h, f, b) for h, f in ((4, 32), (8, 16)) for b in (False, True)}
    assert [task.model for task in tasks if isinstance(task, Epoch)] == ["gcn", "sage", "gat"]


def test_a_quick_run_is_a_part_of_it():
    for graph in ("pubmed-size", "arxiv-size"):
        quick = peers_tasks(graph, TOPICS, quick=True)
        assert quick and set(quick) < set(peers_tasks(graph, TOPICS, quick=False))


def test_only_what_was_asked_for():
    assert all(isinstance(task, SpMM) for task in peers_tasks("cora", ["spmm"], quick=True))
    assert peers_tasks("cora", ["sar"], quick=False) == ()


@pytest.mark.parametrize("quick", [True, False])
def test_sums_are_measured_in_seven_rounds_at_least(quick: bool):
    assert pace(SpMM(16), quick).least >= 7


def test_rounds_of_the_command_line_go_before_all_others():
    assert pace(SpMM(16), False, 2).rounds == pace(SpMM(16), False, 2).least == 2


@pytest.mark.parametrize("quick", [False, True])
def test_an_epoch_is_timed_behind_another(quick: bool):
    assert pace(Epoch("gat"), quick, rounds=2).rehearses
    assert not pace(SpMM(16), quick).rehearses


def test_a_quick_run_leaves_out_what_takes_its_minutes():
    small, large = 100_000, 2_500_000
    assert sits_out(Attention(4, 32), small, quick=True) == set()
    assert sits_out(Attention(4, 32), large, quick=True) == {"PyG"}
    assert sits_out(Epoch("gat"), small, quick=True) == {"portable"}
    assert sits_out(SpMM(128), large, quick=True) == set()


@pytest.mark.parametrize("task", [Attention(8, 16, True), Epoch("gcn"), SpMM(128)])
def test_a_full_run_leaves_nobody_out(task: Task):
    assert sits_out(task, 100_000_000, quick=False) == set()


def test_sar_starts_with_one_device():
    counts = [each.options["parts"] for each in sar_contestants(quick=False)]
    assert counts == [1, 2, 4, 8, 16]


def test_every_peer_has_a_worker():
    assert {peer.library for peer in peers(quick=False)} <= LIBRARIES.keys()


def test_a_quick_run_leaves_sar_out():
    assert "sar" not in read_arguments(["--quick"]).only
    assert "sar" in read_arguments([]).only
    assert read_arguments(["--quick", "--only", "sar"]).only == ["sar"]


@pytest.mark.parametrize(
    "wrong",
    [
        ["--only", "sddmm"],
        ["--peers", "jraph"],
        ["--rounds", "0"],
        ["--malloc", "huge"],
        ["--peer-python", "no-such-python"],
    ],
)
def test_a_wrong_argument_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        read_arguments(wrong)
    assert wrong[0] in capsys.readouterr().err
