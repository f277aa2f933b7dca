import pytest
import torch
from small_deq import closed_loop, make_model, samples
from torch.utils.data import DataLoader, TensorDataset

from steadeq.integrations import Monitor

accelerate = pytest.importorskip("accelerate", reason="needs the extra integrations: make integrations")
pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_loop_with_accelerate_saves_and_restores_the_regularizer(tmp_path):
    def prepare():
        model, monitor = make_model(), Monitor(closed_loop())
        accelerator = accelerate.Accelerator(cpu=True)
        parts = accelerator.prepare(
            model, torch.optim.SGD(model.parameters(), lr=0.01), DataLoader(TensorDataset(*samples()), batch_size=4)
        )
        accelerator.register_for_checkpointing(monitor)
        return accelerator, monitor, *parts

    accelerator, monitor, model, optimizer, loader = prepare()
    for step, (x, y) in enumerate(loader):
        monitor.begin(step)
        accelerator.backward((model(x) - y).square().mean() + monitor.penalty())
        optimizer.step()
        assert monitor.end()["converged"] == 1
    gamma = monitor.regularizer.gamma(4)
    assert gamma != 0.1
    accelerator.save_state(tmp_path)
    accelerator, monitor, *_ = prepare()
    accelerator.load_state(tmp_path)
    assert monitor.regularizer.gamma(4) == gamma
