"""The self-test of expert kernels: fixed inputs and frozen digests of the outputs.

Each kernel calls it for its fingerprint, at every start. It uses the kernel's public interface only, and detects a
miscompiled, misdispatched or faulty build; it proves nothing about later computations.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType as Quant

from kvasir.errors import KernelError
from kvasir.experts import ExpertStack, FloatRows, LayerExperts
from kvasir.kernels.api import FLOAT_NAME, KX1_NAME, EncodedRows, ExpertKernel, LoadedExperts, RowFormat
from kvasir.kernels.selftest_digests import FROZEN_DIGESTS
from kvasir.kernels.selftest_inputs import (
    WeightKind,
    adversarial_rows,
    legal_packed_rows,
    made_weights,
    plain_rows,
)


@dataclass(frozen=True, slots=True)
class SelfTestCase:
    """Two small experts, the first "plain", the second of `kind`, and the seed of all inputs."""

    name: str
    types: tuple[Quant, Quant, Quant]  # gate, up, down
    kind: WeightKind
    seed: int
    d_model: int = 512
    d_ff: int = 256

    def experts(self) -> LayerExperts:
        """Make the case's weights; matrix m (gate, up, down) of expert e has seed `seed + 16 e + m`."""
        gate, up, down = self.types
        return LayerExperts(
            layer=0,
            gate=self._stack(0, gate, self.d_ff, self.d_model),
            up=self._stack(1, up, self.d_ff, self.d_model),
            down=self._stack(2, down, self.d_model, self.d_ff),
        )

    def _stack(self, matrix: int, quant_type: Quant, n_out: int, n_in: int) -> ExpertStack:
        plain = made_weights(quant_type, n_out, n_in, self.seed + matrix, "plain")
        other = made_weights(quant_type, n_out, n_in, self.seed + 16 + matrix, self.kind)
        return ExpertStack(quant_type, n_out, n_in, np.stack([plain, other]))

    def rows(self, row_format: RowFormat) -> FloatRows:
        """Make finite rows: at the limits of KX1's format, or moderate ones for a kernel that adds in f32."""
        if row_format is RowFormat.KX1:
            return adversarial_rows(self.d_model, self.seed + 64)
        return plain_rows(8, self.d_model, self.seed + 64)


CASES = {
    KX1_NAME: (
        SelfTestCase("Q4_K Q4_K Q6_K", (Quant.Q4_K, Quant.Q4_K, Quant.Q6_K), "wild", 1000),
        SelfTestCase("Q5_K Q5_K Q5_K", (Quant.Q5_K, Quant.Q5_K, Quant.Q5_K), "high", 2000),
        SelfTestCase("Q6_K Q6_K Q4_K", (Quant.Q6_K, Quant.Q6_K, Quant.Q4_K), "low", 3000),
        SelfTestCase("Q8_0 Q8_0 Q8_0", (Quant.Q8_0, Quant.Q8_0, Quant.Q8_0), "wild", 4000),
    ),
    FLOAT_NAME: (
        SelfTestCase("F32 F32 F32", (Quant.F32, Quant.F32, Quant.F32), "plain", 5000, 100, 52),
        SelfTestCase("F16 F16 F16", (Quant.F16, Quant.F16, Quant.F16), "plain", 6000, 96, 64),
        SelfTestCase("BF16 BF16 BF16", (Quant.BF16, Quant.BF16, Quant.BF16), "plain", 7000, 96, 64),
        SelfTestCase("Q4_K Q8_0 Q6_K", (Quant.Q4_K, Quant.Q8_0, Quant.Q6_K), "plain", 8000, 256, 256),
    ),
}


def self_test(kernel: ExpertKernel) -> str:
    """Run a kernel on its cases and return the digest of all outputs, 64 hex digits.

    Raises KernelError, which names the case and the difference, if a digest is not the frozen one, or if a row has
    other bits in a small call than in a large one (kernels have separate code for few rows).
    """
    if kernel.name not in CASES:
        raise KernelError(f"kernel {kernel.name!r} has no self-test; there are tests for {', '.join(CASES)}")
    total = hashlib.sha256()
    for case in CASES[kernel.name]:
        run = CaseRun.of(kernel, case)
        for part, digest in run.digests().items():
            wanted = FROZEN_DIGESTS[kernel.name][case.name][part]
            if digest != wanted:
                raise _failure(kernel, f"{part} of {case.name} have digest {digest[:16]} instead of {wanted[:16]}")
            total.update(bytes.fromhex(digest))
        if not run.is_same_in_small_calls():
            raise _failure(kernel, f"rows of {case.name} have other bits in a small call than in a large one")
    return total.hexdigest()


def _failure(kernel: ExpertKernel, what: str) -> KernelError:
    return KernelError(
        f"kernel {kernel.name} failed its self-test: {what}; "
        "this build or machine cannot be used (KVASIR_ISA forces another build)"
    )


@dataclass(frozen=True, slots=True, eq=False)
class CaseRun:
    """A kernel's inputs and outputs for one case."""

    case: SelfTestCase
    made_rows: EncodedRows  # as the kernel encoded them
    rows: EncodedRows  # those, and for KX1 three valid rows that its encoder never makes
    loaded: LoadedExperts
    outputs: FloatRows  # [2 n_rows, d_model]: each row on the first expert, then on the second

    @classmethod
    def of(cls, kernel: ExpertKernel, case: SelfTestCase) -> CaseRun:
        """Run a case in one call, alternating between the two experts."""
        made_rows = rows = kernel.encode_rows(case.rows(kernel.row_format))
        if kernel.row_format is RowFormat.KX1:
            rows = np.concatenate([rows, legal_packed_rows(case.d_model, case.seed + 65)])
        loaded = kernel.load(case.experts())
        numbers = np.arange(2 * len(rows), dtype=np.int32)
        return cls(case, made_rows, rows, loaded, loaded.compute(rows, numbers // 2, numbers % 2))

    def digests(self) -> dict[str, str]:
        """Hash the encoded rows and each expert's outputs for all rows, in order, little-endian."""
        return {
            "encoded rows": _sha256(self.made_rows),
            "outputs of the first expert (plain)": _sha256(self.outputs[0::2].astype("<f4")),
            f"outputs of the second expert ({self.case.kind})": _sha256(self.outputs[1::2].astype("<f4")),
        }

    def is_same_in_small_calls(self) -> bool:
        """Return whether calls of one to three pairs of one expert give the same bits, for some of the rows."""
        for expert in (0, 1):
            for n_pairs in (1, 2, 3):
                numbers = np.arange(len(self.rows) - n_pairs, len(self.rows), dtype=np.int32) - expert
                outputs = self.loaded.compute(self.rows, numbers, np.full(n_pairs, expert, np.int32))
                if outputs.tobytes() != self.outputs[2 * numbers + expert].tobytes():
                    return False
        return True


def _sha256(array: EncodedRows | FloatRows) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
