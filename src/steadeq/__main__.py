"""`python -m steadeq` is the command `steadeq`, also for torchrun."""

import sys

from steadeq.lab.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
