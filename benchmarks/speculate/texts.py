"""Requests whose answers repeat their prompts, and requests whose answers do not. Used by `bench_speculate`."""

from __future__ import annotations

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.sampling_params import SamplingParams
from benchmarks.shape.generate_decode import NEVER
from benchmarks.speculate.run import Request, decode

_BEGINNINGS = (
    "Once upon a time there was a", "One day the king said to", "In a small house near the forest",
    "The little girl went out to", "Long ago a poor man had", "Every morning the old cat",
    "When the sun came up,", "Tom and his sister wanted",
)  # fmt: skip
_N_STORY = 80  # tokens of the text that is repeated
_N_AGAIN = 8  # tokens of it that the prompt itself says again


def free_requests(loaded: LoadedModel, n: int, n_tokens: int) -> list[Request]:
    """Stories that are made up: sampled, each with a seed of its own."""
    return [Request(_prompt(loaded, number), _sampled(loaded, number, n_tokens)) for number in range(n)]


def repeating_requests(loaded: LoadedModel, n: int, n_tokens: int) -> list[Request]:
    """A story twice and the beginning of a third time, greedily: the model goes on as before, more or less."""
    free = free_requests(loaded, n, _N_STORY)
    stories = decode(loaded, free, round_trip_s=0.0, max_drafts=0).token_ids
    params = SamplingParams(temperature=0.0, max_tokens=n_tokens, logit_bias=_no_end(loaded))
    requests = []
    for request, answer in zip(free, stories, strict=True):
        story = [*request.prompt_ids, *answer]
        requests.append(Request([*story, *story, *story[:_N_AGAIN]], params))
    return requests


def _prompt(loaded: LoadedModel, number: int) -> list[int]:
    text = _BEGINNINGS[number % len(_BEGINNINGS)]
    return loaded.tokenizer.encode(text, add_special=True, parse_special=False)


def _sampled(loaded: LoadedModel, number: int, n_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.8, seed=number, max_tokens=n_tokens, logit_bias=_no_end(loaded))


def _no_end(loaded: LoadedModel) -> dict[int, float]:
    return dict.fromkeys(loaded.tokenizer.eog_ids, NEVER)
