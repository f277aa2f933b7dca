"""Data: what is part of the package, and readers of official layouts."""

from . import cifar10, cityscapes, corpus, digits, fashion_mnist, imagenet, imagenette64, synthetic
from .dataset import AbstractDataset, Dataset, Splits
from .image_folder import ImageFolder
from .images import ImageTransform
from .locations import find, require, search_path
from .segmentation import SegmentationPairs, SegmentationTransform
from .text import Text
from .token_streams import TokenStreams
from .vocabulary import Vocabulary
from .workers import Workers

__all__ = [
    "AbstractDataset",
    "Dataset",
    "ImageFolder",
    "ImageTransform",
    "SegmentationPairs",
    "SegmentationTransform",
    "Splits",
    "Text",
    "TokenStreams",
    "Vocabulary",
    "Workers",
    "cifar10",
    "cityscapes",
    "corpus",
    "digits",
    "fashion_mnist",
    "find",
    "imagenet",
    "imagenette64",
    "require",
    "search_path",
    "synthetic",
]
