"""Reads the summaries in a folder of results, each of them once."""

from pathlib import Path
from typing import Any

from ..lab.recipes.registry import Scale
from .result import Claim, PaperResult, Verdict, results_folder


class Numbers:
    """The summaries of a folder, and the verdicts that follow from them.

    Args:
        folder: The folder of all results.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[tuple[str, Scale], tuple[Any, list[Verdict]] | None] = {}

    def read(self, result: PaperResult[Any], scale: Scale) -> tuple[Any, list[Verdict]] | None:
        """Return the summary and the verdicts of a result at a scale; None where it was not made."""
        key = result.name, scale
        if key not in self._read:
            folder = results_folder(self.folder, result.name, scale)
            self._read[key] = result.read(folder) if (folder / "summary.json").is_file() else None
        return self._read[key]

    def verdict(self, result: PaperResult[Any], claim: Claim[Any], scale: Scale) -> Verdict | None:
        """Return the verdict on a claim at a scale; None where nothing was run, or where the claim does not apply.

        Of results that are the same at every scale, there is one verdict.
        """
        if result.scales == ("cpu",):
            scale = "cpu"
        made = self.read(result, scale) if scale in result.scales else None
        return None if made is None else next((verdict for verdict in made[1] if verdict.claim == claim.text), None)
