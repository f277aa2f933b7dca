import pytest

try:
    import torchvision  # noqa: F401
except ImportError:
    pass
except RuntimeError as error:
    # Compiled for another build of torch (CUDA for CPU). deepinv, Lightning and Transformers import it, and
    # fail as it does.
    if "torchvision::" not in str(error):
        raise
    collect_ignore_glob = ["test_deepinv.py", "test_lightning.py", "test_transformers*.py"]

    def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was left out."""
        terminalreporter.write_line(
            f"{', '.join(collect_ignore_glob)} were left out: torchvision does not fit this build of torch; "
            "install both from one index."
        )
