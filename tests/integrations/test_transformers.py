import json

import pytest
from small_deq import closed_loop, make_model, samples
from torch import nn
from torch.utils.data import Dataset

from steadeq.integrations import Monitor

transformers = pytest.importorskip("transformers", reason="needs the extra integrations: make integrations")
pytest.importorskip("accelerate", reason="needs the extra integrations: make integrations")
pytestmark = pytest.mark.filterwarnings("ignore")


class Rows(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        x, y = samples()
        return {"x": x[index], "labels": y[index]}


class Model(nn.Module):
    def __init__(self, monitor):
        super().__init__()
        self.model, self.monitor = make_model(), [monitor]

    def forward(self, x, labels):
        output = self.model(x)
        return {"loss": (output - labels).square().mean() + self.monitor[0].penalty(), "logits": output}


class Reporter(transformers.TrainerCallback):
    def __init__(self):
        self.seen = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.seen.append(dict(logs))


def train(tmp_path, *, max_steps, attach=True, resume=None):
    from steadeq.integrations.transformers import MonitorCallback

    monitor = Monitor(closed_loop())
    arguments = transformers.TrainingArguments(
        tmp_path,
        max_steps=max_steps,
        logging_steps=1,
        save_steps=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        lr_scheduler_type="constant",
        per_device_train_batch_size=4,
    )
    callback, reporter = MonitorCallback(monitor), Reporter()
    trainer = transformers.Trainer(
        Model(monitor), arguments, train_dataset=Rows(), callbacks=[reporter] if attach else [reporter, callback]
    )
    if attach:
        callback.attach(trainer)
    trainer.train(resume_from_checkpoint=resume)
    return monitor, trainer, reporter


def test_a_trainer_logs_its_solves_to_all_reporters(tmp_path):
    _, trainer, reporter = train(tmp_path, max_steps=2)
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert len(lines) == 2
    assert all(line["steadeq/converged"] == 1 and line["steadeq/forward_evals"] > 1 for line in lines)
    assert "steadeq/gamma" in reporter.seen[0]


def test_one_that_is_handed_to_the_trainer_shows_up_in_the_history(tmp_path):
    _, trainer, _ = train(tmp_path, max_steps=1, attach=False)
    assert "steadeq/gamma" in trainer.state.log_history[0]


def test_the_regularizer_goes_on_where_a_checkpoint_left_it(tmp_path):
    straight, _, _ = train(tmp_path / "a", max_steps=4)
    saved = json.loads((tmp_path / "a" / "checkpoint-2" / "trainer_state.json").read_text())
    assert saved["stateful_callbacks"]["MonitorCallback"]["attributes"]["schedule"]
    resumed, _, _ = train(tmp_path / "b", max_steps=4, resume=str(tmp_path / "a" / "checkpoint-2"))
    assert resumed.regularizer.gamma(4) == pytest.approx(straight.regularizer.gamma(4))
    assert straight.regularizer.gamma(4) != closed_loop().gamma(4)
