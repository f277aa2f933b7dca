"""The paper's tables and figures, and the demo."""

from .artefact import Artefact, Verdict
from .figure5 import FIGURE5
from .table2 import TABLE2

ARTEFACTS = {artefact.name: artefact for artefact in (FIGURE5, TABLE2)}

__all__ = ["ARTEFACTS", "Artefact", "Verdict"]
