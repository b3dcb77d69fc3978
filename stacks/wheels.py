"""Builds what the layers carry, without Docker: uv installs wheels for a platform that need not be this one.

A build is a function of its inputs: the hashed requirements, the target and this file. Their digest names the folder
under .cache/layers and the asset, so a second synth builds nothing and an unchanged layer is not published again.
"""

import compileall
import hashlib
import os
import platform
import py_compile
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uv

from stacks.settings import WheelTarget

ROOT: Final = Path(__file__).resolve().parent.parent
REQUIREMENTS: Final = ROOT / "layers" / "vendor" / "requirements.txt"
CORE: Final = ROOT / "layers" / "core"
CACHE: Final = ROOT / ".cache" / "layers"

LAMBDA_PYTHON: Final = "3.14"
LAMBDA_PLATFORM: Final = "aarch64-manylinux2014"

# The SDK describes more than 400 services; these are the ones that functions call.
SERVICES: Final = frozenset({"bedrock", "dynamodb", "events", "pricing", "s3", "secretsmanager", "sns", "sqs", "sts"})
# Documentation of the SDK, or of no use after an install. METADATA and licences stay.
USELESS_FILES: Final = ("**/examples-1.json", "**/*.pyi", "**/*.dist-info/RECORD", "**/*.dist-info/sboms", ".lock")
USELESS_FOLDERS: Final = ("bin", "boto3/examples", "**/tests", "**/__pycache__")


class BuildError(RuntimeError):
    """A layer could not be built. The message is for a person."""


@dataclass(frozen=True, slots=True)
class LayerBuild:
    """A folder that holds `python/`, and the digest of everything that made it."""

    folder: Path
    digest: str


def vendor_layer(target: WheelTarget, *, cache: Path = CACHE) -> LayerBuild:
    """Third-party wheels from the one hashed file."""

    def build(python_folder: Path) -> None:
        _install(target, python_folder)
        prune(python_folder)
        if target is WheelTarget.THIS_MACHINE:
            _compile(python_folder)

    return _cached(cache, "vendor", _digest([_target_key(target), REQUIREMENTS.read_bytes()]), build)


def core_layer(target: WheelTarget, *, cache: Path = CACHE) -> LayerBuild:
    """The product's own packages, without what a test run leaves beside them."""
    sources = sorted(path for path in CORE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    named = (part for path in sources for part in (path.relative_to(CORE).as_posix().encode(), path.read_bytes()))

    def build(python_folder: Path) -> None:
        shutil.copytree(CORE / "python", python_folder, ignore=shutil.ignore_patterns("__pycache__"))
        if target is WheelTarget.THIS_MACHINE:
            _compile(python_folder)

    return _cached(cache, "core", _digest([_target_key(target), *named]), build)


def prune(python_folder: Path) -> None:
    """Takes out what no function ever reads: four fifths of the SDK."""
    for data in (python_folder / "botocore" / "data", python_folder / "boto3" / "data"):
        for service in data.iterdir():
            if service.is_dir() and service.name not in SERVICES:
                shutil.rmtree(service)
    for pattern in (*USELESS_FILES, *USELESS_FOLDERS):
        for path in list(python_folder.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _install(target: WheelTarget, python_folder: Path) -> None:
    foreign = ["--python-version", LAMBDA_PYTHON, "--python-platform", LAMBDA_PLATFORM]
    command = [
        *(
            uv.find_uv_bin(),
            "pip",
            "install",
            "--quiet",
            "--color",
            "never",
            "--require-hashes",
            "--only-binary",
            ":all:",
        ),
        *("--python", sys.executable, "--link-mode", "copy", "--target", str(python_folder)),
        *(foreign if target is WheelTarget.LAMBDA else []),
        *("--requirement", str(REQUIREMENTS)),
    ]
    # S603: the command is made of constants and of paths of this tree.
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        raise BuildError(f"uv could not install the wheels of {REQUIREMENTS.name} for {target}:\n{done.stderr.strip()}")


def _compile(python_folder: Path) -> None:
    # Unchecked: unzipping gives every source a new time, and a check would compile it again on each cold start.
    done = compileall.compile_dir(
        python_folder,
        quiet=2,
        stripdir=python_folder,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    if not done:
        raise BuildError(f"some source under {python_folder} does not compile with {platform.python_version()}")


def _target_key(target: WheelTarget) -> bytes:
    if target is WheelTarget.LAMBDA:
        return f"{LAMBDA_PYTHON} {LAMBDA_PLATFORM}".encode()
    return f"{sys.implementation.cache_tag} {sysconfig.get_platform()}".encode()


def _digest(inputs: Iterable[bytes]) -> str:
    # This file is an input as well: what it prunes and how it installs decide the content.
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for part in inputs:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _cached(cache: Path, name: str, digest: str, build: Callable[[Path], None]) -> LayerBuild:
    folder = cache / f"{name}-{digest[:16]}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        # Beside the final place, because a rename is atomic only within one file system.
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=cache) as temporary:
            built = Path(temporary) / "layer"
            built.mkdir()
            build(built / "python")
            _move_into_place(built, folder)
    return LayerBuild(folder=folder, digest=digest)


def _move_into_place(built: Path, folder: Path) -> None:
    try:
        os.rename(built, folder)
    except OSError:
        # Another synth finished the same build first: its result is as good.
        if not folder.is_dir():
            raise
