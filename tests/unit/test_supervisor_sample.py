"""The sample's client against a server that answers from a script: what is right, and every way to be wrong."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from kvasir_site.supervisor import ServiceFailed
from kvasir_site.supervisor_sample import (
    Sample,
    SampleFailed,
    SampleRequest,
    served_model,
    wait_for_workers,
    write_sample,
)
from kvasir_site.supervisor_service import SamplePlan, check_alone

REQUEST = SampleRequest("model", "Once", {"seed": 7})
USAGE = {"completion_tokens": 2, "kvasir": {"row_experts": 8, "workers": 0.75, "hot": 0.0, "fallback": 0.25}}


@contextmanager
def server(body: str, status: int = 200) -> Iterator[tuple[str, list[Any]]]:
    """Answers everything with this; yields its address and the bodies that it was sent."""
    sent: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            sent.append((self.headers["Authorization"], json.loads(self.rfile.read(length) or b"null")))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        do_POST = do_GET

        def log_message(self, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}", sent
        finally:
            http.shutdown()
            thread.join()


def events(*chunks: dict[str, Any], end: str = "data: [DONE]\n\n") -> str:
    return ": heartbeat\n\n" + "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + end


def text(piece: str) -> dict[str, Any]:
    return {"choices": [{"text": piece}], "usage": None}


def test_pieces_are_shown_and_shares_are_read() -> None:
    shown: list[str] = []
    with server(events(text("upon"), text(" a"), {"choices": [], "usage": USAGE})) as (url, sent):
        sample = write_sample(url, "kvk-key", REQUEST, shown.append)
    assert shown == ["upon", " a"]
    assert sample == Sample("upon a", 2, 8, 0.75, 0.0, 0.25)
    assert not sample.is_by_workers
    assert "by workers 75.0%, hot cache 0.0%, backbone's own replica 25.0%" in sample.shares()
    authorization, body = sent[0]
    assert authorization == "Bearer kvk-key"
    assert (body["prompt"], body["seed"], body["stream"]) == ("Once", 7, True)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ('{"error": {"message": "too long"}}', 400, "answered 400.*too long"),
        (events(text("a"), {"error": {"code": "backbone_lost"}}, end=""), 200, "ended with an error.*backbone_lost"),
        (events(text("a"), end=""), 200, "without .DONE."),
        (events(text("a")), 200, "stream broke: KeyError"),  # no usage
        ("data: {nonsense\n\n", 200, "stream broke: JSONDecodeError"),
    ],
)
def test_a_stream_that_is_wrong_is_a_failure(body: str, status: int, words: str) -> None:
    with server(body, status) as (url, _), pytest.raises(SampleFailed, match=words):
        write_sample(url, "key", REQUEST, lambda piece: None)


def test_nobody_there_is_a_failure() -> None:
    with pytest.raises(SampleFailed, match="ConnectError"):
        write_sample("http://127.0.0.1:9", "key", REQUEST, lambda piece: None)
    with pytest.raises(SampleFailed, match="lists no model"):
        served_model("http://127.0.0.1:9", "key")


def test_workers_are_waited_for_by_the_metrics() -> None:
    with server('# HELP x\nkvasir_backbone_workers{backbone="b"} 2.0\n') as (url, _):
        wait_for_workers(url, "key", 2, 10.0)
        with pytest.raises(SampleFailed, match="2 of 3 workers"):
            wait_for_workers(url, "key", 3, 0.0)


@pytest.mark.parametrize(
    ("alone", "words"),
    [
        ({"text": "upon the", "n_tokens": 2}, "not identical.*at character 5"),
        ({"text": "upon a time", "n_tokens": 3}, r"not identical.*in length \(2 tokens\)"),
    ],
)
def test_a_text_that_differs_is_a_failure(alone: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = SamplePlan(Path("model.gguf"), "Once", {})
    sample = Sample("upon a", 2, 8, 1.0, 0.0, 0.0)

    class Done:
        returncode, stdout, stderr = 0, json.dumps(alone), ""

    monkeypatch.setattr(subprocess, "run", lambda *args, **options: Done)
    with pytest.raises(ServiceFailed, match=words):
        check_alone(sample, plan)


def test_a_run_alone_that_fails_says_why() -> None:
    with pytest.raises(ServiceFailed, match=r"alone failed \(1\).*no-such-model.gguf"):
        check_alone(Sample("", 0, 0, 0, 0, 0), SamplePlan(Path("no-such-model.gguf"), "Once", {}))
