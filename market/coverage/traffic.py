"""Traffic on its way from backbones to the market: rows per second wanted of each expert, packed.

Each backbone writes its own field of the Redis hash `traffic:<fingerprint>` about once a second; the market adds up
the fresh fields. This module is the codec, the key's name and a backbone's meter; it imports neither Redis nor Django.

    field: the backbone's id     value: f64 Unix time in seconds, then f32 rows/s [n_layer, n_expert], little-endian
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvasir.errors import WireError

if TYPE_CHECKING:  # settings import this module: it must not load the client
    from redis import Redis

FRESH_S = 15.0  # older fields are ignored
METER_HALF_LIFE_S = 10.0
EXPIRY_S = 60  # of the whole hash, after the last write
_TIME = struct.Struct("<d")

Traffic = npt.NDArray[np.float32]  # rows/s [n_layer, n_expert]


def traffic_key(fingerprint: str) -> str:
    """Return the key of the hash of a model's traffic."""
    return f"traffic:{fingerprint}"


def pack_traffic(traffic: Traffic, at_s: float) -> bytes:
    """Pack a field's value. Raises WireError for traffic that is negative or not finite."""
    if not np.isfinite(traffic).all() or (traffic < 0).any():
        raise WireError("traffic must be finite rows per second, 0 or more")
    return _TIME.pack(at_s) + traffic.astype("<f4").tobytes()


def unpack_traffic(data: bytes, n_layer: int, n_expert: int) -> tuple[float, Traffic]:
    """Return (Unix time in seconds, rows/s [n_layer, n_expert]). Raises WireError for malformed bytes."""
    wanted = _TIME.size + 4 * n_layer * n_expert
    if len(data) != wanted:
        raise WireError(f"traffic has {len(data)} bytes; {wanted} are needed for {n_layer} x {n_expert} experts")
    traffic = np.frombuffer(data, "<f4", offset=_TIME.size).reshape(n_layer, n_expert)
    if not np.isfinite(traffic).all() or (traffic < 0).any():
        raise WireError("traffic must be finite rows per second, 0 or more")
    return float(_TIME.unpack_from(data)[0]), traffic.astype(np.float32)


def total_traffic(fields: Iterable[bytes], n_layer: int, n_expert: int, now_s: float) -> Traffic:
    """Return the sum of the fresh fields. Malformed fields, of backbones of another version, are left out."""
    total = np.zeros((n_layer, n_expert), np.float32)
    for data in fields:
        try:
            at_s, traffic = unpack_traffic(data, n_layer, n_expert)
        except WireError:
            continue
        if abs(now_s - at_s) <= FRESH_S:
            total += traffic
    return total


class TrafficMeter:
    """A backbone's own traffic: a moving average of rows per second, from counts."""

    def __init__(self, n_layer: int, n_expert: int) -> None:
        self.traffic: Traffic = np.zeros((n_layer, n_expert), np.float32)

    def update(self, calls: npt.NDArray[np.int64], elapsed_s: float) -> Traffic:
        """Return the average after `calls` [n_layer, n_expert] in the last `elapsed_s` seconds, above 0."""
        share = np.float32(1.0 - 2.0 ** (-elapsed_s / METER_HALF_LIFE_S))
        rate = (calls / elapsed_s).astype(np.float32)
        self.traffic = (self.traffic + (rate - self.traffic) * share).astype(np.float32)
        return self.traffic


def publish_traffic(client: Redis, fingerprint: str, backbone_id: str, traffic: Traffic, at_s: float) -> None:
    """Write a backbone's field. Raises the client's errors."""
    client.hset(traffic_key(fingerprint), backbone_id, pack_traffic(traffic, at_s))
    client.expire(traffic_key(fingerprint), EXPIRY_S)
