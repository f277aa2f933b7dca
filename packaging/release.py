"""Build a release and check it, up to the upload: `make release`.

The distributions are built twice and must be the same, byte by byte. twine checks them, their content is compared with
the repository, and the wheel is installed with torch alone into a new environment, where the README's Python runs, as
do the tests of the solvers out of the sdist. What is left to do is printed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
NEEDED = ("CHANGELOG.md", "CITATION.cff", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "SECURITY.md")


def main() -> None:
    """Make all checks, and stop at the first that fails."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (version,) = re.findall(r'^version = "(.+)"$', project, flags=re.MULTILINE)
    for name, pattern in (
        ("src/steadeq/__init__.py", f'__version__ = "{version}"'),
        ("CITATION.cff", f"version: {version}"),
        ("docs/citing.md", f"version = {{{version}}}"),
    ):
        require(pattern in (ROOT / name).read_text(encoding="utf-8"), f"{name} does not say {pattern}")
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as temporary:
        # Of the last commit, and nothing that lies around.
        run("git", "clone", "--quiet", ROOT, Path(temporary, "source"))
        build(Path(temporary, "source"), DIST)
        build(Path(temporary, "source"), Path(temporary, "again"))
        for file in sorted(DIST.iterdir()):
            require(digest(file) == digest(Path(temporary, "again", file.name)), f"{file.name} is not reproducible")
        (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
        run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
        check_content(wheel, sdist)
        check_installed(wheel, sdist, Path(temporary))
    recipe = (ROOT / "packaging" / "meta.yaml").read_text(encoding="utf-8")
    recipe = recipe.replace("VERSION", version, 1).replace("SHA256", digest(sdist))
    (DIST / "conda").mkdir()
    (DIST / "conda" / "meta.yaml").write_text(recipe, encoding="utf-8")
    heading = f"## [{version}]"
    print(f"\nsteadeq {version} is in {DIST.relative_to(ROOT)}/. What is left to do:")
    if heading not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        print(f"  * call the section Unreleased of CHANGELOG.md {heading} - with the date")
    print(f"  * git tag v{version}, and push the tag: release.yml publishes it\n  * hand dist/conda to conda-forge")


def build(source: Path, folder: Path) -> None:
    """Build both distributions, with the time of the last commit in them."""
    time = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=source, capture_output=True, text=True, check=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": time.stdout.strip()}
    run(sys.executable, "-m", "build", "--outdir", folder, source, env=environment)


def check_content(wheel: Path, sdist: Path) -> None:
    """Compare what is in the distributions with what is in the repository."""
    listed = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True)
    sources = {name.removeprefix("src/") for name in listed.stdout.split()}
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
        (name,) = (name for name in packed if name.endswith("METADATA"))
        links = re.findall(r"\]\(([^)]+)\)", archive.read(name).decode())
    require(sources <= packed, f"the wheel lacks {sorted(sources - packed)}")
    require(all(link.startswith("https://") for link in links), "the README of the index has relative links")
    with tarfile.open(sdist) as archive:
        packed = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    missing = [name for name in NEEDED if name not in packed] + sorted({f"src/{name}" for name in sources} - packed)
    require(not missing, f"the sdist lacks {missing}")


def check_installed(wheel: Path, sdist: Path, folder: Path) -> None:
    """Run the README and some tests in an environment that has the wheel and torch, and nothing else."""
    run(sys.executable, "-m", "venv", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    constraints = ["-c", ROOT / "constraints.txt"]
    run(python, "-m", "pip", "install", "-q", *constraints, "torch")
    run(python, "-m", "pip", "install", "-q", *constraints, wheel)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    for block in blocks:
        run(python, "-c", block, cwd=folder)
    run(python, "-m", "steadeq", "--version", cwd=folder)
    run(python, "-m", "pip", "install", "-q", *constraints, "numpy", "pytest", "scipy")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.glob("steadeq-*")
    # So that it is the wheel that is tested.
    shutil.rmtree(unpacked / "src")
    run(python, "-m", "pytest", "-q", "tests/solvers", "tests/test_equilibrium.py", cwd=unpacked)


def run(*command: str | Path, **options: object) -> None:
    """Run a command, and stop if it fails."""
    print("$", *command[:6], flush=True)
    done = subprocess.run([str(word) for word in command], check=False, **options)  # pyright: ignore
    require(done.returncode == 0, f"{command[0]} failed with {done.returncode}")


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def require(condition: object, message: str) -> None:
    """Stop with a sentence unless a condition holds."""
    if not condition:
        sys.exit(f"No release: {message}.")


if __name__ == "__main__":
    main()
