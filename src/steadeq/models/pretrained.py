"""Models as folders: config.json and model.safetensors, on disk or on the Hugging Face Hub."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import pickle
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .._internal.validation import suggestion
from ..adjoints import AbstractAdjoint
from ..codec import CLASS, Reader, class_path, shortened, shown, to_plain
from ..nn import DEQ
from ..solvers import AbstractSolver
from .saved import check_saved

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_HUB_NAMES = ("ETag", "X-Linked-Etag", "X-Repo-Commit", "X-Xet-Hash")
"""Headers of a Hub of which its client makes names of files."""
_HUB_NAME = re.compile(r'(W/)?"?\w[\w.-]{0,127}"?')
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Dtypes of weights that a model computes with."""
_M = TypeVar("_M", bound="PretrainedModel")


class PretrainedModel(nn.Module):
    """A model that can be saved to a folder and loaded from one.

    A subclass defines its `Config`, an `AbstractModelConfig`, in its body, and keeps the config that it was built from
    as `config`. Its constructor takes a config first.

    Example:
        >>> from steadeq.models import ToyDEQ
        >>> model = ToyDEQ(hidden=10).eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save_pretrained(folder)
        ...     copy = ToyDEQ.from_pretrained(folder)
        >>> copy.config, torch.equal(copy(torch.ones(3, 1)), model(torch.ones(3, 1)))
        (ToyDEQ.Config(hidden=10), True)
    """

    config: Any
    """The sizes."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "Config" in vars(cls):
            vars(cls)["Config"].model_class = cls

    def save_pretrained(self, folder: Path | str, *, card: str = "") -> None:
        """Write config.json, model.safetensors and a model card; a model that was saved there before is replaced.

        Solver and adjoint are not saved. Parameters that are shared are written once. The card, README.md, says
        what the model is and how to load it; `steadeq save` adds what is known of a run. A README.md that something
        else wrote is left as it is.

        Args:
            folder: The folder, which is created if it does not exist.
            card: Markdown for the card, such as what the model was trained on and how well it does.

        Raises:
            ValueError: The folder cannot be written, or has a config.json of something else.
        """
        path, config = Path(folder), getattr(self, "config", None)
        if not dataclasses.is_dataclass(config):
            raise TypeError(
                f"{type(self).__name__} has no config; store the config that it was built from as self.config."
            )
        content = {CLASS: class_path(type(config)), **to_plain(config)}
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in _distinct(self).items()}
        if (path / CONFIG).exists() and not is_pretrained(path):
            raise ValueError(
                f"{path / CONFIG} is not the config of a steadeq model and will not be overwritten; name another "
                "folder."
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path, prefix=".") as temporary:
                names = (WEIGHTS, CONFIG) if _has_own_card(path) else (WEIGHTS, CARD, CONFIG)
                parts = [Path(temporary, name) for name in names]
                parts[0].write_bytes(_require_safetensors().save(weights, {"format": "pt"}))
                Path(temporary, CARD).write_text(_card(self, card), encoding="utf-8")
                parts[-1].write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
                # In this order, so that there never is a config next to the weights of another model.
                (path / CONFIG).unlink(missing_ok=True)
                for part in parts:
                    part.replace(path / part.name)
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror}.") from error

    @classmethod
    def from_pretrained(
        cls: type[_M],
        folder: Path | str,
        *,
        solver: AbstractSolver | None = None,
        adjoint: AbstractAdjoint | None = None,
        **fields: Any,
    ) -> _M:
        """Return a model that was saved, in evaluation mode.

        Only this class and its subclasses are loaded, and only if they are imported already: a file never causes an
        import.

        Args:
            folder: The folder, or the name of a model on the Hugging Face Hub such as "user/model" (needs the extra
                `hub`).
            solver: How to find equilibria, instead of the model's default.
            adjoint: How to differentiate them, instead of the model's default.
            **fields: Fields that override the saved config and keep the shapes of the weights, such as `dropout`.

        Raises:
            ValueError: There is no such folder or model, a file is invalid, or a weight is not finite.
            TypeError: There is no such field, or the model has no use for a solver or an adjoint.
        """
        path = _locate(folder)
        config = _read_config(path / CONFIG, cls)
        weights = read_weights(path / WEIGHTS)
        model = _build_fitting(config.resolve(config, fields), weights, path)
        for name, tensor in _distinct(model).items():
            # What is shared stays shared, and the dtype is the one that was saved.
            tensor.data = weights[name]
        if (found := find_not_finite(model)) is not None:
            raise ValueError(f"{path} cannot be used: its {found} is not finite; train the model again.")
        for name, value in (("solver", solver), ("adjoint", adjoint)):
            if value is not None:
                if not isinstance(layer := getattr(model, "layer", None), DEQ):
                    raise TypeError(f"{name} is given, but {type(model).__name__} has no equilibrium layer.")
                setattr(layer, name, value)
        return model.eval()

    def push_to_hub(self, repo_id: str, *, private: bool = False) -> str:
        """Save the model to the Hugging Face Hub, with the login of the Hub's own tools; needs the extra `hub`.

        Args:
            repo_id: Name of the model there, such as "user/model"; it is created if it does not exist.
            private: Whether a repository that is created is private.

        Returns:
            The address of the upload.

        Raises:
            ValueError: The package huggingface_hub is not installed.
        """
        api = _require_hub(f"Saving {repo_id} to the Hugging Face Hub").HfApi()
        with tempfile.TemporaryDirectory() as temporary:
            self.save_pretrained(temporary)
            api.create_repo(repo_id, private=private, exist_ok=True)
            return str(api.upload_folder(repo_id=repo_id, folder_path=temporary))


_HEADER = "---\nlibrary_name: steadeq"


def _has_own_card(folder: Path) -> bool:
    """Return whether a folder has a README.md that is not of ours."""
    path = folder / CARD
    return path.is_file() and not path.read_text(encoding="utf-8", errors="replace").startswith(_HEADER)


def _card(model: PretrainedModel, more: str) -> str:
    """Return the text of a model card, with the header that the Hugging Face Hub reads."""
    name, home = type(model).__name__, type(model).__module__
    # Where users import it from.
    home = "steadeq.models" if home.startswith("steadeq.models") else home
    count = sum(parameter.numel() for parameter in model.parameters())
    return f"""{_HEADER}
