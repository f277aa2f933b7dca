import shutil
from pathlib import Path

import pytest
from lab.train.runs import make_run, tiny_config


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A finished run, to be copied or only read."""
    return make_run(tmp_path_factory, tiny_config(loop={"ema_decay": 0.9}, log={"eval_every": 4}))


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty folder to work in, without any data in sight."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("STEADEQ_DATA", str(work / "data"))
    return work


@pytest.fixture
def run(finished, home):
    """A finished run in the folder to work in."""
    return Path(shutil.copytree(finished, home / "run"))
