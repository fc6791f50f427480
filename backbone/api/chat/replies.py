"""A whole reply: all events of a body's generations, then one JSON object.

Called by `api` for requests without `stream.client`. It never hands out half an answer: the first failure is the reply.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from backbone.api.chat.forms import form_for
from backbone.api.chat.generation import Generation
from backbone.api.chat.requests import Asked
from backbone.api.errors import from_failed
from backbone.stream.events import End, Failed, Started, Token

WAIT_S = 60.0  # any time will do: the generation has its own deadline


async def whole_reply(generation: Generation, asked: Asked) -> dict[str, Any]:
    """The reply's body. Raises ApiError. The generation is closed whatever happens."""
    fingerprint = ""
    tokens: defaultdict[int, list[Token]] = defaultdict(list)
    reasons: dict[int, str] = {}
    try:
        while generation.n_unfinished:
            for number, event in await generation.next(WAIT_S):
                match event:
                    case Failed():
                        raise from_failed(event, asked.prompt_field)
                    case Started():
                        fingerprint = event.fingerprint
                    case Token():
                        tokens[number * asked.n + event.choice].append(event)
                    case End():
                        reasons[number * asked.n + event.choice] = event.finish_reason
    finally:
        generation.close()
    form = form_for(asked.kind, wants_logprobs=asked.wants_logprobs)
    return {
        "id": asked.reply_id,
        "object": form.whole_object,
        "created": asked.created,
        "model": asked.model,
        "system_fingerprint": fingerprint,
        "choices": [form.whole(index, tokens[index], reasons[index]) for index in sorted(reasons)],
        "usage": generation.tally.usage(),
    }
