"""The folder of the data, and the error where it is missing."""

from pathlib import Path

import pytest

from jaxgraph.datasets.files import (
    BrokenFileError,
    MissingFileError,
    data_folder,
    reading,
)


def test_no_folder_is_an_error_that_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAXGRAPH_DATA", raising=False)
    with pytest.raises(MissingFileError, match="variable JAXGRAPH_DATA is not set; pass"):
        data_folder(None)
    with pytest.raises(MissingFileError, match=r"data_dir: .*absent is no folder"):
        data_folder(tmp_path / "absent")
    monkeypatch.setenv("JAXGRAPH_DATA", str(tmp_path / "absent"))
    with pytest.raises(MissingFileError, match=r"JAXGRAPH_DATA: .*absent is no folder"):
        data_folder(None)


def test_any_error_while_reading_names_the_file_once() -> None:
    path = Path("file.npz")
    with (
        pytest.raises(BrokenFileError, match=r"^file.npz: cannot be read as a b \(KeyError: 'x'\)"),
        reading(path, "a b"),
    ):
        raise KeyError("x")
    for error in (BrokenFileError("inner"), MissingFileError("inner")):
        with pytest.raises(type(error), match=r"^inner$"), reading(path, "a b"):
            raise error
