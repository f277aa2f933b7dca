"""States with right checksums and wrong content: refused by name, and left as they are."""

import shutil

import pytest
import torch
from lab.train.runs import make_run, reseal, tiny_config

from steadeq.lab.cli.main import main

CONFIG = tiny_config(loop={"num_steps": 8}, log={"checkpoint_every": 4, "every": 3})


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    return make_run(tmp_path_factory, CONFIG, crash_at=5)


def _entries(state):
    return state["optimizer"]["state"][0]


def _settings(state):
    return state["optimizer"]["param_groups"][0]


FORGERIES = {
    "moments of another shape": (lambda s: _entries(s).update(exp_avg=torch.zeros(3)), "exp_avg of parameter 0"),
    "moments of one number": (lambda s: _entries(s).update(exp_avg_sq=torch.tensor(0.0)), "exp_avg_sq of parameter 0"),
    "moments of integers": (
        lambda s: _entries(s).update(exp_avg=_entries(s)["exp_avg"].long()),
        "exp_avg of parameter 0 in the optimizer is torch.int64",
    ),
    "moments that are no tensor": (lambda s: _entries(s).update(exp_avg=1.0), "is float instead of"),
    "steps of many numbers": (lambda s: _entries(s).update(step=torch.zeros(2)), "step of parameter 0"),
    "a parameter too many": (lambda s: s["optimizer"]["state"].update({99: {}}), "parameter 99"),
    "a rate that is a text": (lambda s: _settings(s).update(eps="x"), "eps of the optimizer"),
    "another rate": (lambda s: _settings(s).update(eps=0.5), "eps of the optimizer is 0.5 instead of 1e-08"),
    "a learning rate that is a text": (lambda s: _settings(s).update(lr="x"), "lr of the optimizer"),
    "parameters in another order": (lambda s: _settings(s)["params"].reverse(), "params of the optimizer is"),
    "steps before the first": (lambda s: _entries(s).update(step=torch.tensor(-1.0)), "step of parameter 0"),
    "windows of integers": (lambda s: s["window"]["sums"].update(loss=1), "'loss' in sums of the window is a int"),
    "windows that are integers": (lambda s: s["window"].update(counts=3), "counts of the window is a int"),
    "windows without counts": (lambda s: s["window"]["counts"].clear(), "sums and counts of the window"),
    "counts of nothing": (lambda s: s["window"]["counts"].update(loss=0), "sums and counts of the window"),
    "windows that are a number": (lambda s: s.update(window=3), "'int' object is not subscriptable"),
    "a carry that is a number": (lambda s: s.update(carry=3), "'int' object is not iterable"),
    "steps that are a tensor": (lambda s: s.update(step=torch.tensor(3)), "state.pt is not a state of step 4"),
    "another step": (lambda s: s.update(step=3), "state.pt is not a state of step 4"),
    "a list in the place of the optimizer": (lambda s: s.update(optimizer=[1]), "list indices must be integers"),
    "an identity of other fields": (lambda s: s.update(identity={"a": 1}), "does not name the versions"),
    "an identity without a config": (lambda s: s["identity"].update(config=[1]), "does not name the versions"),
    "bad steps that are a text": (lambda s: s.update(num_bad="x"), "num_bad is a str"),
    "no evaluation": (lambda s: s.update(evaluated_at=4), "evaluation has no mse"),
    "no state": (lambda s: [1], "state.pt is not a state of step 4"),
    "an evaluation of texts": (lambda s: s["evaluation"].update(loss="low"), "'loss' of the evaluation is a str"),
}


def forge_state(path, forge):
    """Change the last state of a run, and its checksum."""
    folder = path / "checkpoints" / "step-00000004"
    state = torch.load(folder / "state.pt", weights_only=True)
    changed = forge(state)
    torch.save(state if changed is None else changed, folder / "state.pt")
    reseal(folder, "state.pt")


@pytest.mark.parametrize("case", FORGERIES)
def test_a_forged_state_is_refused_by_name(case, stopped, tmp_path, capfd):
    forge, message = FORGERIES[case]
    path = shutil.copytree(stopped, tmp_path / "run")
    forge_state(path, forge)
    assert main(["train", "--resume", "--out", str(path)]) == 1
    said = capfd.readouterr().err
    assert "The state of step 4 in" in said or "step-00000004 is damaged" in said
    assert message in said
    assert said.count("\n") == 1


def test_the_settings_of_an_optimizer_are_not_taken_from_a_state(stopped, tmp_path):
    path = shutil.copytree(stopped, tmp_path / "run")
    forge_state(path, lambda s: _settings(s).__delitem__("eps"))
    forge_state(path, lambda s: _settings(s).update(capturable=True, fused=[1]))
    assert main(["train", "--resume", "--out", str(path)]) == 0
