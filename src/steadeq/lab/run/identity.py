"""What a run is tied to: its config, its samples and its vocabulary, by which others are told from them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ...codec import join, to_plain
from ..config import TrainConfig
from ..data import Splits, Vocabulary, fingerprint
from ..errors import InputError
from ..serialization import has_default

_FREE = {
    "recipe",
    "loop.device",
    "log.checkpoint_every",
    "log.keep_checkpoints",
    "log.mlflow",
    "log.tensorboard",
    "log.wandb",
}
"""Fields of a config that do not change what is computed."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What a checkpoint says that the run was made with."""

    config: dict[str, Any]
    """All fields of the config by their full names, but for those that do not change what is computed."""
    data: dict[str, str]
    """Digests of the samples, by split."""
    vocabulary: str | None
    """Digest of the tokens that numbers stand for, if it is trained on a text."""

    @classmethod
    def of(cls, config: TrainConfig, splits: Splits, vocabulary: Vocabulary | None) -> Identity:
        """Return what a run with this config, these samples and these tokens, if it is on a text, is tied to."""
        return cls(
            config=_flatten(to_plain(config)),
            data={field.name: fingerprint(getattr(splits, field.name)) for field in fields(splits)},
            vocabulary=None if vocabulary is None else vocabulary.digest(),
        )

    def to_state(self) -> dict[str, Any]:
        """Return what a checkpoint holds of it."""
        return asdict(self)

    def digest(self) -> str:
        """Return what tells it from others, in short."""
        return hashlib.blake2b(json.dumps(asdict(self), sort_keys=True).encode(), digest_size=16).hexdigest()

    def check_config(self, config: TrainConfig, path: Path) -> None:
        """Refuse a config that differs from the one in the checkpoint."""
        old, new = self.config, _flatten(to_plain(config))
        for name in old | new:
            # A field that is younger than the run has its default: that is what the run was made with.
            is_younger = name not in old and has_default(config, name)
            if old.get(name) != new.get(name) and not is_younger:
                raise InputError(
                    f"{path / 'config.json'} has changed since the checkpoint: {name} is {new.get(name)} and was "
                    f"{old.get(name)}. Restore it, or train again in another folder."
                )

    def check_data(self, split: str, digest: str, path: Path) -> None:
        """Refuse other samples than those of the checkpoint."""
        if self.data.get(split) != digest:
            name = self.config["data.class"].rpartition(":")[2]
            raise InputError(f"{path} was trained with other data: the {split} samples of {name} have changed.")

    def check_vocabulary(self, digest: str | None, path: Path) -> None:
        """Refuse a vocabulary that differs from the one of the checkpoint."""
        if self.vocabulary != digest:
            raise InputError(f"{path} was trained with another vocabulary than the one of this text.")

    def check(self, current: Identity, config: TrainConfig, path: Path) -> None:
        """Refuse to go on with anything else than what the checkpoint was made with."""
        self.check_config(config, path)
        self.check_vocabulary(current.vocabulary, path)
        for split, digest in current.data.items():
            self.check_data(split, digest, path)


def _flatten(content: dict[str, Any], where: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in content.items():
        name = join(where, name)
        if name not in _FREE:
            flat |= _flatten(value, name) if isinstance(value, dict) else {name: value}
    return flat
