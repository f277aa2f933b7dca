"""The paper's tables and figures: what each needs, measures and claims. `catalog` has them all.

Importing this package makes its command, its recipes and its figures known to the lab.
"""

from ..lab.extension import EXTENSIONS, Extension

EXTENSIONS.append(
    Extension(
        commands={"reproduce": (f"{__name__}.command", "reproduce a table or figure of the paper")},
        recipes=f"{__name__}.recipes",
        figures=f"{__name__}.synthetic",
    )
)
