from rich.console import Console

from benchmarks import memory_manager


def test_no_baseline_moves_less_and_the_table_shows_all():
    rows = list(memory_manager.measure(2, 256, [0, 0.95, 1]))
    assert [row.capacity for row in rows] == sorted(row.capacity for row in rows)
    for row in rows:
        assert row.planned <= row.baselines["LRU"] <= row.baselines["write-back"]
        assert row.baselines["write-back"] <= row.baselines["no cache"]
    # With room for all, the inputs travel once, and the gradients of both layers' parameters back.
    parameters = 4 * (602 * 256 + 256 + 256 * 41 + 41)
    features, edges, labels = 232_965 * 602 * 4, 114_848_857 * 4, 232_965 * 4
    assert rows[-1].planned == features + edges + labels + 2 * parameters
    console = Console(width=150, record=True)
    memory_manager.show(rows, console)
    text = console.export_text()
    assert f"{rows[1].planned / 1e9:.3f}" in text
    assert "no cache: 3.23 to 6.46 times ROC's bytes" in text


def test_the_widest_model_of_the_sweep_by_default():
    options = memory_manager.read_arguments([])
    assert (options.layers, options.hidden) == ([2, 3, 4], [16, 32, 64, 128, 256])
    assert options.json is options.plot is None
