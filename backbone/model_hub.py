"""Fetch GGUF models from a Hugging Face hub: find the files of a quantisation, download and verify them.

`manage.py pull` calls it; it never imports Django. File names and sizes from the hub are validated like any other
input, and the token is sent to the hub's own host alone. A download goes to a `.part` file, resumes where an earlier
one ended, and takes the model's place only when its SHA-256 is right.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi, constants, get_session, hf_hub_url
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.hf_api import BlobLfsInfo

from kvasir import __version__
from kvasir.errors import ConfigError, DownloadError

DEFAULT_QUANT = "Q4_K_M"
MAX_TRIES = 5  # in a row that bring no new byte
_TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 20
_PASSING_STATUS = frozenset((408, 425, 429, 500, 502, 503, 504))
_LISTING_TIMEOUT_S = 30.0
_RESERVE_BYTES = 64 << 20  # left free on the disk
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
_REFERENCE = re.compile(rf"({_NAME}/{_NAME})(?::([A-Za-z0-9_-]{{1,32}}))?")
_REVISION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,99})?")
_PART = re.compile(r"-(\d{5})-of-(\d{5})$")
_QUANT = re.compile(r"(?:^|[-._])((?:UD-)?(?:I?Q[1-8]|TQ[12]|BF16|F16|F32|MXFP4)(?:_[A-Z0-9]+)*)$", re.IGNORECASE)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LOCAL_HOSTS = frozenset(("localhost", "127.0.0.1", "::1"))

Progress = Callable[[str, int, int], None]
Sleep = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class HubReference:
    """A repository and, optionally, one of its quantisations: `OWNER/REPO[:QUANT]`."""

    repo: str
    quant: str | None

    @classmethod
    def parse(cls, text: str) -> HubReference:
        """Parse a reference without asking any server. Raises ConfigError if the text is invalid."""
        match = _REFERENCE.fullmatch(text)
        if match is None or ".." in text or "--" in text:
            raise ConfigError(f"{text!r} is not a model reference; it must look like OWNER/REPO or OWNER/REPO:Q4_K_M")
        return cls(match[1], match[2])


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file in the hub's list of a repository; `name` may contain folders."""

    name: str
    n_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Listing:
    """The GGUF files of a repository at one commit."""

    repo: str
    commit: str
    files: tuple[HubFile, ...]


class Hub:
    """One hub, by its address; None for the public hub."""

    def __init__(self, endpoint: str | None = None, token: str | None = None) -> None:
        """Raises ConfigError for an invalid address, or one that the token must not be sent to."""
        self.endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
        address = urlsplit(self.endpoint)
        if address.scheme not in {"http", "https"} or not address.hostname:
            raise ConfigError(f"the endpoint {self.endpoint!r} is not an address; it must look like https://HOST")
        if token and address.scheme == "http" and address.hostname not in _LOCAL_HOSTS:
            raise ConfigError(f"HF_TOKEN would be sent unencrypted to {self.endpoint}; use https, or unset HF_TOKEN")
        self._token: str | bool = token or False  # False: nor a token from the hub's own files

    def list_models(self, repo: str, revision: str = "main") -> Listing:
        """Return a repository's GGUF files. Raises ConfigError for an invalid revision, else DownloadError."""
        if not _REVISION.fullmatch(revision) or ".." in revision:
            raise ConfigError(f"{revision!r} is not a revision; it must be a branch, a tag or a commit")
        api = HfApi(endpoint=self.endpoint, token=self._token, library_name="kvasir", library_version=__version__)
        try:
            info = api.model_info(repo, revision=revision, files_metadata=True, timeout=_LISTING_TIMEOUT_S)
        except RevisionNotFoundError as error:
            raise DownloadError(f"{repo} has no revision {revision!r}") from error
        except GatedRepoError as error:
            raise DownloadError(f"{repo} requires that you accept its terms on its page; then set HF_TOKEN") from error
        except RepositoryNotFoundError as error:
            raise DownloadError(
                f"{self.endpoint} has no model {repo}; if the model is private, set HF_TOKEN"
            ) from error
        except HfHubHTTPError as error:
            raise DownloadError(f"{self.endpoint} answered {error.response.status_code} for {repo}") from error
        except (httpx2.HTTPError, ValueError, KeyError, TypeError) as error:
            raise DownloadError(
                f"{self.endpoint} returned no list of {repo}: {type(error).__name__}: {error}"
            ) from error
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
    """Return the file of a quantisation, or the parts of a split file in order.

    Without `quant` choose the default one, or the repository's only model. Raises ConfigError that lists the choices.
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
    """Fetch a model into a folder. Return the paths of its files; the first one opens the model.

    Files get their names when all of them are complete and verified. The same call resumes an interrupted pull. Raises
    ConfigError if no file can be chosen or a target exists, DownloadError if a download fails.
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
    for path in reversed(missing):  # the first part comes last: if it exists, the model is complete
        parts[path].replace(path)
    return tuple(targets)


def _hub_file(name: str, lfs: BlobLfsInfo | None) -> HubFile:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or not name.isprintable() or path.name.startswith("."):
        raise DownloadError(f"the hub lists a file named {name!r}, which is not a valid name")
    if lfs is None or not isinstance(lfs.size, int) or lfs.size <= 0 or not _SHA256.fullmatch(str(lfs.sha256)):
        raise DownloadError(f"the hub lists no size and SHA-256 of {name}, so it cannot be verified")
    return HubFile(name, lfs.size, lfs.sha256)


