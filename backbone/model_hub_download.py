"""One file over HTTP: resumed where an earlier try ended, bounded by its announced size, verified by its SHA-256.

Called by `hub`. What is not yet verified lies in a `.part` file; it never touches the place where the model will be.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx2
from huggingface_hub import get_session

from kvasir.errors import DownloadError

MAX_TRIES = 5  # in a row, without a single new byte
_TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 20
_PASSING_STATUS = frozenset((408, 425, 429, 500, 502, 503, 504))

Progress = Callable[[str, int, int], None]
Sleep = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository as the hub announces it; `name` may contain folders."""

    name: str
    n_bytes: int
    sha256: str


class _PassingError(Exception):
    """The server may answer better in a moment."""


def download(
    url: str, file: HubFile, part: Path, *, headers: Mapping[str, str], progress: Progress, sleep: Sleep
) -> None:
    """Complete `part` and verify it. What came before an error stays for the next try, unless it is wrong.

    `progress` is called with name, bytes so far and bytes in all; `sleep` with the seconds to wait between tries.
    Raises DownloadError.
    """
    with part.open("a+b") as stream:
        _lock(stream, part)
        transfer = _Transfer(url, file, stream, headers, progress)
        transfer.take_up()
        _until_complete(transfer, file, sleep)
        stream.flush()
        os.fsync(stream.fileno())
    if transfer.digest.hexdigest() != file.sha256:
        part.unlink()
        raise DownloadError(
            f"{file.name} arrived with SHA-256 {transfer.digest.hexdigest()}, but the hub announces {file.sha256}; "
            "it was thrown away. Run the command again; if that repeats, the server is not to be trusted"
        )


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class _Transfer:
    """The state of one file's download: bytes written, and their running hash."""

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

    def take_up(self) -> None:
        """Hash what an earlier try left; more than the file's size cannot be a beginning of it."""
        if self._stream.seek(0, os.SEEK_END) > self._file.n_bytes:
            self._restart()
        self._stream.seek(0)
        while chunk := self._stream.read(_CHUNK_BYTES):
            self._count(chunk)
        self._progress(self._file.name, self.n_done, self._file.n_bytes)

    def fetch(self) -> None:
        """Ask for what is missing and write it as it comes."""
        headers = {**self._headers, "Accept-Encoding": "identity"}
        if self.n_done:
            headers["Range"] = f"bytes={self.n_done}-"
        with get_session().stream("GET", self._url, headers=headers, timeout=_TIMEOUT_S) as response:
            self._check_status(response)
            for chunk in response.iter_raw():  # as it comes: what a cut connection brought is kept
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
            self._restart()  # it does not know ranges, or nothing was asked for
        elif status == httpx2.codes.PARTIAL_CONTENT:
            content_range = response.headers.get("Content-Range", "")
            if not content_range.startswith(f"bytes {self.n_done}-"):
                raise DownloadError(f"asked for bytes from {self.n_done} on, the server sends {content_range!r}")
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
                f"{file.name}: {transfer.n_done} of {file.n_bytes} bytes came, then {MAX_TRIES} tries brought nothing "
                f"({reason}); run the command again to go on from there"
            )
        if transfer.n_done < file.n_bytes:
            sleep(float(2**n_tries))


def _lock(stream: BinaryIO, part: Path) -> None:
    try:
        fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DownloadError(f"another process is downloading to {part}; wait for it to end") from error
