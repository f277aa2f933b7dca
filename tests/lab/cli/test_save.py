"""`steadeq save`: the model of a run, with a card that is true."""

import pytest
import torch

import steadeq
from steadeq.lab.cli.main import main
from steadeq.lab.run.record import RunRecord
from steadeq.models import ToyDEQ


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("save") / "run"
    options = ["--loop.num-steps", "5", "--log.spectrum-samples", "4"]
    assert main(["train", "synthetic-jr", "--out", str(path), *options]) == 0
    return path


def test_the_folder_holds_the_model_and_what_is_known_about_it(trained, tmp_path):
    assert main(["evaluate", str(trained), "--budgets", "2", "4"]) == 0
    assert main(["save", str(trained), "-o", str(tmp_path / "model")]) == 0
    x = torch.linspace(-1, 1, 5)[:, None]
    solver = steadeq.Anderson(max_evals=20, tol=1e-6)
    ours, theirs = ToyDEQ.from_pretrained(tmp_path / "model", solver=solver), steadeq.load_model(trained)
    theirs.layer.solver = solver
    torch.testing.assert_close(ours(x), theirs(x))
    card, record = (tmp_path / "model" / "README.md").read_text(), RunRecord.read(trained)
    assert card.startswith("---\nlibrary_name: steadeq\n")
    assert "`synthetic-jr`, 5 steps, seed 0" in card
    assert "JacobianRegularizer(" in card
    assert f"{sum(p.numel() for p in ours.parameters()):,} parameters" in card
    for row in record.evaluation.rows:
        assert f"| {row.max_evals} | {record.task.show(row.score, digits=4)} | {row.forward_residual:.4g} |" in card
    assert f"samples: {record.validations[-1].spectral_radius:.3g} on average" in card


def test_a_folder_that_is_there_is_refused(trained, tmp_path, capfd):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert main(["save", str(trained), "-o", str(tmp_path / "full")]) == 2
    assert "exists already" in capfd.readouterr().err


def test_a_model_without_a_run_has_a_card_that_loads_it(tmp_path):
    ToyDEQ(hidden=4).save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "from steadeq.models import ToyDEQ" in card
    assert "Metric" not in card


def test_a_readme_of_somebody_else_is_kept(tmp_path):
    (tmp_path / "README.md").write_text("mine")
    ToyDEQ(hidden=4).save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"
    assert ToyDEQ.from_pretrained(tmp_path).config.hidden == 4
