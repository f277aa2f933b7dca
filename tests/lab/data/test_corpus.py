"""Texts: vocabulary, tokens in the cache, streams, honest errors."""

import os
import random
import tracemalloc
from types import SimpleNamespace

import pytest
import torch
from lab.data.damages import damaged
from lab.data.published import write_texts

from steadeq.lab.data import TokenStreams, WikiText2, WikiText103, token_cache, vocabulary
from steadeq.lab.data.vocabulary import Vocabulary, read_lines
from steadeq.lab.errors import InputError

TRAIN = " \n = A title = \n the cat sat on the mat \n the <unk> sat \n"
VALID = "the dog sat\n\ncat"
TEST = "a mat on a dog \n"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("STEADEQ_DATA", str(tmp_path / "data"))
    return tmp_path / "cache" / "steadeq" / "text"


@pytest.fixture(params=["wikitext-2", "wikitext-103"])
def name(request):
    return request.param


def write(tmp_path, name="wikitext-2", *, train=TRAIN, valid=VALID, test=TEST):
    return write_texts(tmp_path / "data" / name, train, valid, test)


def load(name):
    """Return the vocabulary and the tokens of each text."""
    config = {"wikitext-2": WikiText2, "wikitext-103": WikiText103}[name](length=1)
    splits = config.load()
    tokens = {split: getattr(splits, split).tokens for split in ("train", "validation", "test")}
    return SimpleNamespace(vocabulary=config.vocabulary(), **tokens)


def words(texts, split):
    return " ".join(texts.vocabulary.decode(getattr(texts, split).tolist()))


@pytest.fixture
def encodings(monkeypatch):
    """Names of the texts that are encoded, which what is in the cache does without."""
    names = []
    encode = token_cache._encode
    monkeypatch.setattr(token_cache, "_encode", lambda text, *rest: [names.append(text.name), encode(text, *rest)][1])
    return names


# Content


def test_each_line_ends_in_eos_and_unknown_words_become_unk(tmp_path, name):
    write(tmp_path, name)
    texts = load(name)
    assert words(texts, "train") == "<eos> = A title = <eos> the cat sat on the mat <eos> the <unk> sat <eos>"
    assert words(texts, "validation") == "the <unk> sat <eos> <eos> cat <eos>"
    assert words(texts, "test") == "<unk> mat on <unk> <unk> <eos>"
    assert texts.train.dtype == torch.int32


def test_words_of_the_training_text_are_numbered_by_frequency_and_then_by_first_occurrence(tmp_path):
    write(tmp_path)
    known = load("wikitext-2").vocabulary
    assert known.tokens == ("<eos>", "the", "=", "sat", "A", "title", "cat", "on", "mat", "<unk>")
    assert len(known) == 10
    assert "dog" not in known
    assert known.encode(["cat", "Cat"]) == [6, known.unknown]


def test_eos_of_a_text_of_windows_line_ends_and_unicode_spaces_are_understood(tmp_path):
    write(tmp_path, train="a <eos> b <eos>\n")
    texts = load("wikitext-2")
    assert texts.vocabulary.tokens == ("<eos>", "a", "b", "<unk>")
    assert texts.train.tolist() == [1, 0, 2, 0, 0]
    write(tmp_path, train="caf\u00e9\u00a0au lait\r\nfin\r\n")
    assert words(load("wikitext-2"), "train") == "café au lait <eos> fin <eos>"