def _models(files: Iterable[HubFile]) -> Mapping[str, list[HubFile]]:
    """Return the files by model: the path without part number and suffix. Projectors and similar files are skipped."""
    models: dict[str, list[HubFile]] = {}
    for file in files:
        if not PurePosixPath(file.name).name.lower().startswith(("mmproj", "imatrix")):
            models.setdefault(_PART.sub("", file.name[: -len(".gguf")]), []).append(file)
    return models


def _quant_of(stem: str) -> str | None:
    match = _QUANT.search(PurePosixPath(stem).name)
    return match[1].upper() if match else None


def _in_order(stem: str, files: Sequence[HubFile]) -> tuple[HubFile, ...]:
    """Return the parts of a model by number. Raises ConfigError if one is missing."""
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
    raise ConfigError(f"{path} exists and differs from the hub's file; move it away, or pull --into another folder")


def _check_space(
    into: Path, files: Iterable[HubFile], parts: Iterable[Path], free_bytes: Callable[[Path], int]
) -> None:
    there = sum(part.stat().st_size for part in parts if part.exists())
    wanted = sum(file.n_bytes for file in files) - there
    free = free_bytes(into)
    if wanted > 0 and wanted + _RESERVE_BYTES > free:
        raise DownloadError(f"{wanted / 1e9:.2f} GB are missing, but {into} has {free / 1e9:.2f} GB free")


class _PassingError(Exception):
    """A failure that another try may overcome."""


def download(
    url: str, file: HubFile, part: Path, *, headers: Mapping[str, str], progress: Progress, sleep: Sleep
) -> None:
    """Complete `part` and verify it. Bytes that arrived before an error are kept for the next call.

    `progress` is called with the name, the bytes so far and the total; `sleep` with the seconds between two tries.
    Raises DownloadError.
    """
    with part.open("a+b") as stream:
        _lock(stream, part)
        transfer = _Transfer(url, file, stream, headers, progress)
        transfer.resume()
        _until_complete(transfer, file, sleep)
        stream.flush()
        os.fsync(stream.fileno())
    if transfer.digest.hexdigest() != file.sha256:
        part.unlink()
        raise DownloadError(
            f"{file.name} has SHA-256 {transfer.digest.hexdigest()}, but the hub lists {file.sha256}; it was deleted. "
            "Run the command again; if this happens again, do not trust the server"
        )


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class _Transfer:
    """The state of one file's download: the number of bytes written, and their hash."""

    def __init__(
        self, url: str, file: HubFile, stream: BinaryIO, headers: Mapping[str, str], progress: Progress
    ) -> None:
        self._url = url
        self._file = file
        self._stream = stream
        self._headers = headers
        self._progress = progress
        self.n_done = 0
        self.digest = hashlib.sha256()

    def resume(self) -> None:
        """Hash the bytes of an earlier try; discard them if they are more than the whole file."""
        if self._stream.seek(0, os.SEEK_END) > self._file.n_bytes:
            self._restart()
        self._stream.seek(0)
        while chunk := self._stream.read(_CHUNK_BYTES):
            self._count(chunk)
        self._progress(self._file.name, self.n_done, self._file.n_bytes)

    def fetch(self) -> None:
        """Request the missing bytes and write them as they arrive."""
        headers = {**self._headers, "Accept-Encoding": "identity"}
        if self.n_done:
            headers["Range"] = f"bytes={self.n_done}-"
        with get_session().stream("GET", self._url, headers=headers, timeout=_TIMEOUT_S) as response:
            self._check_status(response)
            for chunk in response.iter_raw():  # raw: keeps what arrived before the connection broke
                if self.n_done + len(chunk) > self._file.n_bytes:
                    raise DownloadError(f"the server sends more of {self._file.name} than {self._file.n_bytes} bytes")
                self._stream.write(chunk)
                self._count(chunk)
                self._progress(self._file.name, self.n_done, self._file.n_bytes)

    def _check_status(self, response: httpx2.Response) -> None:
        status = response.status_code
        if status in _PASSING_STATUS:
            raise _PassingError(f"the server answered {status}")
        if status == httpx2.codes.OK:
            self._restart()  # the server ignores ranges, or the request had none
        elif status == httpx2.codes.PARTIAL_CONTENT:
            content_range = response.headers.get("Content-Range", "")
            if not content_range.startswith(f"bytes {self.n_done}-"):
                raise DownloadError(f"requested bytes from {self.n_done} on, but the server sends {content_range!r}")
        else:
            raise DownloadError(f"the server answered {status} for {self._file.name}")

    def _restart(self) -> None:
        self._stream.truncate(0)
        self.n_done = 0
        self.digest = hashlib.sha256()

    def _count(self, chunk: bytes) -> None:
        self.n_done += len(chunk)
        self.digest.update(chunk)


def _until_complete(transfer: _Transfer, file: HubFile, sleep: Sleep) -> None:
    n_tries = 0
    while transfer.n_done < file.n_bytes:
        before = transfer.n_done
        reason = "the server closed the connection"
        try:
            transfer.fetch()
        except (httpx2.TransportError, _PassingError) as error:
            reason = str(error) or type(error).__name__
        n_tries = 0 if transfer.n_done > before else n_tries + 1
        if n_tries == MAX_TRIES:
            raise DownloadError(
                f"{file.name}: {transfer.n_done} of {file.n_bytes} bytes arrived, then {MAX_TRIES} tries failed "
                f"({reason}); run the command again to continue"
            )
        if transfer.n_done < file.n_bytes:
            sleep(float(2**n_tries))


def _lock(stream: BinaryIO, part: Path) -> None:
    try:
        fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DownloadError(f"another process is downloading to {part}; wait for it to end") from error
