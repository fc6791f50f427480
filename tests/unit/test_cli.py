"""The kvasir command: what it prints, what it writes, and that every error is one sentence and exit code 2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as QuantType

from kvasir import cli
from kvasir.byte_sizes import format_size, parse_size
from kvasir.cli import main
from kvasir.errors import ConfigError
from kvasir.slicing.manifest import Manifest
from kvasir.slicing.slice_file import SliceFile
from tests.unit.moe_files import ModelSpec, write_model


def test_inspect_shows_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = ModelSpec(n_layer=4, n_mtp_layer=1, dense_layers=(0,), down_types=(QuantType.Q8_0, QuantType.F16))
    assert main(["inspect", str(write_model(tmp_path / "m.gguf", spec)), "--budget", "200MB"]) == 0
    text = capsys.readouterr().out
    for line in (
        "model         tiny",
        "layers        4, 3 of them with experts; 1 more for multi-token prediction, which stays on the backbone",
        "experts       6 a layer, 2 used per row, 18 in all",
        "widths        d_model 64, d_ff 32, vocabulary 40, context 512",
        "1, 3    Q8_0  Q8_0  F16   8.25 KiB   49.5 KiB",
        "2       Q8_0  Q8_0  Q8_0  6.38 KiB   38.2 KiB",
        "191 MiB      18             100.0%  3",
    ):
        assert line in text.splitlines()


def test_inspect_notes_layouts_and_foreign_architectures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = ModelSpec(architecture="newmoe", name="evil\x1b[2J\nname", is_fused=True, has_bias=True)
    assert main(["inspect", str(write_model(tmp_path / "m.gguf", spec))]) == 0
    text = capsys.readouterr().out
    assert "gate and up fused, biases" in text
    assert "newmoe (can be sliced; the engine runs qwen3moe, " in text
    assert "model         evil?[2J?name" in text
    assert "\x1b" not in text


def test_inspect_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_model(tmp_path / "m.gguf", ModelSpec(tensors_per_part=5))
    assert main(["inspect", str(path), "--json", "--budget", "150MB"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["architecture"], values["n_parts"], values["n_expert"], values["d_ff"]) == ("qwen3moe", 4, 6, 32)
    assert values["budgets"] == [{"bytes": 150_000_000, "experts": 0, "whole_layers": 0}]
    assert [layer["expert_bytes"] for layer in values["layers"]] == [6528] * 3
    assert values["tensor_bytes"] == values["dense_bytes"] + values["routed_bytes"]


def test_slice_manifest_inspect_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out, manifest = write_model(tmp_path / "m.gguf"), tmp_path / "s.gguf", tmp_path / "s.json"
    command = ["slice", str(model), "--experts", "*:0-2,1:4-5", "--out", str(out), "--manifest", str(manifest)]
    assert main(command) == 0
    captured = capsys.readouterr()
    assert f"{out}: 7 experts of tiny, " in captured.out
    assert captured.err == ""
    with SliceFile.open(out) as slice_file:
        assert slice_file.n_experts == len(Manifest.load(manifest).experts) == 7
    assert main(["verify", str(out), str(manifest)]) == 0
    assert "all 7 experts match the manifest" in capsys.readouterr().out
    assert main(["inspect", str(out)]) == 0
    assert "experts held   0:0-2,1:0-2,1:4-5,2:0-2" in capsys.readouterr().out
    assert main(["inspect", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranges"] == [[0, 0, 2], [1, 0, 2], [1, 4, 5], [2, 0, 2]]
    assert main(command) == 2
    assert "exists; choose another name" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0


def test_errors_are_one_sentence_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(write_model(tmp_path / "m.gguf"))
    (tmp_path / "text.gguf").write_text("hello there, this is not a model")
    out = str(tmp_path / "s.gguf")
    cases = {
        ("inspect", str(tmp_path / "none.gguf")): "cannot be opened",
        ("inspect", str(tmp_path / "text.gguf")): "not a GGUF file",
        ("inspect", model, "--budget", "much"): "'much' is not a size",
        ("slice", model, "--experts", "0:0-9", "--out", out): "experts 0 to 5",
        ("slice", model, "--experts", "first", "--out", out): "'first' is not LAYER:START-STOP",
        ("slice", model, "--experts", "0:0-1", "--out", model, "--force"): "file of the model itself",
        ("slice", model, "--experts", "0:0-1", "--out", out, "--manifest", out): "name the same file",
        ("slice", model, "--experts", "0:0-1", "--out", str(tmp_path / "none" / "s.gguf")): "does not exist",
        ("verify", model, str(tmp_path / "text.gguf")): "cannot be read as a manifest",
    }
    for arguments, message in cases.items():
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("kvasir: ")
        assert captured.err.count("\n") == 1
        assert message in captured.err
    assert not Path(out).exists()


def test_a_broken_slice_fails_verification(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out, manifest = write_model(tmp_path / "m.gguf"), tmp_path / "s.gguf", tmp_path / "s.json"
    assert main(["slice", str(model), "--experts", "2:3-4", "--out", str(out), "--manifest", str(manifest)]) == 0
    data = bytearray(out.read_bytes())
    data[-33] ^= 1
    out.write_bytes(data)
    capsys.readouterr()
    assert main(["verify", str(out), str(manifest)]) == 2
    assert "expert 3 of layer 2 is broken" in capsys.readouterr().err


def test_interrupting_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "plan_slice", interrupt)
    model = write_model(tmp_path / "m.gguf")
    assert main(["slice", str(model), "--experts", "0:0-1", "--out", str(tmp_path / "s.gguf")]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [model]


def test_help_teaches_by_example_and_wrong_usage_is_code_2() -> None:
    shown = subprocess.run([sys.executable, "-m", "kvasir.cli", "--help"], capture_output=True, text=True, check=True)
    assert 'kvasir slice model.gguf --experts "*:0-8" --out slice.gguf --manifest slice.json' in shown.stdout
    wrong = subprocess.run([sys.executable, "-m", "kvasir.cli", "slice"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("2GiB", 2 << 30), ("500MB", 500_000_000), ("1.5 kib", 1536), ("12", 12), ("7B", 7), ("3tb", 3 * 10**12)],
)
def test_sizes_are_parsed(text: str, n_bytes: int) -> None:
    assert parse_size(text) == n_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "2GB2", "1e9", "2 XB", "1.2.3MB", "0x10", "nan", "2GiBs"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size(text)


def test_sizes_are_shown_with_three_digits() -> None:
    shown = [
        format_size(n_bytes) for n_bytes in (0, 1023, 1024, 1536, 12_900, 5_308_416, 1 << 30, 77_600_000_000, 1 << 44)
    ]
    assert shown == [
        "0 B",
        "1023 B",
        "1.00 KiB",
        "1.50 KiB",
        "12.6 KiB",
        "5.06 MiB",
        "1.00 GiB",
        "72.3 GiB",
        "16,384 GiB",
    ]
