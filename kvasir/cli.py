"""The `kvasir` command: inspect models, cut slices of their experts, verify slices.

It parses arguments, shows progress bars and prints; `slicing.slices`, `slicing.manifest` and `slicing.inspect_report`
do the work. An error is one sentence on standard error and exit code 2.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from kvasir import __version__
from kvasir.byte_sizes import format_size, parse_size
from kvasir.errors import KvasirError, SliceError
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.expert_ranges import parse_ranges
from kvasir.slicing.inspect_report import USUAL_BUDGETS, model_text, model_values, slice_text, slice_values
from kvasir.slicing.manifest import Manifest
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slice_file import SliceFile, is_slice
from kvasir.slicing.slices import plan_slice, write_slice

_EXAMPLES = """\
examples:
  Show a model's layers and experts, and how many of the experts fit into 2 GiB:
    kvasir inspect model.gguf --budget 2GiB

  Cut the first 8 experts of every layer into a file that a worker can serve:
    kvasir slice model.gguf --experts "*:0-8" --out slice.gguf --manifest slice.json

  Cut experts 0 to 63 of layer 3 and expert 7 of layer 5 (a range stops before its last number):
    kvasir slice model.gguf --experts "3:0-64,5:7-8" --out slice.gguf

  Verify every expert of a slice against its manifest, then serve it:
    kvasir verify slice.gguf slice.json
    kvasir-worker serve --slice slice.gguf --listen 127.0.0.1:7070

For a model in several files (name-00001-of-00003.gguf) name any one of them; the others must be in the same folder.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 2 after printing an error, or 130 if interrupted."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], None] = options.command
    try:
        command(options)
    except KvasirError as error:
        print(f"kvasir: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("kvasir: interrupted; no unfinished file was left behind", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvasir",
        description="Inspect mixture-of-experts models in GGUF files and cut slices of their experts.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kvasir {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    inspect = commands.add_parser("inspect", help="show a model's layers, experts and sizes, and what a budget holds")
    inspect.add_argument("file", type=Path, metavar="FILE", help="a model (any part of it) or a slice")
    inspect.add_argument(
        "--budget", metavar="SIZE", help="show how many experts fit into SIZE bytes, such as 2GiB or 500MB"
    )
    inspect.add_argument("--json", action="store_true", help="print JSON, with sizes in bytes")
    inspect.set_defaults(command=_inspect)

    cut = commands.add_parser("slice", help="write experts of a model to a slice")
    cut.add_argument("file", type=Path, metavar="FILE", help="the model (any part of it)")
    cut.add_argument(
        "--experts", required=True, metavar="RANGES", help='LAYER:START-STOP,… such as "0:0-8,1:4-6" or "*:0-8"'
    )
    cut.add_argument("--out", required=True, type=Path, metavar="FILE", help="the slice to write")
    cut.add_argument("--manifest", type=Path, metavar="FILE", help="also write the SHA-256 of each expert, as JSON")
    cut.add_argument("--force", action="store_true", help="replace existing files")
    cut.set_defaults(command=_slice)

    verify = commands.add_parser("verify", help="verify every expert of a slice against a manifest")
    verify.add_argument("file", type=Path, metavar="SLICE")
    verify.add_argument("manifest", type=Path, metavar="MANIFEST")
    verify.set_defaults(command=_verify)
    return parser


def _inspect(options: argparse.Namespace) -> None:
    budgets = USUAL_BUDGETS if options.budget is None else (parse_size(options.budget),)
    with GGUFIndex.open(options.file) as index:
        if is_slice(index):
            with SliceFile.open(options.file) as slice_file:
                print(json.dumps(slice_values(slice_file)) if options.json else slice_text(slice_file))
            return
        card = ModelCard.from_index(index)
        n_parts = len(index.parts)
    if options.json:
        print(json.dumps(model_values(card, n_parts, budgets)))
    else:
        print(model_text(card, n_parts, budgets))


def _slice(options: argparse.Namespace) -> None:
    _check_outputs([path for path in (options.out, options.manifest) if path is not None], options.force)
    with GGUFIndex.open(options.file) as index:
        card = ModelCard.from_index(index)
        plan = plan_slice(index, card, parse_ranges(options.experts, card.moe_layers))
        with _progress_bar("writing", "B") as progress:
            write_slice(plan, options.out, progress)
        if options.manifest is not None:
            with _progress_bar("hashing", " experts") as progress:
                Manifest.of_model(index, card, plan.ranges, progress).save(options.manifest)
    n_experts = sum(item.n_experts for item in plan.ranges)
    print(f"{options.out}: {n_experts} experts of {card.name}, {format_size(plan.n_bytes)}")


def _check_outputs(paths: list[Path], is_forced: bool) -> None:
    """Raise SliceError for an output that cannot be written, before the work begins."""
    if len({path.resolve() for path in paths}) < len(paths):
        raise SliceError(f"--out and --manifest name the same file, {paths[0]}")
    for path in paths:
        if path.exists() and not is_forced:
            raise SliceError(f"{path} exists; choose another name, or use --force to replace it")
        if not path.parent.is_dir():
            raise SliceError(f"the directory {path.parent} does not exist; create it, or choose another")


def _verify(options: argparse.Namespace) -> None:
    manifest = Manifest.load(options.manifest)
    with SliceFile.open(options.file) as slice_file:
        with _progress_bar("hashing", " experts") as progress:
            manifest.verify(slice_file, progress)
        print(f"{options.file}: all {slice_file.n_experts} experts match the manifest")


@contextmanager
def _progress_bar(title: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function of (done, total) that moves a bar on standard error, if that is a terminal."""
    is_bytes = unit == "B"
    with tqdm(desc=title, unit=unit, unit_scale=is_bytes, unit_divisor=1024, disable=None, leave=False) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show


if __name__ == "__main__":
    sys.exit(main())
