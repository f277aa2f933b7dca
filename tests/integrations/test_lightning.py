import pytest
import torch
from small_deq import closed_loop, make_model, samples
from torch.utils.data import DataLoader, TensorDataset

from steadeq.integrations import Monitor

pl = pytest.importorskip("pytorch_lightning", reason="needs the extra integrations: make integrations")
pytestmark = pytest.mark.filterwarnings("ignore")


class Module(pl.LightningModule):
    def __init__(self, monitor):
        super().__init__()
        self.model, self.monitor = make_model(), monitor

    def training_step(self, batch, _):
        x, y = batch
        return (self.model(x) - y).square().mean() + self.monitor.penalty()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(tmp_path, *, max_steps, accumulate=1, ckpt_path=None):
    from steadeq.integrations.lightning import MonitorCallback

    monitor = Monitor(closed_loop(), radius_every=2)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=max_steps,
        accumulate_grad_batches=accumulate,
        callbacks=[MonitorCallback(monitor)],
        default_root_dir=tmp_path,
        logger=pl.loggers.CSVLogger(tmp_path),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(monitor), DataLoader(TensorDataset(*samples()), batch_size=4), ckpt_path=ckpt_path)
    return monitor, trainer


def test_a_fit_logs_its_solves_and_resumes_its_regularizer(tmp_path):
    monitor, trainer = fit(tmp_path, max_steps=3)
    assert trainer.logged_metrics["steadeq/converged"] == 1
    assert 0 < trainer.logged_metrics["steadeq/spectral_radius"] < 2
    assert trainer.logged_metrics["steadeq/forward_evals"] > 1
    gamma = monitor.regularizer.gamma(3)
    assert gamma != 0.1
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    resumed, _ = fit(tmp_path, max_steps=3, ckpt_path=tmp_path / "a.ckpt")
    assert resumed.regularizer.gamma(3) == gamma
    longer, _ = fit(tmp_path, max_steps=5, ckpt_path=tmp_path / "a.ckpt")
    straight, _ = fit(tmp_path, max_steps=5)
    assert longer.regularizer.gamma(5) == pytest.approx(straight.regularizer.gamma(5))


def test_accumulated_batches_are_one_step(tmp_path, monkeypatch):
    steps = []
    monkeypatch.setattr(
        Monitor, "begin", lambda self, step, begin=Monitor.begin: (steps.append(step), begin(self, step))
    )
    fit(tmp_path, max_steps=2, accumulate=2)
    assert steps == [0, 1]
