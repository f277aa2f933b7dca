"""Leaves the bridges to libraries that are not installed out of the doctests.

`--doctest-ignore-import-errors` would do this too, but with it a test file that fails to import is skipped as well.
"""

from importlib.util import find_spec

collect_ignore = [
    f"src/steadeq/integrations/{bridge}.py"
    for bridge, libraries in {
        "lightning": ("lightning", "pytorch_lightning"),
        "transformers": ("transformers",),
    }.items()
    if not any(map(find_spec, libraries))
]
