"""`python -m steadeq` is the command `steadeq`, also for torchrun."""

import sys


def run() -> int:
    """Run the command in a process that ends with it, and return its exit code."""
    try:
        from steadeq.lab.cli.leaving import ExitOnInterrupt, StopOnInterrupt

        with ExitOnInterrupt():
            import warnings

            # torch's, wherever NumPy is missing: the command says itself what it needs.
            warnings.filterwarnings("ignore", "Failed to initialize NumPy")
            import steadeq.paper  # noqa: F401 (adds its command, recipes and figures)
            from steadeq.lab.cli.main import main

        with StopOnInterrupt():
            return main()
    except KeyboardInterrupt:
        # Before the command has come so far as to say it itself.
        print("steadeq: Stopped before anything was done.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(run())
