"""The package imports what is asked for, when it is asked for."""

import subprocess
import sys
from pathlib import Path

import pytest

import steadeq


def run(script: str) -> None:
    path = str(Path(steadeq.__file__).parents[1])
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr


def test_importing_the_package_does_not_import_torch():
    run(
        "import sys, steadeq; assert 'torch' not in sys.modules; assert steadeq.__version__; dir(steadeq); "
        "assert 'torch' not in sys.modules"
    )


def test_a_star_import_gives_all_names_whatever_came_before():
    run(
        "import steadeq._fixed_point, steadeq.jacobian.penalty, steadeq.jacobian.spectrum, steadeq.models\n"
        "import steadeq.solvers, steadeq.lab.data\n"
        "import types\n"
        "from steadeq import *\n"
        "import steadeq\n"
        "assert isinstance(fixed_point, types.FunctionType) and fixed_point is steadeq.fixed_point\n"
        "assert all(name in globals() for name in steadeq.__all__)\n"
        "assert not any(isinstance(getattr(steadeq, name), types.ModuleType) for name in steadeq.__all__)\n"
        "assert isinstance(steadeq.models, types.ModuleType) and isinstance(steadeq.jacobian, types.ModuleType)\n"
    )


@pytest.mark.parametrize("name", steadeq.__all__)
def test_every_public_name_resolves_and_is_listed(name):
    value = getattr(steadeq, name)
    assert value is getattr(steadeq, name)
    assert value.__name__ == name
    assert name in dir(steadeq)


def test_modules_of_the_contract_are_attributes():
    assert steadeq.models.ToyDEQ
    assert steadeq.nn.DEQ
    assert steadeq.solvers.Evaluation
    assert steadeq.adjoints.Problem
    assert steadeq.jacobian.Probe
    assert {"adjoints", "export", "jacobian", "models", "nn", "solvers", "__version__"} <= set(dir(steadeq))


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'fixedpoint'"):
        steadeq.fixedpoint  # noqa: B018
    assert not hasattr(steadeq, "Andersen")
    with pytest.raises(ImportError, match="Andersen"):
        from steadeq import Andersen  # noqa: F401
