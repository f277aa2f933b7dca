"""Archives of members with any names, kinds and rights."""

import gzip
import io
import stat
import tarfile
import zipfile


def tar_of(*members, compress=True) -> bytes:
    """Return an archive of pairs of a name, or a TarInfo, and a content."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for member, content in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            info.size = info.size or len(content)
            if info.name.endswith("/"):
                info.type = tarfile.DIRTYPE
            tar.addfile(info, io.BytesIO(content.ljust(info.size)) if content else None)
    return gzip.compress(file.getvalue(), mtime=0) if compress else file.getvalue()


def special(kind: bytes, name: str = "set/special", *, to: str = "") -> tarfile.TarInfo:
    """Return the header of a member that is no plain file."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info


def zip_of(*members, method: int = zipfile.ZIP_DEFLATED, mode: int = stat.S_IFREG | 0o644) -> bytes:
    """Return an archive of pairs of a name and a content."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as target:
        for name, content in members:
            info = zipfile.ZipInfo("placeholder")
            # Its constructor mends names.
            info.filename, info.compress_type, info.external_attr = name, method, mode << 16
            target.writestr(info, content)
    return file.getvalue()


PACKERS = {".tar.gz": tar_of, ".zip": zip_of}
