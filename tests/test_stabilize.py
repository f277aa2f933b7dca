"""The page about stabilizing a loop: its numbers, its claims, its snippets."""

import importlib.util
import math
import re
import sys
from pathlib import Path

import pytest
import torch

from steadeq import Equilibrium, JacobianRegularizer

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "stabilize.md"


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("stabilize_build", ROOT / "docs" / "stabilize" / "build.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        # Dataclasses look their module up by its name.
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def numbers(build):
    return build.read()


def test_the_page_shows_the_numbers_that_are_kept(build, numbers):
    page = PAGE.read_text(encoding="utf-8")
    assert build.fill(page, numbers) == page


def test_every_variant_and_seed_is_kept_and_no_other(build, numbers):
    assert list(numbers) == [f"{name}/{seed}" for name in build.VARIANTS for seed in build.SEEDS]
    for run in numbers.values():
        assert all(0 <= score <= 1 for score in run["accuracy"].values())
        assert run["radius"] is None or math.isfinite(run["radius"])


def test_before_and_after_take_less_than_five_minutes(build, numbers):
    for seed in build.SEEDS:
        assert sum(numbers[f"{name}/{seed}"]["seconds"] for name in (build.BEFORE, build.AFTER)) < 300


def test_the_snippets_of_the_page_run(capsys):
    names = {"__name__": "page"}
    torch.manual_seed(0)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "stabilize.md", "exec"), names)
    assert "settles:" in capsys.readouterr().out
    assert all(parameter.grad is not None for parameter in names["block"].parameters())


def test_the_lines_of_the_diff_run_and_are_three():
    (diff,) = re.findall(r"```diff\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    added = [line[1:] for line in diff.splitlines() if line.startswith("+")]
    assert len(added) == 3
    block = torch.nn.Bilinear(4, 4, 4)
    names = {"block": block, "z": torch.randn(2, 4), "x": torch.randn(2, 4), "loss": torch.zeros(()), "step": 0}
    exec("\n".join(added), names)
    names["loss"].backward()
    assert block.weight.grad.abs().sum() > 0


def test_the_loop_of_the_example_is_a_hand_written_one_with_the_state_carried_on(build):
    # One step by hand, without the example's loop: the same weights come out, bit for bit.
    example, num_segments = build.example, 2
    options = {"seed": 5, "num_steps": 1, "num_bits": 6, "num_segments": lambda step: num_segments}
    trained = example.train(JacobianRegularizer(weight=0.3, estimator="difference"), **options)

    torch.manual_seed(5)
    model = example.Model(example.Block())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    bits, parities = example.draw_strings(64, 6)
    x = model.encoder(bits)
    z, losses = torch.zeros_like(x), []
    for evaluation in range(num_segments * example.LOOPS):
        z = model.block(z.detach() if evaluation % example.LOOPS == 0 else z, x)
        if evaluation % example.LOOPS == example.LOOPS - 1:
            losses.append(torch.nn.functional.cross_entropy(model.head(z), parities) / num_segments)
    penalty = JacobianRegularizer(weight=0.3, estimator="difference")(Equilibrium.at(model.block, z, x), step=0)
    (torch.zeros(()) + losses[0] + losses[1] + penalty).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    for (name, ours), theirs in zip(model.named_parameters(), trained.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, msg=name)


def test_parities_are_those_of_all_bits_so_far(build):
    bits, parities = build.example.draw_strings(16, 9)
    expected = [[int(sum(string[: end + 1])) % 2 for end in range(9)] for string in bits[:, 0].tolist()]
    assert parities.tolist() == expected
