import json

import pytest

from benchmarks.cpu.tasks import Attention, Epoch, Product, SpMM, Triad, from_json, to_json

TASKS = (
    SpMM(16),
    SpMM(41, weighted=True),
    Attention(4, 32),
    Attention(8, 16, backward=True),
    Epoch("gat"),
    Triad(100),
    Product(64),
)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.label)
def test_a_task_survives_the_way_to_a_worker(task):
    assert from_json(json.loads(json.dumps(to_json(task)))) == task


def test_labels_tell_tasks_apart():
    assert len({task.label for task in TASKS}) == len(TASKS)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="kind is 'sddmm'"):
        from_json({"kind": "sddmm"})