tags: [deep-equilibrium-model]
---

# {name}

A {name} of [steadeq](https://github.com/steadeq/steadeq) with {count:,} parameters: `{model.config!r}`.

```python
from {home} import {name}

model = {name}.from_pretrained("folder, or user/model on the Hugging Face Hub")
```
{f"{chr(10)}{more.strip()}{chr(10)}" if more else ""}"""


def is_pretrained(folder: Path) -> bool:
    """Return whether a folder holds a model that `save_pretrained` wrote."""
    try:
        content = json.loads(_read_text(folder / CONFIG))
    except (OSError, ValueError, RecursionError):
        return False
    # The config of a run has no class, and those of other libraries none with a colon.
    return isinstance(content, dict) and ":" in str(content.get(CLASS))


def read_weights(path: Path) -> Mapping[str, Any]:
    """Return the content of a file of weights, .safetensors or of `torch.save`, without executing anything in it.

    Args:
        path: The file.

    Raises:
        ValueError: It cannot be read, or holds something else.
    """
    safetensors = _require_safetensors() if path.suffix == ".safetensors" else None
    try:
        _check_plain(path)
        path.open("rb").close()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        if safetensors is None:
            check_saved(path)
        content = (
            safetensors.load_file(path) if safetensors else torch.load(path, map_location="cpu", weights_only=True)
        )
    except Exception as error:
        # What bytes that are no checkpoint raise is a matter of chance.
        if isinstance(error, pickle.UnpicklingError) and (found := re.search(r"GLOBAL (\S+)", str(error))):
            raise ValueError(
                f"{path} holds an object of {found[1]} besides tensors, and loading it would execute code from the "
                "file. Load it with its own code, save the model's state_dict(), and read that file."
            ) from error
        raise ValueError(f"{path} is damaged or not a file of weights; get the file again.") from error
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} holds a {type(content).__name__}; it must hold a state dict.")
    return content


# Files


def _read_text(path: Path) -> str:
    _check_plain(path)
    return path.read_text(encoding="utf-8")


def _check_plain(path: Path) -> None:
    """Refuse what is no file: a pipe would be waited for until somebody writes to it, and a device may never end."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))


# Configs


def _derived(kind: type) -> Iterator[type]:
    """Yield a class and all that are derived from it."""
    yield kind
    for child in kind.__subclasses__():
        yield from _derived(child)


def _read_config(path: Path, model_class: type) -> Any:
    """Return the config of a folder, of a model of this class or of one derived from it."""
    try:
        content = json.loads(_read_text(path))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: it is not JSON.") from error
    if not isinstance(content, dict) or CLASS not in content:
        raise ValueError(f"{path} is not the config of a model: it has no {CLASS!r}.")
    name = content.pop(CLASS)
    configs = (getattr(kind, "Config", None) for kind in _derived(model_class))
    known = {class_path(kind): kind for kind in configs if kind is not None}
    if not isinstance(name, str) or name not in known:
        hint = suggestion(str(name), known)
        raise ValueError(f"{path}: {CLASS} is {shown(name)}, which is not an imported {model_class.__name__}.{hint}")
    try:
        return Reader(is_complete=True).read_section(content, known[name])
    except ValueError as error:
        raise ValueError(f"{path}: {shortened(str(error), 500)}") from error


# Weights


def _distinct(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers, each by the first of its names."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), (name, tensor))
    return dict(found.values())


def _build_fitting(config: Any, weights: Mapping[str, Any], path: Path) -> Any:
    """Return the model of a config, which is refused before it takes memory unless the weights are those of it."""
    try:
        try:
            with torch.device("meta"), _no_more_parameters_than(len(weights)):
                own = _distinct(config.build())
        except (RuntimeError, TypeError) as error:
            # Somebody's own network may ask for numbers, which are not there yet.
            if "meta" not in str(error):
                raise
            own = _distinct(config.build())
        problems = list(_differences(own, weights))
        if not problems:
            return config.build()
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].removesuffix(".")
        raise ValueError(
            f"{path / CONFIG} describes a model that cannot be built: {shortened(reason, 500)}."
        ) from error
    first = "; ".join(problems[:5]) + ("; ..." if len(problems) > 5 else "")
    raise ValueError(f"{path / WEIGHTS} does not fit {shortened(repr(config), 800)}: {first}.")


@contextmanager
def _no_more_parameters_than(count: int) -> Iterator[None]:
    """Stop who builds a model of more parameters than there are weights, as one of a billion layers would."""
    # Tied parameters have several names, of which one is saved.
    left, thread = 10 * count + 1000, threading.get_ident()

    def note(module: nn.Module, name: str, parameter: Any) -> None:
        nonlocal left
        left -= threading.get_ident() == thread
        if left < 0:
            raise ValueError(f"it has more parameters than the {count} weights in the file")

    hook = nn.modules.module.register_module_parameter_registration_hook(note)
    try:
        yield
    finally:
        hook.remove()


def _differences(own: Mapping[str, Tensor], given: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the names, shapes and dtypes of weights."""
    for name in sorted(own.keys() | given.keys()):
        if name not in given:
            yield f"{name} is missing"
        elif name not in own:
            yield f"{name} is left over"
        elif own[name].shape != given[name].shape:
            yield f"{name} has shape {tuple(given[name].shape)} instead of {tuple(own[name].shape)}"
        elif not _is_computable(given[name].dtype, own[name].dtype):
            yield f"{name} is {_dtype_name(given[name])} instead of {_dtype_name(own[name])}"


def _is_computable(given: torch.dtype, own: torch.dtype) -> bool:
    """Return whether a model can compute with a dtype instead of its own; none is cast."""
    return given == own or (own in _FLOATS and given in _FLOATS)


def find_not_finite(model: nn.Module) -> str | None:
    """Return which weight or buffer is not finite, if one is: a solver would return its start, as if it were a result.

    A buffer may hold -inf, as masks do.
    """
    tensors = [("weight", *named) for named in model.named_parameters()]
    tensors += [("buffer", *named) for named in model.named_buffers()]
    for kind, name, tensor in tensors:
        count: Any = (~(tensor.isfinite() if kind == "weight" else tensor < math.inf)).sum()
        # Of a sharded weight, so that all processes find it.
        if count.full_tensor() if hasattr(count, "full_tensor") else count:
            return f"{kind} {name}"
    return None


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# Packages that are optional


def _require_safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ValueError("Files of weights need safetensors: pip install safetensors.") from error
    return safetensors.torch


def _require_hub(what: str) -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise ValueError(f"{what} needs huggingface_hub: pip install huggingface_hub.") from error
    return huggingface_hub


def _locate(folder: Path | str) -> Path:
    """Return the folder, downloaded if it is the name of a model on the Hugging Face Hub."""
    name = str(folder)
    if Path(folder).is_dir():
        return Path(folder)
    if not _HUB_ID.fullmatch(name):
        raise ValueError(f"{name} is not a folder.")
    hub = _require_hub(f"{name} is not a local folder, and looking for it on the Hugging Face Hub")
    try:
        with _checked_answers(hub.get_session()):
            path = Path(hub.hf_hub_download(name, CONFIG)).parent
            # The weights of the same commit.
            hub.hf_hub_download(name, WEIGHTS, revision=path.name)
    except Exception as error:
        # What the client makes of an odd server: errors of its own, of three other packages, and failed assertions.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"{name} is not a local folder, and cannot be read from the Hugging Face Hub: {reason}"
        ) from error
    return path


@contextmanager
def _checked_answers(session: Any) -> Iterator[None]:
    """Refuse answers of a server by which its client would write outside of its cache."""
    hooks = session.event_hooks["response"]
    hooks.append(_check_answer)
    try:
        yield
    finally:
        hooks.remove(_check_answer)


def _check_answer(response: Any) -> None:
    for header in _HUB_NAMES:
        name = response.headers.get(header)
        if name is not None and not _HUB_NAME.fullmatch(name):
            raise ValueError(f"its {header} is {name[:80]!r}, which is not a file name.")
