import os
import stat
from functools import partial
from pathlib import Path

import pytest

from jaxgraph.written_file import check_writable, write_atomically, write_each


def test_the_old_file_is_replaced_whole_and_keeps_its_permissions(tmp_path: Path):
    path, link = tmp_path / "out.json", tmp_path / "link.json"
    path.write_text("old and longer than the new one")
    path.chmod(0o640)
    link.symlink_to(path)
    before = path.stat().st_ino
    write_atomically(link, "ü\n")
    assert path.read_bytes() == "ü\n".encode() and link.is_symlink()
    assert path.stat().st_ino != before and stat.S_IMODE(path.stat().st_mode) == 0o640
    write_atomically(path, b"\xff")
    assert path.read_bytes() == b"\xff"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.json", "out.json"]


@pytest.mark.parametrize("old", ["old", None])
def test_on_a_full_disk_the_old_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str | None
):
    path = tmp_path / "out.json"
    if old is not None:
        path.write_text(old)
    write = os.write

    def until_full(descriptor: int, data: bytes) -> int:
        if len(data) < 4096:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:4096])

    monkeypatch.setattr(os, "write", until_full)
    left = "the file that was there is unchanged" if old else "there is no file"
    with pytest.raises(OSError, match=rf"out\.json .*\(no space left on device\); {left}"):
        write_atomically(path, "x" * 5000)
    assert [each.read_text() for each in tmp_path.iterdir()] == [old] * (old is not None)


def test_streams_are_written_to_as_they_are(tmp_path: Path):
    check_writable("--json", Path("/dev/full"))
    with pytest.raises(OSError, match="no space left on device"):
        write_atomically(Path("/dev/full"), "text")
    with (tmp_path / "stdout").open("wb", buffering=0) as file:
        file.write(b"summary\n")
        own = Path(f"/dev/fd/{file.fileno()}")
        check_writable("--json", own)
        write_atomically(own, "{}\n")
    assert (tmp_path / "stdout").read_bytes() == b"summary\n{}\n"


def test_what_cannot_be_written_is_found_first(tmp_path: Path):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    check_writable("--json", None)
    check_writable("--json", tmp_path / "new.json")
    check_writable("--json", tmp_path / "file")
    for name, message in {
        "": "is a folder",
        "missing/out.json": r"there is no folder .*missing",
        "file/out.json": r"file is no folder",
        "loop": "cannot be written",
        "x" * 300: r"cannot be written \(file name too long\)",
        "/proc/self/out.json": "cannot be written",
    }.items():
        with pytest.raises(ValueError, match=f"^--json: .*{message}"):
            check_writable("--json", tmp_path / name)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "loop"]


def test_a_file_that_fails_does_not_lose_the_others(tmp_path: Path):
    writes = [
        partial(write_atomically, path, "text")
        for path in (tmp_path / "no" / "first", tmp_path / "second", tmp_path / "none" / "third")
    ]
    with pytest.raises(OSError, match=r"no/first could not be written.*none/third could not"):
        write_each(*writes)
    assert (tmp_path / "second").read_text() == "text"
    with pytest.raises(OSError, match=r"no/first could not be written[^.]*\.$"):
        write_each(*writes[:2])
