"""All tables and figures of the paper, and the studies beyond it."""

from collections.abc import Mapping
from typing import Any

from .adaptive_gamma import ADAPTIVE_GAMMA
from .attention import ATTENTION
from .column_sums import COLUMN_SUMS
from .estimators import ESTIMATORS
from .figure1 import FIGURE1, FIGURE1_CIFAR10
from .figure5 import FIGURE5
from .figure6 import FIGURE6
from .figure7 import FIGURE7
from .figure8 import FIGURE8
from .figure9 import FIGURE9, FIGURE9_CIFAR10
from .figure34 import FIGURE34
from .iteration import ITERATION
from .memory import MEMORY
from .operator_norm import OPERATOR_NORM
from .receptive_field import RECEPTIVE_FIELD
from .result import PaperResult
from .slopes import SLOPES_RESULT
from .softplus import SOFTPLUS
from .table1 import TABLE1, TABLE4
from .table2 import TABLE2
from .table3 import TABLE3

RESULTS: Mapping[str, PaperResult[Any]] = {
    result.name: result
    for result in (
        *(FIGURE1, FIGURE1_CIFAR10, FIGURE34, FIGURE5, TABLE1, TABLE2, FIGURE6, FIGURE7),
        *(FIGURE8, TABLE3, TABLE4, FIGURE9, FIGURE9_CIFAR10, COLUMN_SUMS, MEMORY),
        *(SLOPES_RESULT, ESTIMATORS, OPERATOR_NORM, RECEPTIVE_FIELD, ATTENTION, ADAPTIVE_GAMMA),
        *(SOFTPLUS, ITERATION),
    )
}
"""All results by name, in the order of the paper."""
