"""Checkpoints: written as a whole or not at all, verified when read, and never executed.

A checkpoint is a folder `step-00000123` with the weights as safetensors, the rest as tensors and plain values
(loadable with `weights_only=True`), and the checksums of both. It is written under another name and renamed when all of
it is on disk. Where tensors are sharded over processes, each process writes its parts as safetensors of its own, and
any number of processes, with or without shards, reads them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import pickle
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from ...models.saved import check_saved
from ..errors import InputError, RunError
from ..files import apply_umask, one_line, sync, write_atomically
from ..memory import lack_of_memory
from .shards import Processes, is_sharded, read_shards, take_share, write_shards

log = logging.getLogger(__name__)

_WEIGHTS, _AVERAGE, _STATE, _CHECKSUMS = "model.safetensors", "average.safetensors", "state.pt", "checksums.json"
_SHARD = re.compile(r"shard-\d{5}-[\w-]+\.safetensors")
_NAME = re.compile(r"step-(\d{8,})")
_REPLACED = re.compile(r"\.step-(\d{8,})\.replaced")
_GLOBALS = re.compile(r"collections OrderedDict|torch \w+Storage|torch\._utils _rebuild_(tensor_v2|parameter)")
"""What a state may name: what tensors are made of."""
_INSTRUCTIONS = {
    *("PROTO", "STOP", "MARK", "REDUCE", "BINPERSID", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT"),
    *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"),
    *("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("APPEND", "APPENDS", "SETITEM", "SETITEMS"),
}
"""Instructions of a pickle that tensors, numbers, texts, lists, dicts and tuples need."""


Place = tuple[Any, ...]
"""Where a tensor of a checkpoint is: the name of a field, and the keys that lead on from there."""
Like = Callable[[Place], Tensor | None]
"""Maps a place to the sharded tensor that what is there is to lie like, or to None if it is to be whole."""


class DamagedCheckpointError(RunError):
    """A checkpoint has changed since it was written."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """All that a run needs to go on."""

    weights: dict[str, Tensor]
    """State dict of the model."""
    average: dict[str, Tensor] | None
    """State dict of the moving average of the weights, if there is one."""
    state: dict[str, Any]
    """The rest: tensors, numbers, strings, and lists and dicts of them."""

    @property
    def step(self) -> int:
        """Steps completed."""
        return self.state["step"]

    def map_tensors(self, change: Callable[[Place, Tensor], Any]) -> Checkpoint:
        """Return the checkpoint with something else instead of each tensor."""
        return Checkpoint(
            weights=_map_tensors(self.weights, change, ("weights",)),
            average=_map_tensors(self.average, change, ("average",)),
            state=_map_tensors(self.state, change, ("state",)),
        )


class CheckpointFolder:
    """The latest checkpoints of a run, so many as are to be kept."""

    def __init__(self, path: Path, *, keep: int = 2) -> None:
        self.path, self.keep = path, keep

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, and then remove the oldest ones; those are intact if it cannot be written.

        If its weights are sharded over processes, all of them must call this.
        """
        final = self.path / _name(checkpoint.step)
        temporary = self.path / f".{final.name}.partial"
        processes = Processes(is_alone=not any(map(is_sharded, checkpoint.weights.values())))
        try:
            processes.gather(lambda: self._make_room(temporary) if processes.is_main else None)
            written = processes.gather(lambda: _write(temporary, checkpoint, processes))
            checksums = {name: checksum for part in written for name, checksum in part.items()}
            processes.gather(lambda: self._publish(temporary, final, checksums) if processes.is_main else None)
        except (OSError, MemoryError, SafetensorError, RuntimeError) as error:
            if processes.is_main:
                shutil.rmtree(temporary, ignore_errors=True)
            if lack_of_memory(error) is not None:
                raise
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error).splitlines()[0]
            latest = self.steps()
            intact = f"the checkpoint of step {latest[-1]} is intact" if latest else "there is none yet"
            raise RunError(f"The checkpoint {final} could not be written ({reason}); {intact}.") from error
        if processes.is_main:
            self._remove_outdated(checkpoint.step)
        return final

    def _make_room(self, temporary: Path) -> None:
        """Make the empty folder that a checkpoint is written to."""
        if self.path.is_symlink():
            raise OSError(errno.ELOOP, f"{self.path.name} is a link")
        # Without its parents: a run whose folder is gone does not come back as a folder of checkpoints.
        self.path.mkdir(exist_ok=True)
        for step, folder in self._folders().items():
            # What a crash left about to be replaced gets its name again; only who writes may do that.
            if folder.name != _name(step):
                folder.rename(self.path / _name(step))
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()

    def _publish(self, temporary: Path, final: Path, checksums: dict[str, str]) -> None:
        """Give a checkpoint that is on disk its name."""
        write_atomically(temporary / _CHECKSUMS, json.dumps(checksums, indent=1))
        if final.exists():
            # From before the run was resumed; should the line after these not be reached, it still counts.
            replaced = self.path / f".{final.name}.replaced"
            shutil.rmtree(replaced, ignore_errors=True)
            final.rename(replaced)
        temporary.rename(final)
        sync(self.path)

    def _remove_outdated(self, step: int) -> None:
        # What comes after this step was damaged, or belongs to a future that is being rewritten.
        steps = self.steps()
        later, earlier = [s for s in steps if s > step], [s for s in steps if s <= step]
        outdated = [self.path / _name(step) for step in (*later, *earlier[: -self.keep])]
        for folder in (*outdated, *self.path.glob(".step-*")):
            shutil.rmtree(folder, ignore_errors=True)

    def steps(self) -> list[int]:
        """Return the steps of which there is a checkpoint, in order."""
        return sorted(self._folders())

    def load(self, step: int, *, like: Like = lambda place: None) -> Checkpoint:
        """Return the checkpoint of a step, or raise a DamagedCheckpointError.

        Args:
            step: The step.
            like: How its tensors are to be sharded; by default they are whole.
        """
        folder = self._folders().get(step)
        if folder is None:
            known = ", ".join(map(str, self.steps())) or "none"
            raise InputError(f"There is no checkpoint of step {step} in {self.path}; there are: {known}.")
        try:
            # Who opens a pipe waits for its other end.
            files = {file.name for file in folder.iterdir() if file.is_file()}
            checksums = json.loads((folder / _CHECKSUMS).read_text()) if _CHECKSUMS in files else {}
            files.discard(_CHECKSUMS)
            has_shards = any(_SHARD.fullmatch(name) for name in files)
            if checksums.keys() != files or _STATE not in files or (_WEIGHTS in files) == has_shards:
                raise ValueError("its files are not the files that were written.")
            for name, checksum in checksums.items():
                if _checksum(folder / name) != checksum:
                    raise ValueError(f"{name} has changed since it was written.")
            # Before PyTorch reads it: that executes no foreign code, but makes objects of any size.
            check_saved(folder / _STATE, is_known=_is_known)
            state = torch.load(folder / _STATE, weights_only=True, map_location="cpu")
            _check_state(state, step)
            if has_shards:
                return _join(read_shards(folder, lambda name: like(_place(name))), state)
            checkpoint = Checkpoint(
                weights=_load_tensors(folder / _WEIGHTS),
                average=_load_tensors(folder / _AVERAGE) if _AVERAGE in checksums else None,
                state=state,
            )
            return checkpoint.map_tensors(lambda place, tensor: _share(tensor, like(place)))
        except InputError:
            raise
        except Exception as error:  # whatever the readers of three formats make of damage
            if lack_of_memory(error) is not None:
                # It may be whole, and is not to be replaced by an earlier one.
                raise
            # Those of PyTorch give advice on how to execute what is in the file.
            own = isinstance(error, (OSError, ValueError)) and not isinstance(error, pickle.UnpicklingError)
            reason = one_line(error) if own else f"{type(error).__name__} on reading it"
            raise DamagedCheckpointError(f"The checkpoint {folder} is damaged: {reason}.") from error

    def load_latest(self, *, like: Like = lambda place: None) -> Checkpoint | None:
        """Return the latest checkpoint that is whole, naming those that are not; None if there is none at all.

        Args:
            like: How its tensors are to be sharded; by default they are whole.
        """
        damaged: DamagedCheckpointError | None = None
        steps = self.steps()
        for step in reversed(steps):
            try:
                return self.load(step, like=like)
            except (DamagedCheckpointError, InputError) as error:
                if step not in self.steps():
                    # The run goes on, and has just replaced it by a later one.
                    return self.load_latest(like=like)
                if not isinstance(error, DamagedCheckpointError):
                    raise
                log.warning("%s Trying the one before it.", error)
                damaged = error
        if damaged is not None:
            raise DamagedCheckpointError(f"No checkpoint in {self.path} can be used: {damaged}") from damaged
        return None

    def _folders(self) -> dict[int, Path]:
        """Return the folders of the checkpoints by their steps; one about to be replaced counts if it is alone."""
        entries = [entry.name for entry in self.path.iterdir()] if self.path.is_dir() else []
        replaced = {int(match[1]): match[0] for name in entries if (match := _REPLACED.fullmatch(name))}
        final = {int(match[1]): match[0] for name in entries if (match := _NAME.fullmatch(name))}
        return {step: self.path / name for step, name in {**replaced, **final}.items()}


