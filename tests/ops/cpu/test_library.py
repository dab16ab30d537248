"""A damaged or outdated library is detected before it is loaded."""

import logging
import shutil
from pathlib import Path

import pytest

from jaxgraph.ops.cpu import library as module
from jaxgraph.ops.cpu.build_record import mismatch, record_path, write_record


@pytest.fixture
def build(tmp_path: Path) -> tuple[Path, Path]:
    """A library and the folder of its sources."""
    source, library = tmp_path / "source", tmp_path / "kernels.so"
    source.mkdir()
    (source / "a.cc").write_text("int a;")
    (source / "b.h").write_text("int b;")
    library.write_bytes(bytes(range(256)) * 40)
    write_record(library, source)
    return library, source


def truncate(library: Path, source: Path) -> None:
    library.write_bytes(library.read_bytes()[:4096])


def flip_a_byte(library: Path, source: Path) -> None:
    library.write_bytes(b"\1" + library.read_bytes()[1:])


def change_a_source(library: Path, source: Path) -> None:
    (source / "b.h").write_text("int c;")


def rename_a_source(library: Path, source: Path) -> None:
    (source / "a.cc").rename(source / "c.cc")


def remove_the_record(library: Path, source: Path) -> None:
    record_path(library).unlink()


def spoil_the_record(library: Path, source: Path) -> None:
    record_path(library).write_text("[]")


CHANGES = {
    truncate: "damaged",
    flip_a_byte: "damaged",
    change_a_source: "other sources",
    rename_a_source: "other sources",
    remove_the_record: "no readable record",
    spoil_the_record: "no readable record",
}


def test_the_library_that_was_built_is_known(build: tuple[Path, Path]) -> None:
    library, source = build
    assert mismatch(library, source) == ""
    # A wheel has no sources.
    shutil.rmtree(source)
    assert mismatch(library, source) == ""


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_is_noticed_and_xla_computes(
    change, build: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    library, source = build
    change(library, source)
    assert CHANGES[change] in mismatch(library, source)
    monkeypatch.setattr(module, "LIBRARY", library)
    monkeypatch.setattr(module, "mismatch", lambda path: mismatch(path, source))
    monkeypatch.setattr(module.ctypes, "CDLL", lambda path: pytest.fail("it was loaded"))
    with caplog.at_level(logging.WARNING):
        found = module.library.__wrapped__()
    assert found.level == ""
    assert CHANGES[change] in found.missing
    assert [CHANGES[change] in record.getMessage() for record in caplog.records] == [True]
