"""Data sets of a few samples, in the files in which they are published."""

from pathlib import Path

import torch

WORDS = tuple(f"w{number}" for number in range(13))
CIFAR_FILES = (*(f"data_batch_{index}" for index in range(1, 6)), "test_batch")


def write_cifar(folder: Path, *, per_file: int = 4, seed: int = 0) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Write the binary files of CIFAR-10, with all classes in turn; return the images and labels of each."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    content = {}
    for name in CIFAR_FILES:
        images = torch.randint(256, (per_file, 3, 32, 32), generator=generator, dtype=torch.uint8)
        labels = torch.arange(per_file) % 10
        # A label, then red, green and blue, each row by row.
        records = torch.cat([labels[:, None].to(torch.uint8), images.flatten(1)], dim=1)
        (folder / f"{name}.bin").write_bytes(bytes(records.flatten().tolist()))
        content[name] = images, labels
    return content


def write_texts(folder: Path, train: str | bytes, valid: str | bytes, test: str | bytes) -> Path:
    """Write the files of WikiText-2 or WikiText-103; return their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, text in (("train", train), ("valid", valid), ("test", test)):
        (folder / f"wiki.{split}.tokens").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def write_words(folder: Path) -> Path:
    """Write texts of 13 words, each of which is in all of them; with the end of a line and <unk>, 15 tokens."""
    generator = torch.Generator().manual_seed(0)
    numbers = [[*range(13), *torch.randint(13, (length,), generator=generator).tolist()] for length in (150, 60, 40)]
    return write_texts(folder, *(" ".join(WORDS[number] for number in text) + "\n" for text in numbers))
