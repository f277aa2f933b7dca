"""How the API reference reads the code: doctests as code, and no special methods that nobody calls."""

import griffe


class Reference(griffe.Extension):
    """Reads the section `Example`, which pydocstyle asks for, as `Examples`, and drops methods such as `__new__`."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Rename the section: it is then shown as code and not as prose."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")

    def on_class_members(self, *, cls: griffe.Class, **_: object) -> None:
        """Drop special methods but for the parameters of `__init__`, and `__call__`."""
        for name in [*cls.members]:
            if name.startswith("__") and name not in ("__init__", "__call__"):
                cls.del_member(name)
