"""Fetches GGUF models from a Hugging Face hub: finds the files of a quantisation, downloads and verifies them.

Called by `manage.py pull`. No Django in here; the file names and sizes that the hub announces are checked like any
other input, and a token goes to the hub's own host alone.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.hf_api import BlobLfsInfo

from backbone.model_hub_download import HubFile, Progress, Sleep, download, sha256_of
from kvasir import __version__
from kvasir.errors import ConfigError, DownloadError

DEFAULT_QUANT = "Q4_K_M"
_LISTING_TIMEOUT_S = 30.0
_RESERVE_BYTES = 64 << 20  # left free on the disk
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
_REFERENCE = re.compile(rf"({_NAME}/{_NAME})(?::([A-Za-z0-9_-]{{1,32}}))?")
_REVISION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,99})?")
_PART = re.compile(r"-(\d{5})-of-(\d{5})$")
_QUANT = re.compile(r"(?:^|[-._])((?:UD-)?(?:I?Q[1-8]|TQ[12]|BF16|F16|F32|MXFP4)(?:_[A-Z0-9]+)*)$", re.IGNORECASE)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LOCAL_HOSTS = frozenset(("localhost", "127.0.0.1", "::1"))


@dataclass(frozen=True, slots=True)
class HubReference:
    """A repository and, optionally, one of its quantisations: `OWNER/REPO[:QUANT]`."""

    repo: str
    quant: str | None

    @classmethod
    def parse(cls, text: str) -> HubReference:
        """Raises ConfigError when the text is no such reference; nothing is asked of any server."""
        match = _REFERENCE.fullmatch(text)
        if match is None or ".." in text or "--" in text:
            raise ConfigError(f"{text!r} is no model reference; it must look like OWNER/REPO or OWNER/REPO:Q4_K_M")
        return cls(match[1], match[2])


@dataclass(frozen=True, slots=True)
class Listing:
    """The GGUF files of a repository at one commit."""

    repo: str
    commit: str
    files: tuple[HubFile, ...]


class Hub:
    """One hub, by its address; None for the public one."""

    def __init__(self, endpoint: str | None = None, token: str | None = None) -> None:
        """Raises ConfigError for an address that is none, or to which a token must not be sent."""
        self.endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
        address = urlsplit(self.endpoint)
        if address.scheme not in {"http", "https"} or not address.hostname:
            raise ConfigError(f"the endpoint {self.endpoint!r} is no address; it must look like https://HOST")
        if token and address.scheme == "http" and address.hostname not in _LOCAL_HOSTS:
            raise ConfigError(f"HF_TOKEN would travel in the clear to {self.endpoint}; use https, or unset HF_TOKEN")
        self._token: str | bool = token or False  # False: no token from anywhere else either

    def list_models(self, repo: str, revision: str = "main") -> Listing:
        """GGUF files of a repository. Raises ConfigError for a bad revision, DownloadError when the hub gives none."""
        if not _REVISION.fullmatch(revision) or ".." in revision:
            raise ConfigError(f"{revision!r} is no revision; it must be a branch, a tag or a commit")
        api = HfApi(endpoint=self.endpoint, token=self._token, library_name="kvasir", library_version=__version__)
        try:
            info = api.model_info(repo, revision=revision, files_metadata=True, timeout=_LISTING_TIMEOUT_S)
        except RevisionNotFoundError as error:
            raise DownloadError(f"{repo} has no revision {revision!r}") from error
        except GatedRepoError as error:
            raise DownloadError(
                f"{repo} asks for its terms to be accepted on its page first; then set HF_TOKEN"
            ) from error
        except RepositoryNotFoundError as error:
            raise DownloadError(f"{self.endpoint} has no model {repo}, or it is private: then set HF_TOKEN") from error
        except HfHubHTTPError as error:
            raise DownloadError(f"{self.endpoint} answered {error.response.status_code} for {repo}") from error
        except (httpx2.HTTPError, ValueError, KeyError, TypeError) as error:
            raise DownloadError(f"{self.endpoint} gave no list of {repo}: {type(error).__name__}: {error}") from error
        if not info.sha:
            raise DownloadError(f"{self.endpoint} names no commit for {repo} at {revision!r}")
        files = [
            _hub_file(sibling.rfilename, sibling.lfs)
            for sibling in info.siblings or ()
            if sibling.rfilename.lower().endswith(".gguf")
        ]
        return Listing(repo, info.sha, tuple(files))

    def fetch(self, listing: Listing, file: HubFile, part: Path, *, progress: Progress, sleep: Sleep) -> None:
        """Download and verify one file of a listing into `part`. Raises DownloadError."""
        url = hf_hub_url(listing.repo, file.name, revision=listing.commit, endpoint=self.endpoint)
        headers = {"User-Agent": f"kvasir/{__version__}"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        download(url, file, part, headers=headers, progress=progress, sleep=sleep)


def choose_files(listing: Listing, quant: str | None) -> tuple[HubFile, ...]:
    """The file of a quantisation, or all parts of a split one in order. Raises ConfigError that says what there is.

    Without a `quant` it is the default one, or the only model that the repository has.
    """
    models = _models(listing.files)
    if not models:
        raise ConfigError(f"{listing.repo} has no GGUF model files")
    wanted = (quant or DEFAULT_QUANT).upper()
    named = [stem for stem in models if _quant_of(stem) == wanted]
    if not named and quant is None and len(models) == 1:
        named = list(models)
    if len(named) != 1:
        found = "no model" if not named else f"{len(named)} models ({', '.join(sorted(named))})"
        known = sorted({_quant_of(stem) or stem for stem in models})
        raise ConfigError(f"{listing.repo} has {found} of {wanted}; choose with :QUANT from {', '.join(known)}")
    return _in_order(named[0], models[named[0]])


def pull(
    reference: HubReference,
    into: Path,
    *,
    hub: Hub,
    revision: str = "main",
    progress: Progress,
    sleep: Sleep = time.sleep,
    free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
) -> tuple[Path, ...]:
    """Fetch a model into a folder; the paths of its files, the first of which opens it.

    Files appear under their names when all of them are complete and verified; a pull that was cut off is resumed by the
    same call. Raises ConfigError for what cannot be chosen or placed, DownloadError for what does not arrive.
    """
    listing = hub.list_models(reference.repo, revision)
    files = choose_files(listing, reference.quant)
    into.mkdir(parents=True, exist_ok=True)
    targets = {into / PurePosixPath(file.name).name: file for file in files}
    missing = {path: file for path, file in targets.items() if not _is_there(path, file)}
    parts = {path: path.with_name(f"{path.stem}.{file.sha256[:8]}.gguf.part") for path, file in missing.items()}
    _check_space(into, missing.values(), parts.values(), free_bytes)
    for path, file in missing.items():
        hub.fetch(listing, file, parts[path], progress=progress, sleep=sleep)
    for path in reversed(missing):  # the first part comes last: where it is, the model is whole
        parts[path].replace(path)
    return tuple(targets)


def _hub_file(name: str, lfs: BlobLfsInfo | None) -> HubFile:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or not name.isprintable() or path.name.startswith("."):
        raise DownloadError(f"the hub lists a file named {name!r}, which is no place for a model")
    if lfs is None or not isinstance(lfs.size, int) or lfs.size <= 0 or not _SHA256.fullmatch(str(lfs.sha256)):
        raise DownloadError(f"the hub announces no size and SHA-256 of {name}, so it could not be verified")
    return HubFile(name, lfs.size, lfs.sha256)


def _models(files: Iterable[HubFile]) -> Mapping[str, list[HubFile]]:
    """Files by model: the path without the part number and the ending. Projectors and the like are left out."""
    models: dict[str, list[HubFile]] = {}
    for file in files:
        if not PurePosixPath(file.name).name.lower().startswith(("mmproj", "imatrix")):
            models.setdefault(_PART.sub("", file.name[: -len(".gguf")]), []).append(file)
    return models


def _quant_of(stem: str) -> str | None:
    match = _QUANT.search(PurePosixPath(stem).name)
    return match[1].upper() if match else None


def _in_order(stem: str, files: Sequence[HubFile]) -> tuple[HubFile, ...]:
    """The parts of a model by number. Raises ConfigError when one is missing."""
    numbered: dict[int, HubFile] = {}
    n_parts = 1
    for file in files:
        match = _PART.search(file.name[: -len(".gguf")])
        numbered[int(match[1]) if match else 1] = file
        n_parts = int(match[2]) if match else n_parts
    if sorted(numbered) != list(range(1, n_parts + 1)) or len(files) != n_parts:
        raise ConfigError(f"{stem} has {n_parts} parts, of which the repository holds {sorted(numbered)}")
    return tuple(numbered[number] for number in range(1, n_parts + 1))


def _is_there(path: Path, file: HubFile) -> bool:
    if not path.exists():
        return False
    if path.stat().st_size == file.n_bytes and sha256_of(path) == file.sha256:
        return True
    raise ConfigError(f"{path} exists and is another file than the hub's; move it away, or pull --into another folder")


def _check_space(
    into: Path, files: Iterable[HubFile], parts: Iterable[Path], free_bytes: Callable[[Path], int]
) -> None:
    there = sum(part.stat().st_size for part in parts if part.exists())
    wanted = sum(file.n_bytes for file in files) - there
    free = free_bytes(into)
    if wanted > 0 and wanted + _RESERVE_BYTES > free:
        raise DownloadError(f"{wanted / 1e9:.2f} GB are still to come, but {into} has {free / 1e9:.2f} GB of room")
