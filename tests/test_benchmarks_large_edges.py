"""The program that cuts lists of edges larger than memory."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.large_edges import estimate, main, power_law_ids


def test_ids_follow_a_power_law_and_stay_in_range():
    uniform = np.random.default_rng(0).random(200_000)
    ids = power_law_ids(uniform, 10_000, 7)
    assert ids.min() >= 0 and ids.max() < 10_000
    degrees = np.sort(np.bincount(ids, minlength=10_000))[::-1]
    # Expected degrees of ranks i fall as i ** -(1 / (exponent - 1)), here -2/3.
    slope = np.polyfit(np.log(np.arange(5, 500)), np.log(degrees[5:500]), 1)[0]
    assert -0.75 < slope < -0.6


def test_the_estimate_follows_the_line_through_the_largest_sizes():
    sizes = [(10**6, 9.0, 0.3), (10**7, 20.0, 0.5), (10**8, 200.0, 1.0)]
    rows = [{"edges": edges, "peak_GB": peak, "seconds": s} for edges, s, peak in sizes]
    assert estimate(rows, 10**9) == pytest.approx((2000, 1.0 + 48e-9 * 9 * 10**7))


@pytest.mark.slow
def test_the_program_measures_a_process_of_its_own(tmp_path: Path):
    out = tmp_path / "figures.json"
    main(["--edges", "3e4", "6e4", "--limit", "2GB", "--json", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert [row["edges"] for row in rows] == [30_000, 60_000]
    assert all(0.01 < row["peak_GB"] < 2 and row["parts_GB"] > 0 for row in rows)
