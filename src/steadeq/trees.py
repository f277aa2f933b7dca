"""States of several tensors: nested tuples, lists, dicts and NamedTuples."""

from ._internal.trees import (
    leaves as leaves,
)
from ._internal.trees import (
    map_leaves as map_leaves,
)
from ._internal.trees import (
    map_tensors as map_tensors,
)
from ._internal.trees import (
    select_rows as select_rows,
)
