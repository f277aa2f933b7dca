"""Data sets: what is part of the package, and readers of official layouts."""

from .addition import Addition
from .cifar10 import Cifar10
from .cityscapes import Cityscapes
from .dataset import (
    AbstractDataConfig,
    AbstractDataset,
    InMemory,
    MapDataset,
    Splits,
    check_all_targets,
    fingerprint,
    read_samples,
    spread_over,
)
from .digits import Digits
from .fashion_mnist import FashionMnist
from .generated import AbstractGenerated
from .image_folder import ImageFolder
from .imagenet import ImageNet, Imagenette64
from .images import ImageTransform
from .locations import search_path
from .mazes import Mazes
from .prefix_sums import PrefixSums
from .readers import (
    AbstractContiguousDataset,
    AbstractReader,
    SampleReader,
    evaluation_batches,
    is_contiguous,
    open_reader,
)
from .segmentation import SegmentationPairs, SegmentationTransform
from .shapes import Shapes
from .sudoku import Sudoku
from .synthetic import Synthetic
from .text import AbstractTextConfig, StreamReader, Text, TokenStreams, WikiText2, WikiText103
from .vocabulary import Vocabulary
from .workers import Workers

__all__ = [
    "AbstractContiguousDataset",
    "AbstractDataConfig",
    "AbstractDataset",
    "AbstractGenerated",
    "AbstractReader",
    "AbstractTextConfig",
    "Addition",
    "Cifar10",
    "Cityscapes",
    "Digits",
    "FashionMnist",
    "ImageFolder",
    "ImageNet",
    "ImageTransform",
    "Imagenette64",
    "InMemory",
    "MapDataset",
    "Mazes",
    "PrefixSums",
    "SampleReader",
    "SegmentationPairs",
    "SegmentationTransform",
    "Shapes",
    "Splits",
    "StreamReader",
    "Sudoku",
    "Synthetic",
    "Text",
    "TokenStreams",
    "Vocabulary",
    "WikiText2",
    "WikiText103",
    "Workers",
    "check_all_targets",
    "evaluation_batches",
    "fingerprint",
    "is_contiguous",
    "open_reader",
    "read_samples",
    "search_path",
    "spread_over",
]
