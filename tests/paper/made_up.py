"""Summaries with made-up numbers, and tiny runs; shared by these tests."""

import gc

from steadeq.lab.run.record import Spread
from steadeq.lab.runner import complete_run
from steadeq.lab.train import Process
from steadeq.lab.train.display import Display
from steadeq.paper.variant import Summary, VariantSummary

MEASURES = (
    *("score", "forward_residual", "seconds_per_sample", "early_residual", "early_evals", "train_residual"),
    *("train_evals", "early_backward_residual", "backward_residual", "backward_fluctuation", "backward_evals"),
    *("early_jacobian_norm", "jacobian_norm", "spectral_radius", "spectral_radius_rayleigh", "seconds_per_step"),
    "memory_mb",
)


def row(name, *, max_evals=12, recipe="", unknown=(), **values):
    """Return the summary of a variant: 1 for all measures, but for those that are given or not known."""
    numbers = {**dict.fromkeys(MEASURES, 1.0), "diverged": 0.0, "time": 1.0, "train_seconds": 1.0}
    numbers = {name: value for name, value in numbers.items() if name not in unknown} | values
    fields = {"variant": name, "recipe": recipe, "max_evals": max_evals, "paper": {}}
    return VariantSummary(**fields, num_seeds=3, spreads=spreads(numbers))


def spreads(values, count=3):
    """Return numbers as means over seeds without any deviation."""
    return {name: Spread(mean=float(value), std=0.0, count=count) for name, value in values.items()}


def summary(*rows):
    return Summary((one.variant, one) for one in rows)


def by_columns(names, **columns):
    """Return the summary of variants whose numbers are given by measure, in the order of the variants."""
    rows = zip(names, *columns.values(), strict=True)
    return summary(*(row(name, **dict(zip(columns, values, strict=True))) for name, *values in rows))


def outcomes(result, found):
    """Return what becomes of the claims of a result: True where they hold, None where they were not tested."""
    values = {"holds": True, "does not hold": False, "not tested": None}
    return [values[verdict.outcome] for verdict in result.judge(found)]


def leave_old_garbage():
    """Keep the collector, which runs before each measurement of memory, away from what other tests left behind.

    After tests that compile, it would take half a second each time.
    """
    gc.collect()
    gc.freeze()


def complete(configs, folder):
    """Train runs, and return their folders by name."""
    for name, config in configs.items():
        complete_run(config, folder / name, process=Process(), display=Display())
    return {name: folder / name for name in configs}