def test_a_text_of_many_chunks_is_the_same_as_one_of_one(tmp_path, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(50, (40, 7), generator=generator).tolist()
    write(tmp_path, train="\n".join(" ".join(f"w{i}" for i in line) for line in ids))
    monkeypatch.setattr(token_cache, "_CHUNK", 13)
    texts = load("wikitext-2")
    assert words(texts, "train").split(" <eos>")[:-1] == [
        (" " if n else "") + " ".join(f"w{i}" for i in line) for n, line in enumerate(ids)
    ]


# Cache


def test_a_text_is_encoded_once_and_anew_when_it_changes_even_if_its_size_and_time_are_the_same(tmp_path, encodings):
    path = write(tmp_path) / "wiki.valid.tokens"
    first, second = load("wikitext-2"), load("wikitext-2")
    assert len(encodings) == 3
    assert torch.equal(first.train, second.train)
    assert first.vocabulary.tokens == second.vocabulary.tokens
    before = path.stat()
    path.write_text(VALID.replace("cat", "mat"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert words(load("wikitext-2"), "validation").endswith("mat <eos>")
    assert encodings[3:] == ["wiki.valid.tokens"]


def test_a_new_vocabulary_encodes_all_texts_anew(tmp_path, encodings):
    write(tmp_path)
    old = load("wikitext-2")
    write(tmp_path, train="dog dog cat\n")
    assert words(load("wikitext-2"), "validation") == "<unk> dog <unk> <eos> <eos> cat <eos>"
    assert len(encodings) == 6
    # What was mapped before stays what it was.
    assert words(old, "validation") == "the <unk> sat <eos> <eos> cat <eos>"


def rewrite(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


def in_place_of(make):
    def replace(path):
        path.unlink()
        make(path)

    return replace


DAMAGES = {
    "truncated": rewrite(lambda content: content[:-4]),
    "longer": rewrite(lambda content: content + b"\0\0\0\0"),
    "empty": rewrite(lambda content: b""),
    "header": rewrite(lambda content: b"[1, 2]".ljust(1024) + content[1024:]),
    "binary": rewrite(lambda content: bytes(reversed(content))),
    # Each is still a number of a token, and a word.
    "last token": rewrite(lambda content: content[:-4] + bytes([content[-4] ^ 1]) + content[-3:]),
    "deep": rewrite(lambda content: b"[" * 100_000 + content),
    "deep header": rewrite(lambda content: b"[" * 1024 + content[1024:]),
    "two lines": rewrite(lambda content: content.replace(b"\n", b"\n\n")),
    "another number": rewrite(lambda content: content.replace(b'"format": 2', b'"format": 1')),
    "larger than memory": lambda path: os.truncate(path, 1 << 40),
    "pipe": in_place_of(os.mkfifo),
    "link": in_place_of(lambda path: path.symlink_to(path.parent.parent / "precious")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_of_the_cache_are_made_anew_and_links_are_not_followed(tmp_path, cache, damage):
    write(tmp_path)
    texts = load("wikitext-2")
    # Not as they are: what is mapped into memory changes with its file.
    expected = texts.train.tolist(), texts.vocabulary.tokens
    (cache.parent / "precious").write_text("mine")
    files = sorted(cache.iterdir())
    assert len(files) == 4
    for path in files:
        DAMAGES[damage](path)
    texts = load("wikitext-2")
    assert (texts.train.tolist(), texts.vocabulary.tokens) == expected
    assert (cache.parent / "precious").read_text() == "mine"
    made = [path for path in cache.iterdir() if path.is_file() and not path.is_symlink()]
    assert len(made) == 4
    assert all(path.stat().st_size < 2000 for path in made)


def test_whatever_the_damage_the_cache_is_right_or_made_anew(tmp_path, cache):
    write(tmp_path)
    expected = load("wikitext-2")
    rng = random.Random(0)
    files = {path: path.read_bytes() for path in sorted(cache.iterdir())}
    for _ in range(50):
        path = rng.choice(list(files))
        # Another file of that name: what is mapped into memory would change with its own.
        path.unlink()
        path.write_bytes(damaged(files[path], rng))
        texts = load("wikitext-2")
        assert texts.vocabulary.tokens == expected.vocabulary.tokens
        assert all(torch.equal(getattr(texts, s), getattr(expected, s)) for s in ("train", "validation", "test"))


@pytest.mark.parametrize("text", ["a", "a\n", "\n\n\na", "a b\n\n"])
def test_a_text_of_hardly_more_than_line_ends_is_cached_too(tmp_path, text, encodings):
    path = write(tmp_path) / "wiki.train.tokens"
    path.write_text(text)
    known = Vocabulary(["<eos>", "a", "<unk>"])
    tokens = [token_cache.load_tokens(path, known).tolist() for _ in range(2)]
    assert tokens[0] == tokens[1]
    assert len(encodings) == 1


def test_nothing_half_written_stays_behind(tmp_path, cache):
    write(tmp_path, valid=b"fine\n\xff\n")
    with pytest.raises(InputError):
        load("wikitext-2")
    assert sorted(path.suffix for path in cache.iterdir()) == [".tokens", ".vocabulary"]


def test_neither_changes_to_tokens_nor_texts_of_the_same_name_change_a_file_of_the_cache(tmp_path):
    write(tmp_path, "wikitext-2")
    write(tmp_path, "wikitext-103", train="other words\n")
    load("wikitext-2").train.zero_()
    assert words(load("wikitext-103"), "train") == "other words <eos>"
    texts = load("wikitext-2")
    assert words(texts, "train").startswith("<eos> = A title = <eos>")
    assert words(texts, "test") == "<unk> mat on <unk> <unk> <eos>"


# Errors


def test_a_missing_corpus_says_where_it_was_looked_for_and_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"The data of wikitext-2 is missing: looked for wikitext-2 in .*data"):
        load("wikitext-2")
    (write(tmp_path) / "wiki.test.tokens").unlink()
    with pytest.raises(InputError, match=r"wiki\.test\.tokens cannot be read: No such file"):
        load("wikitext-2")


@pytest.mark.parametrize("split", ["train", "valid", "test"])
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "empty: it has no words"),
        (b" \n\n \n", "empty: it has no words"),
        (b"fine\nalso fine\nna\xefve\n", "not UTF-8 text: line 3 has the byte 0xef"),
        (b"fine\nno\0t fine\n", r"not UTF-8 text: line 2 has a zero byte\.$"),
        ("in UTF-16\n".encode("utf-16")[2:], r"not UTF-8 text: line 1 has a zero byte\.$"),
    ],
    ids=["empty", "blank", "latin-1", "zero", "utf-16"],
)
def test_what_is_no_text_is_named_with_its_line(tmp_path, split, text, problem):
    write(tmp_path, **{split: text})
    with pytest.raises(InputError, match=rf"wiki\.{split}\.tokens is {problem}"):
        load("wikitext-2")


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(tmp_path):
    path = tmp_path / "text"
    with path.open("wb") as file:
        file.write(b"fine\n")
        # A hole, which takes no room on the disk.
        file.truncate(1 << 40)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"text is not text: line 2 has more than 1,048,576 bytes\.$"):
            list(read_lines(path))
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_lines_are_read_as_they_are_asked_for_up_to_the_longest(tmp_path):
    (tmp_path / "text").write_bytes(b"a" * (2**20 - 1) + b"\nb c\n\xff\n")
    lines = read_lines(tmp_path / "text")
    assert [len(word) for word in next(lines)] == [2**20 - 1]
    assert next(lines) == ["b", "c"]
    with pytest.raises(InputError, match="line 3"):
        next(lines)


def test_a_text_of_too_many_different_words_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(vocabulary, "MAX_TOKENS", 5)
    write(tmp_path)
    with pytest.raises(InputError, match=r"more than 5 different words: replace rare ones by <unk>\.$"):
        load("wikitext-2")


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path, monkeypatch):
    write(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"cannot be written: .*; set XDG_CACHE_HOME"):
        load("wikitext-2")


