"""Computes the loss of knowing nothing but how frequent each label or token is, of the data sets that are there.

    python benchmarks/trivial_losses.py

A run whose loss stays above that has diverged, see `steadeq.lab.divergence`. The numbers are kept in the package, so
that runs can be judged without their data.
"""

import json
from pathlib import Path

from steadeq.lab import divergence
from steadeq.lab.data import Cifar10, Digits, Imagenette64, WikiText2

if __name__ == "__main__":
    path = Path(divergence.__file__).with_name("trivial_losses.json")
    found = {
        data.name: divergence.trivial_loss_of(data.load())
        for data in (Cifar10(), Digits(), Imagenette64(), WikiText2())
    }
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
