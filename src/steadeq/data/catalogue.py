"""Which data there is, and how to get what is not there."""

from __future__ import annotations

from dataclasses import dataclass

from . import cifar10
from .locations import find


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A dataset."""

    name: str
    summary: str
    terms: str
    """License and whom to cite."""
    layouts: tuple[str, ...] = ()
    """Files or folders of which one must be on the search path; none for what is part of the package."""
    source: str = ""
    """How to get it."""

    def state(self) -> str:
        """Return where it is."""
        if not self.layouts:
            return "part of the package"
        place = find(*self.layouts)
        return "missing" if place is None else str(place)


CATALOGUE = {
    entry.name: entry
    for entry in (
        Entry(
            name="synthetic",
            summary="5096 noisy values of a scalar function (section 5.1 of the paper)",
            terms="drawn anew from a seed",
        ),
        Entry(
            name="digits",
            summary="1797 handwritten digits of 8 by 8 pixels",
            terms="CC BY 4.0; Alpaydin and Kaynak (1998), UCI Machine Learning Repository",
        ),
        Entry(
            name="cifar10",
            summary="60,000 color images of 32 by 32 pixels in 10 classes",
            terms="no license stated; cite Krizhevsky (2009)",
            layouts=(cifar10.FOLDER,),
            source=(
                "Download cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html and unpack it in one "
                "of the folders above."
            ),
        ),
    )
}