@pytest.mark.parametrize("known", [["<eos>", "a", "a", "<unk>"], ["a", "<unk>"], ["<eos>"]])
def test_a_vocabulary_needs_distinct_tokens_and_both_special_ones(known):
    with pytest.raises(InputError, match="vocabulary has"):
        Vocabulary(known)


# Streams


@pytest.mark.parametrize(("batch_size", "length"), [(1, 1), (3, 4), (4, 7), (5, 100)])
def test_each_row_of_the_segments_is_a_contiguous_part_of_the_text(batch_size, length):
    tokens = torch.arange(103, dtype=torch.int32)
    streams = TokenStreams(tokens, batch_size=batch_size, length=length)
    segments = list(streams)
    assert len(segments) == len(streams)
    inputs, targets = (torch.cat(parts, dim=1) for parts in zip(*segments, strict=True))
    steps = 103 // batch_size
    assert inputs.dtype == torch.int64
    assert inputs.tolist() == [list(range(row * steps, row * steps + steps - 1)) for row in range(batch_size)]
    assert torch.equal(targets, inputs + 1)
    assert all(part.shape[1] == length for part, _ in segments[:-1])


def test_streams_do_not_copy_the_text_and_have_an_end():
    tokens = torch.arange(100, dtype=torch.int32)
    streams = TokenStreams(tokens, batch_size=3, length=5)
    assert streams.columns.data_ptr() == tokens.data_ptr()
    with pytest.raises(IndexError, match="7 segments"):
        streams.segment(7)


@pytest.mark.parametrize(("batch_size", "length"), [(6, 3), (0, 3), (2, 0)])
def test_streams_that_make_no_sense_are_refused(batch_size, length):
    with pytest.raises(InputError):
        TokenStreams(torch.arange(11), batch_size=batch_size, length=length)


# Configs


def test_a_config_loads_the_texts_up_to_its_limits(tmp_path):
    write(tmp_path, "wikitext-103")
    texts = load("wikitext-103")
    config = WikiText103(length=2, max_train=7, max_test=4)
    splits = config.load()
    assert splits.train.tokens.tolist() == texts.train[:7].tolist()
    assert splits.validation.tokens.tolist() == texts.validation.tolist()
    assert splits.test.tokens.tolist() == texts.test[:4].tolist()
    assert splits.train.length == 2
    assert config.vocabulary().tokens == texts.vocabulary.tokens


def test_the_vocabulary_alone_needs_no_other_text(tmp_path, encodings):
    folder = write(tmp_path)
    (folder / "wiki.test.tokens").unlink()
    assert "cat" in WikiText2().vocabulary()
    assert encodings == []
