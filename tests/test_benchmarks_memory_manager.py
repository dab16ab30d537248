from benchmarks import memory_manager


def test_no_baseline_moves_less():
    rows = list(memory_manager.measure(2, 256, [0, 0.95, 1]))
    assert [row["capacity"] for row in rows] == sorted(row["capacity"] for row in rows)
    for row in rows:
        assert row["ROC"] <= row["LRU"] <= row["write-back"] <= row["no cache"]
    # With room for all, the inputs travel once, and the gradients of both layers' parameters back.
    parameters = 4 * (602 * 256 + 256 + 256 * 41 + 41)
    features, edges, labels = 232_965 * 602 * 4, 114_848_857 * 4, 232_965 * 4
    assert rows[-1]["ROC"] == features + edges + labels + 2 * parameters
    conclusion = next(iter(memory_manager.conclusions(rows)))
    assert conclusion.startswith("no cache: 3.23 to 6.46 times ROC's bytes")
