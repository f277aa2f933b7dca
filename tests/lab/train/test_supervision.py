"""Several supervised answers a step, against a loop written by hand."""

import torch
from lab.train.runs import tiny_config

from steadeq.lab.cli.main import main
from steadeq.lab.run.folder import RunFolder
from steadeq.lab.run.loading import build_model
from steadeq.lab.train import Trainer

SECTIONS = {
    "loop": {"num_steps": 4, "batch_size": 8},
    "data": {"num_train": 16, "num_validation": 8, "num_test": 8, "num_bits": 6},
    "log": {"spectrum_samples": 0, "eval_every": 0, "checkpoint_every": 0},
}


def test_each_answer_goes_on_from_the_last_state_without_its_graph(tmp_path):
    config = tiny_config("prefix-sums", **SECTIONS)
    assert (config.loop.num_answers, config.solver.max_evals) == (3, 4)
    trainer = Trainer(config, RunFolder.create(tmp_path / "run", config))
    batches = [trainer.reader.get(step, 0) for step in range(4)]
    trainer.train()
    model = build_model(config).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in batches:
        injected = model.encoder(x)
        z, loss = torch.zeros_like(injected), torch.zeros(())
        for _ in range(3):
            z = z.detach()
            for _ in range(4):
                z = model.layer.cell(z, injected)
            loss = loss + torch.nn.functional.cross_entropy(model.head(z), y) / 3
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    for found, expected in zip(trainer.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_networks_that_cannot_go_on_from_a_state_are_refused(tmp_path, capfd):
    assert main(["train", "digits", "--model", "ResNet", "--loop.num-answers", "2", "--out", str(tmp_path / "r")]) == 2
    assert "loop.num_answers is 2; it must be 1" in capfd.readouterr().err
