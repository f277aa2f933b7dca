"""Exports to devices, links, pipes and full disks: one sentence, and what was there before stays."""

import os
import resource
from pathlib import Path
from random import Random

from torture import subjects
from torture.process import command


def attempt(draw: Random, folder: Path) -> None:
    """Export a run to a strange place."""
    subjects.copy_of(subjects.finished("plain"), folder)
    target, precious = folder / "model.pt2", folder / "precious.pt2"
    precious.write_bytes(b"years of work")
    way = draw.choice(("device", "full", "link", "circle", "pipe", "folder", "small disk", "file"))
    limits = {}
    if way in ("device", "full"):
        target.symlink_to("/dev/null" if way == "device" else "/dev/full")
    elif way == "link":
        target.symlink_to(precious)
    elif way == "circle":
        target.symlink_to(target)
    elif way == "pipe":
        os.mkfifo(target)
    elif way == "folder":
        target.mkdir()
    elif way == "small disk":
        precious.rename(target)
        limits = {resource.RLIMIT_FSIZE: 1000}
    arguments = ("export", "run", "-o", target.name, "--evals", "2", "--solver", "Picard")
    outcome = command(*arguments, folder=folder, environment=subjects.environment(folder), limits=limits)
    # Whoever names a link means what it leads to.
    outcome.check(*((0,) if way in ("device", "link", "file") else (1, 2)))
    if way == "small disk":
        assert target.read_bytes() == b"years of work"
    elif way != "link":
        assert precious.read_bytes() == b"years of work"
    left = [path.name for path in folder.iterdir() if path.name.startswith(".")]
    assert not left, f"left behind: {left}"
