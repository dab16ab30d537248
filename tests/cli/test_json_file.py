import json
from pathlib import Path

import numpy as np

from jaxgraph.cli.result_files import write_json


def test_numpy_paths_and_not_finite_numbers_become_plain_json(tmp_path: Path):
    value = {
        "loss": np.asarray([0.5, np.nan], np.float32),
        "count": np.int64(3),
        "best": float("inf"),
        "data": Path("somewhere"),
        "nested": [{"flag": np.bool_(True)}, None, (1, 2)],
    }
    write_json(tmp_path / "out.json", value)
    assert json.loads((tmp_path / "out.json").read_text()) == {
        "loss": [0.5, None],
        "count": 3,
        "best": None,
        "data": "somewhere",
        "nested": [{"flag": True}, None, [1, 2]],
    }
