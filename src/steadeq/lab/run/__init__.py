"""A run's folder: `folder` writes it, `record` reads it, `checkpoint` and `shards` keep its state.

`identity` tells what a run is tied to, `archive` keeps the numbers of a finished one, and `loading` returns its model.
"""

from .record import RunRecord

__all__ = ["RunRecord"]
