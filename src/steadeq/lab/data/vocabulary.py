"""Tokens and their numbers."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from pathlib import Path

from ..errors import InputError
from ..files import open_plain

EOS = "<eos>"
"""Stands at the end of each line."""
UNKNOWN = "<unk>"
"""Stands for all tokens that are not in the vocabulary."""
MAX_TOKENS = 2_000_000
"""The most tokens of a vocabulary that is made of a text; WikiText-103 has 267,735."""
MAX_LINE = 1 << 20
"""The most bytes of a line of a text."""


class Vocabulary:
    """The tokens that a model knows, numbered from 0.

    Args:
        tokens: All tokens in order, `<eos>` and `<unk>` among them.

    Example:
        >>> vocabulary = Vocabulary(["<eos>", "the", "cat", "<unk>"])
        >>> vocabulary.encode(["the", "dog", "<eos>"])
        [1, 3, 0]
        >>> vocabulary.decode([1, 3, 0])
        ['the', '<unk>', '<eos>']
        >>> "dog" in vocabulary
        False
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = tuple(tokens)
        self._numbers = {token: number for number, token in enumerate(self.tokens)}
        if len(self._numbers) < len(self.tokens):
            raise InputError("The vocabulary has a token twice.")
        for token in (EOS, UNKNOWN):
            if token not in self._numbers:
                raise InputError(f"The vocabulary has no {token}.")
        self.eos, self.unknown = self._numbers[EOS], self._numbers[UNKNOWN]

    @classmethod
    def of_lines(cls, lines: Iterable[Sequence[str]]) -> Vocabulary:
        """Return the tokens of a text: `<eos>`, then all others by frequency, the first seen first where these agree.

        `<unk>` has the place that its own frequency gives it, which is the last one if the text does without.

        Example:
            >>> Vocabulary.of_lines([["b", "a", "b"], ["c"]]).tokens
            ('<eos>', 'b', 'a', 'c', '<unk>')
        """
        counts: Counter[str] = Counter()
        for line in lines:
            counts.update(line)
            if len(counts) > MAX_TOKENS:
                raise InputError(
                    f"The text has more than {MAX_TOKENS:,} different words: replace rare ones by {UNKNOWN}."
                )
        counts.setdefault(UNKNOWN, 0)
        del counts[EOS]
        return cls([EOS, *(word for word, _ in counts.most_common())])

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, token: object) -> bool:
        return token in self._numbers

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Return the numbers of tokens, with the one of `<unk>` for tokens that have none."""
        return list(map(self._numbers.get, tokens, repeat(self.unknown)))

    def decode(self, numbers: Iterable[int]) -> list[str]:
        """Return the tokens of numbers."""
        return [self.tokens[number] for number in numbers]

    def digest(self) -> str:
        """Return a digest that identifies this vocabulary."""
        return hashlib.blake2b("\n".join(self.tokens).encode(), digest_size=16).hexdigest()


def read_lines(path: Path) -> Iterator[list[str]]:
    """Yield the words of each line of a text, what is between white space, without ever holding all of it."""
    is_empty = True
    try:
        with open_plain(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), start=1):
                if len(line) > MAX_LINE:
                    raise InputError(f"{path} is not text: line {number} has more than {MAX_LINE:,} bytes.")
                if b"\0" in line:
                    raise InputError(f"{path} is not UTF-8 text: line {number} has a zero byte.")
                try:
                    words = line.decode().split()
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"{path} is not UTF-8 text: line {number} has the byte 0x{line[error.start]:02x} , which is "
                        "invalid there."
                    ) from None
                is_empty = is_empty and not words
                yield words
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    if is_empty:
        raise InputError(f"{path} is empty: it has no words.")
