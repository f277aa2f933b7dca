"""The data sets, and how to get those that are missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import InputError
from . import cifar10, fashion_mnist, text
from .download import Download, Progress
from .locations import find, require, verify


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A data set."""

    name: str
    """Name of the data set."""
    summary: str
    """One line on what it holds."""
    terms: str
    """License and whom to cite."""
    layouts: tuple[str, ...] = ()
    """Files or folders of which one must be on the search path; none for what is part of the package."""
    elsewhere: tuple[Path, ...] = ()
    """Where else it may be."""
    source: str = ""
    """How to get it."""
    downloads: tuple[Download, ...] = ()
    """What makes up the first of the layouts; none for what has to be fetched by hand."""
    checksums: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """MD5 checksums of the files of each folder, by the folder's name."""

    def state(self) -> str:
        """Return where it is."""
        if not self.layouts:
            return "part of the package"
        try:
            place = find(*self.layouts, elsewhere=self.elsewhere)
        except InputError as error:
            return str(error)
        return "missing" if place is None else str(place)

    def verify(self, place: Path | None = None) -> Path:
        """Compare the files, by default those that are used, with the published checksums; return where they are."""
        if not self.checksums:
            raise InputError(f"There are no published checksums of {self.name}.")
        place = place or require(self.name, *self.layouts, elsewhere=self.elsewhere)
        verify(place, self.checksums[place.name])
        return place

    def download(self, folder: Path, progress: Progress | None = None) -> Path:
        """Put the data into a folder, verify what has checksums, and return where it is; what is there is kept.

        What is fetched always agrees with the checksum of its archive.
        """
        if not self.downloads:
            raise InputError(f"{self.name} cannot be downloaded by this command. {self.source}".rstrip())
        for download in self.downloads:
            download.obtain(folder, progress)
        place = folder / self.layouts[0]
        return self.verify(place) if self.checksums else place


_FASHION_MNIST = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
_FASHION_MNIST_ARCHIVES = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}

# The site of the first author, as the original location no longer answers.
_WIKITEXT = "https://wikitext.smerity.com"


def _wikitext(*, name: str, summary: str, md5: str) -> Entry:
    archive = f"{name}-v1.zip"
    return Entry(
        name=name,
        summary=summary,
        terms="CC BY-SA 3.0; cite Merity, Xiong, Bradbury and Socher (2017)",
        layouts=(name,),
        source=(
            f"`steadeq data {name} --download`; or download {_WIKITEXT}/{archive}, the word-level text with <unk>, and "
            "unpack it in one of the folders above."
        ),
        downloads=(Download(url=f"{_WIKITEXT}/{archive}", md5=md5, target=name, is_archive=True),),
        checksums={folder: sums for folder, sums in text.CHECKSUMS.items() if folder == name},
    )


CATALOG = {
    entry.name: entry
    for entry in (
        Entry(
            name="synthetic",
            summary="5096 noisy values of a scalar function (section 5.1 of the paper)",
            terms="drawn anew from a seed",
        ),
        Entry(
            name="digits",
            summary="1797 handwritten digits of 8 by 8 pixels",
            terms="CC BY 4.0; Alpaydin and Kaynak (1998), UCI Machine Learning Repository",
        ),
        Entry(
            name="prefix-sums",
            summary="strings of bits, with the parity of all bits so far at each position",
            terms="drawn anew from a seed",
        ),
        Entry(
            name="addition",
            summary="pairs of numbers, with the digits of their sum",
            terms="drawn anew from a seed",
        ),
        Entry(
            name="mazes",
            summary="pictures of mazes, with the pixels of the only way from start to goal",
            terms="drawn anew from a seed",
        ),
        Entry(
            name="sudoku",
            summary="Sudokus of 4 by 4 or 6 by 6 cells, with their only solutions",
            terms="drawn anew from a seed",
        ),
        Entry(
            name="shapes",
            summary="color images of 32 by 32 pixels with disks, squares and triangles to segment",
            terms="drawn anew from a seed",
        ),
        Entry(
            name="fashion-mnist",
            summary="70,000 gray images of 28 by 28 pixels in 10 classes",
            terms="MIT; cite Xiao, Rasul and Vollgraf (2017)",
            layouts=("fashion-mnist",),
            elsewhere=(fashion_mnist.DEBIAN,),
            source=(
                "`steadeq data fashion-mnist --download`; or `apt install dataset-fashion-mnist` on Debian; or put the "
                "four idx files of https://github.com/zalandoresearch/fashion-mnist into fashion-mnist/ in one of the "
                "folders above."
            ),
            downloads=tuple(
                Download(url=f"{_FASHION_MNIST}/{name}", md5=md5, target=f"fashion-mnist/{name}")
                for name, md5 in _FASHION_MNIST_ARCHIVES.items()
            ),
            checksums={"fashion-mnist": fashion_mnist.CHECKSUMS},
        ),
        Entry(
            name="cifar10",
            summary="60,000 color images of 32 by 32 pixels in 10 classes",
            terms="no license stated; cite Krizhevsky (2009)",
            layouts=(cifar10.FOLDER, cifar10.PICKLED_FOLDER),
            source=(
                "`steadeq data cifar10 --download`; or download cifar-10-binary.tar.gz or cifar-10-python.tar.gz from "
                "https://www.cs.toronto.edu/~kriz/cifar.html and unpack it in one of the folders above."
            ),
            downloads=(
                Download(
                    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                    md5="c32a1d4ab5d03f1284b67883e8d87530",
                    target=cifar10.FOLDER,
                    is_archive=True,
                ),
            ),
            checksums=cifar10.CHECKSUMS,
        ),
        Entry(
            name="imagenette64",
            summary="13,394 color images of 64 by 64 pixels in 10 classes of ImageNet",
            terms="images of ImageNet: non-commercial research; cite Deng et al. (2009) and Howard (2019)",
            layouts=("imagenette64",),
            source=(
                "Download Imagenette from https://github.com/fastai/imagenette and put its train/ and val/ into "
                "imagenette64/ in one of the folders above; images of other sizes are resized and center-cropped when "
                "they are read."
            ),
        ),
        Entry(
            name="imagenet",
            summary="1,331,167 color images in 1000 classes (ILSVRC 2012)",
            terms="non-commercial research, after registration; cite Russakovsky et al. (2015)",
            layouts=("imagenet",),
            source=(
                "Register at https://image-net.org/download, unpack the training and validation images of ILSVRC 2012 "
                "into imagenet/train/<class>/ and imagenet/val/<class>/ (the official development kit has the classes "
                "of the validation images) in one of the folders above; a link to their folder works too."
            ),
        ),
        Entry(
            name="cityscapes",
            summary="3475 street scenes of 1024 by 2048 pixels with 19 classes of pixels",
            terms="non-commercial research, after registration; cite Cordts et al. (2016)",
            layouts=("cityscapes",),
            source=(
                "Register at https://www.cityscapes-dataset.com and unpack leftImg8bit_trainvaltest.zip and "
                "gtFine_trainvaltest.zip into cityscapes/ in one of the folders above."
            ),
        ),
        _wikitext(
            name="wikitext-2",
            summary="2,088,628 words of 600 articles of Wikipedia, and 463,215 to validate and test",
            md5="542ccefacc6c27f945fb54453812b3cd",
        ),
        _wikitext(
            name="wikitext-103",
            summary="103,227,021 words of 28,475 articles of Wikipedia, and 463,215 to validate and test",
            md5="9ddaacaf6af0710eda8c456decff7832",
        ),
    )
}
