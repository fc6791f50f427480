"""`manage.py pull` and what it stands on: finding, resuming, verifying; against a hub on this machine."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backbone.model_hub import MAX_TRIES, Hub, HubFile, HubReference, Listing, choose_files, pull
from kvasir.errors import ConfigError, DownloadError
from tests.site.hub_server import COMMIT, REPO, HubState, serve_hub

NAME = "tiny.Q4_K_M.gguf"
DATA = random.Random(3).randbytes(300_000)
PARTS = {f"Q8_0/tiny-Q8_0-0000{n}-of-00003.gguf": bytes([n]) * 1000 * n for n in (1, 2, 3)}


@pytest.fixture
def hub() -> Iterator[tuple[str, HubState]]:
    with serve_hub() as (address, state):
        state.files = {NAME: DATA, "mmproj-tiny-F16.gguf": b"x", **PARTS}
        yield address, state


class Puller:
    """Pulls without waiting; keeps what was reported."""

    def __init__(self, address: str, into: Path) -> None:
        self.address = address
        self.into = into
        self.progress: list[tuple[str, int, int]] = []
        self.waits: list[float] = []

    def __call__(self, reference: str = REPO, *, token: str | None = None, revision: str = "main",
                 free_bytes: Callable[[Path], int] = lambda _: 1 << 40) -> tuple[Path, ...]:  # fmt: skip
        return pull(
            HubReference.parse(reference),
            self.into,
            hub=Hub(self.address, token),
            revision=revision,
            progress=lambda *now: self.progress.append(now),
            sleep=self.waits.append,
            free_bytes=free_bytes,
        )


@pytest.fixture
def puller(hub: tuple[str, HubState], tmp_path: Path) -> Puller:
    return Puller(hub[0], tmp_path / "models")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_it_works(puller: Puller) -> None:
    (path,) = puller()
    assert path == puller.into / NAME
    assert path.read_bytes() == DATA
    assert names_in(puller.into) == [NAME]
    assert puller.progress[0] == (NAME, 0, len(DATA))
    assert puller.progress[-1] == (NAME, len(DATA), len(DATA))


def test_all_parts_of_a_split_model_are_fetched(puller: Puller) -> None:
    paths = puller(f"{REPO}:q8_0")
    assert [path.name for path in paths] == [name.removeprefix("Q8_0/") for name in PARTS]
    assert [path.read_bytes() for path in paths] == list(PARTS.values())


def test_what_is_there_is_not_fetched_again(puller: Puller, hub: tuple[str, HubState]) -> None:
    puller()
    n_before = len(hub[1].paths("storage"))
    assert puller()[0].read_bytes() == DATA
    assert len(hub[1].paths("storage")) == n_before


def test_a_cut_connection_is_taken_up_where_it_ended(puller: Puller, hub: tuple[str, HubState]) -> None:
    hub[1].cut_after = [100_000, 0, 50_000]
    assert puller()[0].read_bytes() == DATA
    ranges = [headers.get("Range") for server, _, headers in hub[1].requests if server == "storage"]
    assert ranges == [None, "bytes=100000-", "bytes=100000-", "bytes=150000-"]
    assert len(puller.waits) == 3


def test_a_pull_that_was_given_up_goes_on_in_the_next_one(puller: Puller, hub: tuple[str, HubState]) -> None:
    hub[1].cut_after = [70_000] + [0] * MAX_TRIES
    with pytest.raises(DownloadError, match=r"70000 of 300000 bytes arrived, then 5 tries .* run the command again"):
        puller()
    assert [name.endswith(".gguf.part") for name in names_in(puller.into)] == [True]
    puller.progress.clear()
    assert puller()[0].read_bytes() == DATA
    assert puller.progress[0] == (NAME, 70_000, len(DATA))
    assert names_in(puller.into) == [NAME]


def test_a_split_model_appears_when_all_parts_are_there(puller: Puller, hub: tuple[str, HubState]) -> None:
    hub[1].cut_after = [10**6, 10**6] + [0] * MAX_TRIES
    with pytest.raises(DownloadError):
        puller(f"{REPO}:Q8_0")
    assert all(name.endswith(".part") for name in names_in(puller.into))


def test_a_server_without_ranges_starts_over(puller: Puller, hub: tuple[str, HubState]) -> None:
    hub[1].knows_ranges = False
    hub[1].cut_after = [100_000]
    assert puller()[0].read_bytes() == DATA


def test_passing_errors_are_waited_out_and_others_are_not(puller: Puller, hub: tuple[str, HubState]) -> None:
    hub[1].statuses = [503, 429]
    puller()
    assert puller.waits == [2.0, 4.0]
    (puller.into / NAME).unlink()
    hub[1].statuses = [403]
    with pytest.raises(DownloadError, match=f"the server answered 403 for {NAME}"):
        puller()


def test_other_bytes_than_announced_are_refused_and_thrown_away(puller: Puller, hub: tuple[str, HubState]) -> None:
    hub[1].sent_instead = {NAME: DATA[:-1] + b"!"}
    with pytest.raises(DownloadError, match=f"lists {hashlib.sha256(DATA).hexdigest()}; it was deleted"):
        puller()
    assert names_in(puller.into) == []


def test_more_bytes_than_announced_are_not_written(puller: Puller, hub: tuple[str, HubState]) -> None:
    hub[1].sent_instead = {NAME: DATA + b"x" * 10_000_000}
    with pytest.raises(DownloadError, match="sends more of"):
        puller()
    assert (puller.into / names_in(puller.into)[0]).stat().st_size <= len(DATA)


def test_a_range_that_was_not_asked_for_is_refused(puller: Puller, hub: tuple[str, HubState]) -> None:
    hub[1].cut_after = [1000]
    hub[1].content_range = "bytes 0-9/10"
    with pytest.raises(DownloadError, match="requested bytes from 1000 on, but the server sends 'bytes 0-9/10'"):
        puller()


def test_a_leftover_that_is_too_long_is_dropped(puller: Puller) -> None:
    puller.into.mkdir()
    (puller.into / f"tiny.Q4_K_M.{hashlib.sha256(DATA).hexdigest()[:8]}.gguf.part").write_bytes(DATA + b"x")
    assert puller()[0].read_bytes() == DATA


def test_two_pulls_of_one_file_do_not_mix(puller: Puller) -> None:
    puller.into.mkdir()
    part = puller.into / f"tiny.Q4_K_M.{hashlib.sha256(DATA).hexdigest()[:8]}.gguf.part"
    with part.open("wb") as other:
        fcntl.flock(other.fileno(), fcntl.LOCK_EX)
        with pytest.raises(DownloadError, match="another process is downloading to"):
            puller()
    assert puller()[0].read_bytes() == DATA


def test_another_file_of_that_name_is_kept(puller: Puller) -> None:
    puller.into.mkdir()
    (puller.into / NAME).write_bytes(b"mine")
    with pytest.raises(ConfigError, match="exists and differs from the hub's file"):
        puller()
    assert (puller.into / NAME).read_bytes() == b"mine"


def test_a_full_disk_is_noticed_before_the_download(puller: Puller, hub: tuple[str, HubState]) -> None:
    with pytest.raises(DownloadError, match=r"missing, but .* has 0\.00 GB free"):
        puller(free_bytes=lambda _: 1000)
    assert hub[1].paths("storage") == []


def test_the_token_goes_to_the_hub_alone(puller: Puller, hub: tuple[str, HubState]) -> None:
    puller(token="hf_secret")  # noqa: S106 - no real one
    by_server = {server: headers.get("Authorization") for server, _, headers in hub[1].requests}
    assert by_server == {"hub": "Bearer hf_secret", "storage": None}


def test_no_token_is_taken_from_elsewhere(puller: Puller, hub: tuple[str, HubState]) -> None:
    puller()
    assert not any("Authorization" in headers for _, _, headers in hub[1].requests)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (401, "RepoNotFound", "has no model someone/tiny-GGUF; if the model is private, set HF_TOKEN"),
        (404, "RepoNotFound", "has no model someone/tiny-GGUF"),
        (403, "GatedRepo", "requires that you accept its terms"),
        (500, None, "answered 500"),
    ],
)
def test_a_hub_that_gives_no_list_is_reported(
    puller: Puller, hub: tuple[str, HubState], status: int, code: str | None, expected: str
) -> None:
    hub[1].listing_status, hub[1].listing_error_code = status, code
    with pytest.raises(DownloadError, match=expected):
        puller()


def test_an_unknown_revision_is_reported(puller: Puller) -> None:
    with pytest.raises(DownloadError, match="has no revision 'v2'"):
        puller(revision="v2")


def test_nobody_listening_is_reported(tmp_path: Path) -> None:
    with serve_hub() as (address, _):
        pass
    with pytest.raises(DownloadError, match=f"{address} returned no list of {REPO}"):
        Puller(address, tmp_path)()


@pytest.mark.parametrize(
    "entry",
    [
        {"rfilename": "../x.gguf"},
        {"rfilename": "/etc/x.gguf"},
        {"rfilename": "a\\x.gguf"},
        {"rfilename": "a\n.gguf"},
        {"rfilename": ".x.gguf"},
        {"rfilename": NAME, "lfs": None},
        {"rfilename": NAME, "lfs": {"sha256": "zz", "size": 3, "pointerSize": 1}},
        {"rfilename": NAME, "lfs": {"sha256": "0" * 64, "size": -3, "pointerSize": 1}},
    ],
)
def test_a_hostile_listing_is_refused(puller: Puller, hub: tuple[str, HubState], entry: dict[str, object]) -> None:
    good = {"size": 3, "blobId": "0" * 40, "lfs": {"sha256": "0" * 64, "size": 3, "pointerSize": 1}}
    hub[1].listing = hub[1].describe() | {"siblings": [good | entry]}
    with pytest.raises(DownloadError, match=r"not a valid name|no size and SHA-256"):
        puller()
    assert not puller.into.exists()


@pytest.mark.parametrize(
    "text", ["", "x", "a/b/c", "a/..", "../b", "a b/c", "a/b:", "a/b:Q4 K", "https://h/a/b", "a/-b", "a/b?x=1", "a/b\n"]
)
def test_bad_references_are_refused_before_any_request(text: str) -> None:
    with pytest.raises(ConfigError, match="it must look like OWNER/REPO"):
        HubReference.parse(text)


@pytest.mark.parametrize("endpoint", ["hub.example", "ftp://hub.example", "http://"])
def test_bad_endpoints_are_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        Hub(endpoint)


def test_a_token_does_not_travel_in_the_clear() -> None:
    with pytest.raises(ConfigError, match="HF_TOKEN would be sent unencrypted") as caught:
        Hub("http://hub.example", "hf_secret")
    assert "hf_secret" not in str(caught.value)


def test_bad_revisions_are_refused_before_any_request(puller: Puller, hub: tuple[str, HubState]) -> None:
    with pytest.raises(ConfigError, match="is not a revision"):
        puller(revision="../../x")
    assert hub[1].requests == []


def listing_of(*names: str) -> Listing:
    return Listing("a/b", COMMIT, tuple(HubFile(name, 1, "0" * 64) for name in names))


@pytest.mark.parametrize(
    ("names", "quant", "expected"),
    [
        (("m.Q4_K_M.gguf", "m.Q8_0.gguf"), None, "m.Q4_K_M.gguf"),
        (("m-q4_k_m.gguf", "m-q8_0.gguf"), "Q8_0", "m-q8_0.gguf"),
        (("m-UD-Q4_K_XL.gguf", "m-Q4_K_XL.gguf"), "UD-Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
        (("m-IQ4_XS.gguf", "m-Q4_K_S.gguf"), "iq4_xs", "m-IQ4_XS.gguf"),
        (("BF16/m-BF16.gguf", "m-F16.gguf"), "BF16", "BF16/m-BF16.gguf"),
        (("only-model.gguf", "mmproj-F16.gguf"), None, "only-model.gguf"),
        (("m-MXFP4_MOE.gguf", "m-Q2_K.gguf"), "MXFP4_MOE", "m-MXFP4_MOE.gguf"),
    ],
)
def test_the_files_of_a_quantisation_are_found(names: tuple[str, ...], quant: str | None, expected: str) -> None:
    assert [file.name for file in choose_files(listing_of(*names), quant)] == [expected]


@pytest.mark.parametrize(
    ("names", "quant", "expected"),
    [
        ((), None, "a/b has no GGUF model files"),
        (("m-Q8_0.gguf", "m-Q6_K.gguf"), None, "no model of Q4_K_M; choose with :QUANT from Q6_K, Q8_0"),
        (("m-Q8_0.gguf",), "Q5_K_M", "no model of Q5_K_M; choose with :QUANT from Q8_0"),
        (("m-Q4_K_M.gguf", "n-Q4_K_M.gguf"), None, r"2 models \(m-Q4_K_M, n-Q4_K_M\) of Q4_K_M"),
        (("m-Q4_K_M-00001-of-00002.gguf",), None, r"has 2 parts, of which the repository holds \[1\]"),
    ],
)
def test_what_cannot_be_chosen_says_what_there_is(names: tuple[str, ...], quant: str | None, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        choose_files(listing_of(*names), quant)


def test_the_command_prints_the_paths(puller: Puller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    out = io.StringIO()
    call_pull(REPO, into=puller.into, endpoint=puller.address, stdout=out)
    assert out.getvalue() == f"{puller.into / NAME}\n"


def test_the_command_reports_errors_without_a_trace(puller: Puller) -> None:
    from django.core.management import CommandError

    with pytest.raises(CommandError, match="choose with :QUANT from Q4_K_M, Q8_0"):
        call_pull(f"{REPO}:Q2_K", into=puller.into, endpoint=puller.address)


def call_pull(*args: str, **options: object) -> None:
    import django
    from django.core.management import call_command

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kvasir_site.settings")
    django.setup()
    call_command("pull", *args, **options)
