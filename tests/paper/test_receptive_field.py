import pytest
import torch
from paper.made_up import outcomes, spreads

from steadeq.paper import receptive_field as study


def test_all_pixels_have_the_label_of_the_first_row():
    x, y = study.draw_images(200, 16, torch.Generator().manual_seed(0))
    assert ((x[:, 0, 0].mean(dim=1) > 0).long() == y[:, 0, 0]).all()
    assert (y == y[:, :1, :1]).all()
    # And nothing else tells it: beyond the first row both kinds look the same.
    rest = x[:, 0, 1:].mean(dim=(1, 2))
    kinds = y[:, 0, 0].double()
    assert abs(float(torch.corrcoef(torch.stack([rest.double(), kinds]))[0, 1])) < 0.2


def test_a_pixel_is_seen_two_pixels_farther_with_each_evaluation():
    torch.manual_seed(0)
    model = study.PixelDEQ().double()
    assert study.spread(model, 32, 6) == [0, 2, 4, 6, 8, 10]
    assert study.spread(model, 8, 6) == [0, 2, 4, 4, 4, 4]


def test_a_pixel_beyond_the_receptive_field_cannot_be_told():
    """No training changes that: after n evaluations the last row is that of another image, to the last bit."""
    model = study.train(study.Arm(size=16), 0, num_steps=2)
    x, _ = study.draw_images(1, 16, torch.Generator().manual_seed(0))
    other = x.clone()
    other[:, :, 0] *= -1
    outputs = []
    with torch.no_grad():
        for image in (x, other):
            z, inputs = model.encode(image)
            states = []
            for _ in range(9):
                z = model.layer.cell(z, *inputs)
                states.append(z[:, :, -1])
            outputs.append(states)
    # The last row is 15 pixels away.
    is_same = [torch.equal(*pair) for pair in zip(*outputs, strict=True)]
    assert is_same == [study.REACH * number < 15 for number in range(9)]


def test_a_model_is_measured_at_all_budgets():
    arm = study.Arm(size=8)
    found = study.measure(study.train(arm, 0, num_steps=1), arm)
    accuracies = [found[f"accuracy_{budget}"] for budget in study.BUDGETS]
    assert all(0 <= accuracy <= 1 for accuracy in accuracies)
    assert found["accuracy"] == accuracies[-1]
    enough = accuracies[study.BUDGETS.index(int(found["enough_evals"]))]
    assert enough >= found["accuracy"] - 0.01
    assert 0 < found["picard_evals"] <= 300
    assert found["jacobian_norm"] > 0


def made_up(*, evals=8, few=0.5, large_evals=6, large_accuracy=0.5, distances=(0, 2, 4)):
    """Return a summary of arms whose evaluations grow with the size, which alone suffer from few evaluations."""

    def summarized(arm):
        is_large = arm.gamma != study.GAMMA
        doublings = study.SIZES.index(arm.size)
        values = {
            "picard_evals": large_evals if is_large else 10 + evals * doublings,
            "anderson_evals": 20 + evals * doublings,
            "enough_evals": 10 + evals * doublings,
            "accuracy": large_accuracy if is_large else 1.0,
            "spectral_radius": 0.5,
            **{f"accuracy_{budget}": 1.0 for budget in study.BUDGETS},
            "accuracy_6": few if arm.size == study.SIZES[-1] else 1.0,
        }
        return study.ArmSummary(**vars(arm), num_seeds=3, spreads=spreads(values))

    return study.Summary(distances=list(distances), arms=[summarized(arm) for arm in study.ARMS])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [True] * 5),
        ({"distances": (0, 2, 5)}, [False, True, True, True, True]),
        ({"evals": 0}, [True, False, True, False, True]),
        ({"few": 0.97}, [True, True, False, True, True]),
        ({"large_evals": 99}, [True, True, True, True, False]),
        ({"large_accuracy": 1.0}, [True, True, True, True, False]),
    ],
)
def test_claims_are_judged_by_the_numbers(changes, expected):
    assert outcomes(study.RECEPTIVE_FIELD, made_up(**changes)) == expected
