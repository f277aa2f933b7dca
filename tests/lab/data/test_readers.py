"""How data sets are read in training and in evaluation."""

import random
from itertools import product

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from steadeq.lab.data import (
    AbstractContiguousDataset,
    AbstractDataset,
    InMemory,
    SampleReader,
    StreamReader,
    Text,
    evaluation_batches,
    is_contiguous,
    open_reader,
    read_samples,
)
from steadeq.lab.errors import InputError
from steadeq.lab.seeds import derive_generator


def jittered(rows, generator):
    return rows if generator is None else rows + torch.rand(rows.shape, generator=generator)


def in_memory(num_samples=10):
    return InMemory(
        inputs=torch.arange(num_samples).float()[:, None], targets=torch.arange(num_samples), prepare=jittered
    )


class OnDisk(AbstractDataset):
    """Counts what was asked for, as if that were slow."""

    def __init__(self, num_samples=10):
        self.inside, self.asked = in_memory(num_samples), []

    def __len__(self):
        return len(self.inside)

    def batch(self, indices, generator=None):
        self.asked.append(indices.tolist())
        return self.inside.batch(indices, generator)


class Foreign(Dataset):
    """A map-style data set of somebody else, with augmentations from the global generators."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor([float(index), torch.rand(()).item(), random.random()]), index


def read(dataset, step, part, *, seed=3, num_parts=2):
    reader = open_reader(dataset, batch_size=4, num_parts=num_parts, parts=range(num_parts), seed=seed)
    try:
        return reader.get(step, part)
    finally:
        reader.close()


# Samples


@pytest.mark.parametrize("step", [0, 1, 2, 5])
def test_the_order_and_the_augmentation_are_functions_of_seed_step_and_part(step):
    order = torch.randperm(10, generator=derive_generator(3, "order", step // 3))
    for part in range(2):
        # Ten samples in batches of four: those of the last one are as few as its parts.
        indices = order[4 * (step % 3) :][:4].chunk(2)[part]
        x, y = read(in_memory(), step, part)
        assert y.tolist() == indices.tolist()
        expected = jittered(indices.float()[:, None], derive_generator(3, "augmentation", step, part))
        assert torch.equal(x, expected)
    assert not torch.equal(read(in_memory(), step, 0)[0], read(in_memory(), step, 0, seed=4)[0])


def test_an_epoch_shows_all_samples_once_and_the_next_one_in_another_order():
    reader = open_reader(in_memory(), batch_size=4, num_parts=1, parts=[0], seed=0)
    assert reader.steps_per_epoch == 3
    assert [reader.num_samples(step) for step in range(4)] == [4, 4, 2, 4]
    assert not reader.is_contiguous
    epochs = [[label for k in range(3) for label in reader.get(3 * e + k, 0)[1].tolist()] for e in range(2)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(("num_parts", "steps", "sizes"), [(2, 3, [1, 1]), (4, 2, [1, 1, 1, 1])])
def test_the_last_batch_is_left_out_if_a_part_would_be_empty(num_parts, steps, sizes):
    reader = open_reader(in_memory(), batch_size=4, num_parts=num_parts, parts=range(num_parts), seed=0)
    assert reader.steps_per_epoch == steps
    assert [len(reader.get(steps - 1, part)[1]) for part in range(num_parts)] == sizes


@pytest.mark.parametrize("parts", [[1], [0, 1]])
def test_what_is_on_disk_is_read_ahead_and_the_same(parts):
    dataset = OnDisk()
    reader = open_reader(dataset, batch_size=4, num_parts=2, parts=parts, seed=3)
    # A jump does not return what was read ahead.
    for step, part in product((0, 1, 2, 7), parts):
        for found, expected in zip(reader.get(step, part), read(in_memory(), step, part), strict=True):
            assert torch.equal(found, expected)
    reader.close()
    # Each part once, and two more that nobody asked for: before the jump, and at the end.
    assert len(dataset.asked) in (4 * len(parts) + 1, 4 * len(parts) + 2)


def test_an_error_while_reading_ahead_is_raised_where_the_batch_is_needed():
    class Damaged(OnDisk):
        def batch(self, indices, generator=None):
            if self.asked:
                raise InputError("image.png is damaged.")
            return super().batch(indices, generator)

    reader = open_reader(Damaged(), batch_size=4, num_parts=1, parts=[0], seed=0)
    reader.get(0, 0)
    with pytest.raises(InputError, match=r"image\.png"):
        reader.get(1, 0)
    reader.close()


def test_data_sets_of_others_are_read_in_the_same_order_with_seeded_augmentations():
    torch.manual_seed(0)
    random.seed(0)
    states = torch.get_rng_state(), random.getstate()
    x, y = read(Foreign(), 5, 1)
    assert y.tolist() == read(in_memory(), 5, 1)[1].tolist()
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    torch.manual_seed(1)
    random.seed(1)
    assert torch.equal(x, read(Foreign(), 5, 1)[0])
    assert not torch.equal(x[:, 1:], read(Foreign(), 5, 1, seed=4)[0][:, 1:])
    # By the thread that trains.
    reader = open_reader(Foreign(), batch_size=4, num_parts=1, parts=[0], seed=0)
    assert isinstance(reader, SampleReader)
    assert reader._thread is None


def test_a_tensor_dataset_can_be_trained_on_and_evaluated():
    dataset = TensorDataset(torch.arange(10.0)[:, None], torch.arange(10))
    x, y = read(dataset, 0, 0)
    assert x.shape == (2, 1)
    assert x[:, 0].tolist() == y.tolist()
    assert [y.tolist() for _, y in evaluation_batches(dataset, batch_size=4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    with pytest.raises(InputError, match=r"not pairs of an input and a target \(TensorDataset\)\.$"):
        read_samples(TensorDataset(torch.arange(4.0)), torch.tensor([0, 1]))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_processes_share_the_samples_to_evaluate(world_size):
    seen = []
    for rank in range(world_size):
        batches = list(evaluation_batches(in_memory(), batch_size=3, rank=rank, world_size=world_size))
        assert all(torch.equal(x[:, 0].long(), y) and len(y) <= 3 for x, y in batches)
        seen.append([index for _, y in batches for index in y.tolist()])
    assert seen == [list(range(rank, 10, world_size)) for rank in range(world_size)]


# Texts


def text(num_tokens=43, length=5):
    return Text(tokens=torch.arange(num_tokens, dtype=torch.int32), length=length)


def test_a_text_is_read_in_streams_that_go_on():
    assert is_contiguous(text())
    assert not is_contiguous(in_memory())
    assert not is_contiguous(Foreign())
    reader = open_reader(text(), batch_size=4, num_parts=2, parts=[0, 1], seed=0)
    assert isinstance(reader, StreamReader)
    assert reader.is_contiguous
    # Streams of 10 tokens: 9 to predict, of which 5 make a whole segment and 4 a shorter one.
    assert reader.steps_per_epoch == 2
    assert reader.get(1, 1)[0].tolist() == [[25, 26, 27, 28], [35, 36, 37, 38]]
    assert reader.num_samples(1) == 4
    x, y = reader.get(0, 1)
    assert x.tolist() == [[20, 21, 22, 23, 24], [30, 31, 32, 33, 34]]
    assert torch.equal(y, x + 1)
    assert torch.equal(reader.get(4, 1)[0], x)
    longer = open_reader(text(83), batch_size=4, num_parts=2, parts=[0, 1], seed=0)
    assert torch.equal(longer.get(1, 0)[0], longer.get(0, 0)[0] + 5)


@pytest.mark.parametrize(("world_size", "num_streams"), [(1, 4), (3, 4), (6, 6)])
def test_processes_share_the_streams_of_a_text(world_size, num_streams):
    expected = list(text().streams(num_streams))
    parts = [
        list(evaluation_batches(text(), batch_size=4, rank=rank, world_size=world_size)) for rank in range(world_size)
    ]
    for rank, batches in enumerate(parts):
        assert len(batches) == len(expected)
        for (x, y), (tokens, following) in zip(batches, expected, strict=True):
            assert torch.equal(x, tokens[rank::world_size])
            assert torch.equal(y, following[rank::world_size])


@pytest.mark.parametrize(
    ("dataset", "batch_size", "num_parts", "message"),
    [
        (in_memory(), 11, 1, "batch_size is 11, but there are only 10 samples"),
        (in_memory(), 4, 3, "batch_size is 4; it must be a multiple"),
        (Foreign(), 11, 1, "batch_size is 11, but there are only 10 samples"),
        (Foreign(), 4, 3, "batch_size is 4; it must be a multiple"),
        (text(), 10, 1, "batch_size"),
        (text(), 4, 3, "batch_size"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(dataset, batch_size, num_parts, message):
    with pytest.raises(InputError, match=message):
        open_reader(dataset, batch_size=batch_size, num_parts=num_parts, parts=[0], seed=0)


def test_contiguous_data_of_others_says_itself_how_it_is_read():
    class Backward(AbstractContiguousDataset):
        def __len__(self):
            return 3

        def batch(self, indices, generator=None):
            return indices, indices

        def open_reader(self, *, batch_size, num_parts, parts, seed):
            return "mine"

        def evaluation_batches(self, *, batch_size, rank, world_size):
            yield from [(2, 2), (1, 1), (0, 0)]

    assert open_reader(Backward(), batch_size=1, num_parts=1, parts=[0], seed=0) == "mine"
    assert list(evaluation_batches(Backward(), batch_size=1)) == [(2, 2), (1, 1), (0, 0)]


# Labels


def labeled(kind: str, labels: list[int]):
    inputs, targets = torch.zeros(len(labels), 2), torch.tensor(labels)
    if kind == "in memory":
        return InMemory(inputs=inputs, targets=targets)
    if kind == "on disk":
        dataset = OnDisk(len(labels))
        dataset.inside = InMemory(inputs=inputs, targets=targets)
        return dataset
    dataset = TensorDataset(inputs, targets)
    if kind == "torchvision":
        dataset.targets = labels
    return dataset


def open_labeled(dataset):
    return open_reader(dataset, batch_size=2, num_parts=1, parts=[0], seed=0, num_classes=3)


@pytest.mark.parametrize("kind", ["in memory", "torchvision", "on disk", "foreign"])
def test_labels_of_the_model_are_read_and_others_refused_before_the_first_batch_or_when_they_are_read(kind):
    reader = open_labeled(labeled(kind, [0, 1, 2, 2, 1, 0]))
    found = torch.cat([reader.get(step, 0)[1] for step in range(3)])
    assert found.sort().values.tolist() == [0, 0, 1, 1, 2, 2]
    reader.close()
    for label in (3, 255, -1):
        dataset = labeled(kind, [0, 1, 2, 2, label, 0])
        problem = rf"^model\.num_classes is 3, but the data has a label {label}; .* 0 to 2\.$"
        if kind in ("in memory", "torchvision"):
            with pytest.raises(InputError, match=problem):
                open_labeled(dataset)
            continue
        reader = open_labeled(dataset)
        with pytest.raises(InputError, match=problem):
            [reader.get(step, 0) for step in range(reader.steps_per_epoch)]
        reader.close()


def test_targets_that_are_no_labels_or_do_not_count_are_let_through():
    maps_with_pixels_that_do_not_count = torch.tensor([[0, 255], [2, 1]] * 2)
    for targets in (torch.full((4,), 7.5), maps_with_pixels_that_do_not_count, torch.tensor([True, False] * 2)):
        reader = open_labeled(InMemory(inputs=torch.zeros(4, 1), targets=targets))
        assert reader.get(0, 0)[1].dtype == targets.dtype
