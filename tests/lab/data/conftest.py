import pytest


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty current folder, in which `mine` is the place of data that STEADEQ_DATA names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("STEADEQ_DATA", str(tmp_path / "mine"))
    return tmp_path
