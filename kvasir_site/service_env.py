"""The backbone's settings from the environment. Called by `settings`; a wrong value stops the start by its name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from backbone.service_settings import ServiceSettings
from kvasir.byte_sizes import parse_size
from kvasir.errors import ConfigError
from kvasir_site.env import env_bool, env_choice, env_float, env_int, env_list

_CHOICES = {
    "KVASIR_DENSE": ("kx1", "fast", "float"),
    "KVASIR_DEVICE": ("cpu", "cuda", "auto"),
    "KVASIR_KERNEL": ("auto", "kx1", "float"),
    "KVASIR_REPLY": ("f32", "sum"),
    "KVASIR_SPECULATE": ("off", "auto"),
}


def service_settings(
    demo_model: Path, environ: Mapping[str, str] = os.environ, run_dir: Path = Path("run")
) -> ServiceSettings:
    """Parse everything; `run_dir` is what runs leave behind.

    Raises ConfigError. That the model exists is checked when a backbone opens it.
    """
    model = Path(environ.get("KVASIR_MODEL") or demo_model)
    budget = environ.get("KVASIR_KV_BYTES")
    return ServiceSettings(
        model=model,
        model_name=environ.get("KVASIR_MODEL_NAME") or model.stem,
        n_slot=env_int("KVASIR_SLOTS", 64, 1, 4096, environ),
        kv_budget_bytes=None if budget is None else _size("KVASIR_KV_BYTES", budget),
        n_ctx=env_int("KVASIR_CTX", 0, 0, 1 << 24, environ) or None,
        max_waiting=env_int("KVASIR_MAX_WAITING", 64, 0, 4096, environ),
        step_rows=env_int("KVASIR_STEP_ROWS", 256, 1, 65536, environ),
        n_groups=_groups(environ),
        n_traced_tokens=env_int("KVASIR_TRACE_TOKENS", 64, 0, 1024, environ),
        speculate=_choice("KVASIR_SPECULATE", environ),
        draft_tokens=env_int("KVASIR_DRAFT_TOKENS", 8, 1, 64, environ),
        n_threads=env_int("KVASIR_THREADS", 0, 0, 4096, environ) or None,
        dense=_choice("KVASIR_DENSE", environ),
        device=_choice("KVASIR_DEVICE", environ),
        fast_rows=env_int("KVASIR_FAST_ROWS", 0, 0, 65536, environ),
        gpu_expert_bytes=_size("KVASIR_GPU_EXPERT_BYTES", environ.get("KVASIR_GPU_EXPERT_BYTES") or "0"),
        kernel=_choice("KVASIR_KERNEL", environ),
        reply=_reply(environ),
        hot_bytes=_size("KVASIR_HOT_BYTES", environ.get("KVASIR_HOT_BYTES") or "0"),
        workers=tuple(env_list("KVASIR_WORKERS", [], environ)),
        relays=tuple(env_list("KVASIR_RELAYS", [], environ)),
        token=environ.get("KVASIR_TOKEN", ""),
        token_file=Path(environ["KVASIR_TOKEN_FILE"]) if environ.get("KVASIR_TOKEN_FILE") else None,
        strict=_strict(environ),
        receipts_dir=run_dir / "receipts",
        sums_dir=run_dir / "sums",
        worker_deadline_s=env_float("KVASIR_WORKER_DEADLINE_S", 10.0, 0.01, 3600.0, environ),
        max_deadline_s=env_float("KVASIR_MAX_DEADLINE_S", 3600.0, 1.0, 86400.0, environ),
        stop_s=env_float("KVASIR_STOP_S", 20.0, 0.0, 3600.0, environ),
        stall_s=env_float("KVASIR_STALL_S", 300.0, 1.0, 86400.0, environ),
    )


def _groups(environ: Mapping[str, str]) -> int | None:
    is_auto = environ.get("KVASIR_GROUPS", "auto").strip() in ("", "auto")
    return None if is_auto else env_int("KVASIR_GROUPS", 1, 1, 64, environ)


def _strict(environ: Mapping[str, str]) -> bool:
    """Strict mode promises one process's own text, to the bit; only the exact dense path has such a text."""
    is_strict, dense = env_bool("KVASIR_STRICT", False, environ), _choice("KVASIR_DENSE", environ)
    if is_strict and dense != "kx1":
        raise ConfigError(
            f"KVASIR_STRICT=1 promises the text of one process alone, and with KVASIR_DENSE={dense} that depends on "
            "what runs beside it; set KVASIR_DENSE=kx1, or KVASIR_STRICT=0"
        )
    return is_strict


def _reply(environ: Mapping[str, str]) -> str:
    if environ.get("KVASIR_REPLY") == "f16":
        raise ConfigError("KVASIR_REPLY=f16 was removed: set KVASIR_REPLY=sum, which needs fewer bytes, or f32")
    return _choice("KVASIR_REPLY", environ)


def _size(name: str, text: str) -> int:
    try:
        return parse_size(text)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def _choice(name: str, environ: Mapping[str, str]) -> str:
    return env_choice(name, _CHOICES[name], environ)