def _write(folder: Path, checkpoint: Checkpoint, processes: Processes) -> dict[str, str]:
    """Have what this process writes of a checkpoint on disk; return the checksums of its files."""
    state, files = checkpoint.state, []
    if any(map(is_sharded, checkpoint.weights.values())):
        tensors, state = _split(checkpoint)
        files += write_shards(folder, tensors)
    else:
        for name, tensors in ((_WEIGHTS, checkpoint.weights), (_AVERAGE, checkpoint.average)):
            if tensors is not None:
                # safetensors refuses tensors that share memory, as tied weights do.
                own = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
                safetensors.torch.save_file(own, folder / name)
                files.append(folder / name)
    if processes.is_main:
        torch.save(state, folder / _STATE)
        files.append(folder / _STATE)
    checksums = {file.name: _checksum(file) for file in sorted(files)}
    for file in files:
        apply_umask(file)
        sync(file)
    return checksums


# Tensors by name, for files of shards


def _map_tensors(value: Any, change: Callable[[Place, Tensor], Any], place: Place) -> Any:
    if isinstance(value, Tensor):
        return change(place, value)
    if isinstance(value, dict):
        return {key: _map_tensors(part, change, (*place, key)) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_map_tensors(part, change, (*place, index)) for index, part in enumerate(value))
    return value


