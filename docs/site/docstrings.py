"""How the API reference reads docstrings: `Example:`, which pydocstyle asks for, holds doctests."""

import griffe


class Examples(griffe.Extension):
    """Reads the section `Example` as `Examples`, which is shown as code and not as prose."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Rename the section."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
