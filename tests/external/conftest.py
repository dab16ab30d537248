import pytest

from tests.external.folders import TINY, in_small_chunks


@pytest.fixture
def tiny_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every step need very many chunks."""
    in_small_chunks(monkeypatch, TINY)
