"""The backbone's half of a handshake: what the worker's first frame must be.

`edge` calls it once per connection. Both sides compare fingerprints, so that neither has to trust the other's care.
"""

from __future__ import annotations

from kvasir.errors import EdgeError, HandshakeRefused
from kvasir.wire.frames import Fault, Frame, Hello, Refuse, Welcome


def checked_welcome(frame: Frame, hello: Hello, address: str) -> Welcome:
    """The worker's Welcome to `hello`.

    Raises HandshakeRefused when it refused or when what it has is not what the hello says, EdgeError when it ended
    the edge or broke the order of frames.
    """
    match frame:
        case Welcome():
            _check_same("model fingerprint", hello.model_fingerprint, frame.model_fingerprint, address)
            _check_same("kernel fingerprint", hello.kernel_fingerprint, frame.kernel_fingerprint, address)
            return frame
        case Refuse(code, message):
            raise HandshakeRefused(f"worker {address} refused ({code.name}): {message}")
        case Fault(_, code, message):
            raise EdgeError(f"worker {address} ended the edge ({code.name}): {message}")
        case _:
            raise EdgeError(f"worker {address} sent {type(frame).__name__} where Welcome is due")


def _check_same(what: str, ours: str, theirs: str, address: str) -> None:
    if ours != theirs:
        raise HandshakeRefused(f"worker {address}: {what} is {theirs}, this backbone has {ours}")