def _split(checkpoint: Checkpoint) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return all weights and all that is sharded by name, and the state with None instead of what was taken."""
    tensors: dict[str, Tensor] = {}

    def take(place: Place, tensor: Tensor) -> Tensor | None:
        if place[0] == "state" and not is_sharded(tensor):
            return tensor
        tensors[_place_name(place)] = tensor
        return None

    return tensors, checkpoint.map_tensors(take).state


def _join(tensors: dict[str, Tensor], state: dict[str, Any]) -> Checkpoint:
    """Return what `_split` took apart."""
    parts: dict[str, dict[str, Tensor]] = {"weights": {}, "average": {}}
    for name, tensor in tensors.items():
        field, *keys = _place(name)
        if field != "state":
            parts[field][keys[0]] = tensor
            continue
        owner: Any = state
        for key in keys[:-1]:
            owner = owner[key]
        if owner[keys[-1]] is not None:
            raise ValueError(f"{name} occurs twice.")
        owner[keys[-1]] = tensor
    return Checkpoint(weights=parts["weights"], average=parts["average"] or None, state=state)


def _place_name(place: Place) -> str:
    field, *keys = place
    return f"{field}.{json.dumps(keys) if field == 'state' else keys[0]}"


def _place(name: str) -> Place:
    field, _, rest = name.partition(".")
    return (field, *json.loads(rest)) if field == "state" else (field, rest)


def _share(tensor: Tensor, like: Tensor | None) -> Tensor:
    return tensor if like is None or like.shape != tensor.shape else take_share(tensor, like)


# Files


def _load_tensors(path: Path) -> dict[str, Tensor]:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        # A name that safetensors cannot open.
        return safetensors.torch.load(path.read_bytes())
    return safetensors.torch.load_file(path)


def _is_known(instruction: str, argument: Any) -> bool:
    """Return whether an instruction of a pickle is one that runs save."""
    is_global = instruction == "GLOBAL" and _GLOBALS.fullmatch(str(argument)) is not None
    return is_global or instruction in _INSTRUCTIONS


def _check_state(state: Any, step: int) -> None:
    """Refuse what no run has saved."""
    if not isinstance(state, dict) or type(state.get("step")) is not int or state["step"] != step:
        raise ValueError(f"{_STATE} is not a state of step {step}.")
    identity = state.get("identity")
    types = {"config": dict, "data": dict, "vocabulary": (str, type(None))}
    is_identity = isinstance(identity, dict) and identity.keys() == types.keys()
    if identity is not None and not (is_identity and all(isinstance(identity[n], t) for n, t in types.items())):
        raise ValueError(f"{_STATE} does not name the versions, config and data of the run.")


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
