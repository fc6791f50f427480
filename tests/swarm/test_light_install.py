"""`pip install .` in an empty environment: a worker that serves, without Django or torch."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.swarm.swarm import cut

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "kvasir-demo-moe.q4_k_m.gguf"

# Runs in the light environment: computes one row with every expert of a slice.
COMPUTE = """
import hashlib, sys
import numpy as np
from kvasir.kernels.registry import kernel_for
from kvasir.slicing.slice_file import SliceFile
slice_file = SliceFile.open(sys.argv[1])
kernel = kernel_for(slice_file.layers.values())
experts = kernel.load(slice_file.layers[2])
row = np.linspace(-2, 2, experts.d_model, dtype=np.float32)[None]
ids = np.arange(experts.n_expert, dtype=np.int32)
print(hashlib.sha256(experts.compute(kernel.encode_rows(row), np.zeros_like(ids), ids).tobytes()).hexdigest())
"""


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with nothing but `pip install .`."""
    folder = tmp_path_factory.mktemp("light") / "venv"
    venv.create(folder, with_pip=True)
    run(folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", str(ROOT))
    return folder / "bin"


def run(*command: object) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=300, check=False, cwd=Path(sys.prefix)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_neither_django_nor_torch_comes_with_it(light: Path) -> None:
    packages = {item["name"].lower() for item in json.loads(run(light / "pip", "list", "--format", "json"))}
    assert "kvasir" in packages
    assert packages & {"django", "torch", "celery", "redis", "channels", "tokenizers"} == set()


def test_only_the_light_package_is_installed(light: Path) -> None:
    script = "from importlib.metadata import files; print(*sorted({f.parts[0] for f in files('kvasir')}))"
    found = [name for name in run(light / "python", "-c", script).split() if not name.endswith(".dist-info")]
    assert [name for name in found if name != ".."] == ["kvasir"]  # ".." holds the commands


def test_the_commands_teach_their_use(light: Path) -> None:
    assert "kvasir-worker serve --slice" in run(light / "kvasir-worker", "serve", "--help")
    assert "join" in run(light / "kvasir-worker", "--help")
    assert "slice" in run(light / "kvasir", "--help")


def test_it_computes_the_bits_of_this_environment(light: Path, tmp_path: Path) -> None:
    (path,) = cut(MODEL, [(3, 9)], tmp_path)
    script = tmp_path / "compute.py"
    script.write_text(COMPUTE)
    theirs = run(light / "python", script, path).strip()
    assert theirs == run(sys.executable, script, path).strip()
