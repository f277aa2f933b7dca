"""Diagnosis: does iterating a block settle, does it help, and does it do anything at all?"""

from ._diagnose import diagnose
from .result import Diagnosis
from .subject import Subject
from .verdict import Verdict

__all__ = ["Diagnosis", "Subject", "Verdict", "diagnose"]
