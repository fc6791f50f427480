"""How replies are rounded on the wire, and the same rounding for what the backbone computes itself.

The wire's rounding is part of the model's numerics: a pair's output must not depend on who computed it or on which
other pairs shared its frame, so the rule looks at one pair at a time.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from kvasir.experts import FloatRows


class ReplyFormat(StrEnum):
    """f32 is exact; f16 halves the bytes on the way back; sum brings one row of integers back for each row."""

    F32 = "f32"
    F16 = "f16"
    SUM = "sum"


def round_replies(outputs: FloatRows, reply_format: ReplyFormat) -> FloatRows:
    """Outputs [n_pairs, d_model] as the wire would deliver them.

    With F16 a pair is rounded to half precision when all of its values fit, and stays f32 when one would become
    infinite. Rounding twice changes nothing, so a reply that travelled as f16 and one that did not end equal. With
    SUM outputs that travel one by one, as in entry tests, are f32.
    """
    if reply_format is not ReplyFormat.F16:
        return outputs
    with np.errstate(over="ignore"):
        rounded = outputs.astype(np.float16).astype(np.float32)
    fits = np.isfinite(rounded).all(axis=1)
    rounded[~fits] = outputs[~fits]
    return rounded
