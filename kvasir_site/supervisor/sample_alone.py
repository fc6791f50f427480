"""The sample's text by one process alone, without workers, relay or API: what the service's text must equal.

`manage.py up` runs it as `python -m kvasir_site.supervisor.sample_alone`, one JSON object on standard input (model: a
path, prompt, sampling), one on standard output (text, n_tokens).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.transport import NoWorkers
from backbone.management.generation import generate
from backbone.sampling_params import SamplingParams
from kvasir.errors import KvasirError


def main() -> int:
    """Read, generate, answer."""
    asked = json.load(sys.stdin)
    pieces: list[str] = []
    try:
        with LoadedModel.open(Path(asked["model"]), n_slot=1) as loaded:
            prompt = loaded.tokenizer.encode(asked["prompt"], add_special=True, parse_special=False)
            run = generate(
                loaded,
                NoWorkers(),
                [prompt],
                SamplingParams(**asked["sampling"]),
                on_text=lambda _number, text: pieces.append(text),
            )
    except KvasirError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    json.dump({"text": "".join(pieces), "n_tokens": run.n_output_tokens}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
