import importlib

import pytest

from steadeq.lab.cli.main import main

pytestmark = pytest.mark.filterwarnings("ignore")
SHORT = ["--loop.num-steps", "3", "--log.spectrum-samples", "2"]


def test_mlflow_has_the_metrics_of_a_run_that_was_resumed_once(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="needs the extra integrations: make integrations")
    path = tmp_path / "run"
    assert main(["train", "synthetic-jr", "--out", str(path), "--log.mlflow", *SHORT]) == 0
    assert main(["train", "--resume", "--out", str(path), "--loop.num-steps", "5"]) == 0
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{path / 'mlflow' / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("steadeq").experiment_id])
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "train/loss")] == [1, 2, 3, 4, 5]
    assert run.data.params["solver.max_evals"]


def test_wandb_keeps_a_run_in_its_folder_when_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="needs the extra integrations: make integrations")
    monkeypatch.setenv("WANDB_MODE", "offline")
    path = tmp_path / "run"
    assert main(["train", "synthetic-jr", "--out", str(path), "--log.wandb", *SHORT]) == 0
    # Its service writes the file, and is done when it is stopped, as it is at the end of a process.
    wandb.teardown()
    (file,) = path.glob("wandb/offline-run-*/run-*.wandb")
    content = file.read_bytes()
    assert b"train/loss" in content
    assert b"evaluation/forward_evals" in content


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_one_that_is_not_installed_is_named(name, tmp_path, monkeypatch, capfd):
    monkeypatch.setitem(importlib.sys.modules, name, None)
    assert main(["train", "synthetic-jr", "--out", str(tmp_path / "run"), f"--log.{name}", *SHORT]) == 2
    assert f"pip install {name}" in capfd.readouterr().err
