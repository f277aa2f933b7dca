"""The paper's tables and figures, and the demo."""

from .result import Artefact, Verdict
from .figure1 import FIGURE1
from .figure5 import FIGURE5
from .figure6 import FIGURE6
from .figure7 import FIGURE7
from .figure8 import FIGURE8
from .figure9 import FIGURE9
from .figure34 import FIGURE34
from .linsley import LINSLEY
from .memory import MEMORY
from .table1 import TABLE1, TABLE4
from .table2 import TABLE2
from .table3 import TABLE3

ARTEFACTS = {
    artefact.name: artefact
    for artefact in (
        FIGURE1,
        FIGURE34,
        FIGURE5,
        TABLE1,
        TABLE2,
        FIGURE6,
        FIGURE7,
        FIGURE8,
        TABLE3,
        TABLE4,
        FIGURE9,
        LINSLEY,
        MEMORY,
    )
}
"""By name, in the order of the paper."""

__all__ = ["ARTEFACTS", "Artefact", "Verdict"]
