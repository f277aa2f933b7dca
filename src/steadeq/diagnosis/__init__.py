"""Diagnosis: is it safe to iterate a block, for how long, and does iterating do anything at all?"""

from ._diagnose import diagnose
from .result import Diagnosis
from .verdict import Verdict

__all__ = ["Diagnosis", "Verdict", "diagnose"]
