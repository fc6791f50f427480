"""The settings of each package as typed objects, made from the environment. `settings` calls these once.

A combination of values that cannot work is a ConfigError that names the variables.
"""

from __future__ import annotations

from backbone.service_settings import ServiceSettings
from kvasir.errors import ConfigError
from kvasir_site import variables as v
from kvasir_site.environment import Environment
from market.rate_limits import Rate
from market.settings import MarketSettings, Registration, TargetBounds


def service_settings(env: Environment) -> ServiceSettings:
    """Return the settings of a backbone process. It checks that the model exists when it opens it."""
    model, run_dir = env[v.MODEL], env[v.RUN_DIR].absolute()
    return ServiceSettings(
        model=model,
        model_name=env[v.MODEL_NAME] or model.stem,
        n_slot=env[v.SLOTS],
        kv_budget_bytes=env[v.KV_BYTES],
        n_ctx=env[v.CTX] or None,
        max_waiting=env[v.MAX_WAITING],
        speculate=env[v.SPECULATE],
        n_threads=env[v.THREADS] or None,
        dense=_dense(env),
        device=env[v.DEVICE],
        gpu_expert_bytes=env[v.GPU_EXPERT_BYTES],
        kernel=env[v.KERNEL],
        reply=env[v.REPLY],
        hot_bytes=env[v.HOT_BYTES],
        workers=env[v.WORKERS],
        relays=env[v.RELAYS],
        token=env[v.TOKEN],
        token_file=env[v.TOKEN_FILE],
        strict=_strict(env),
        receipts_dir=run_dir / "receipts",
        sums_dir=run_dir / "sums",
        worker_deadline_s=env[v.WORKER_DEADLINE_S],
        stop_s=env[v.STOP_S],
    )


def _dense(env: Environment) -> str:
    if env[v.DENSE] == "fast" and env[v.DEVICE] == "cpu":
        raise ConfigError(
            "KVASIR_DENSE=fast needs a CUDA device and KVASIR_DEVICE is cpu; set KVASIR_DENSE=kx1, which is faster on "
            "a CPU, or KVASIR_DEVICE=cuda"
        )
    return env[v.DENSE]


def _strict(env: Environment) -> bool:
    """Strict mode promises one process's own text, to the bit; only the exact dense path has such a text."""
    is_strict, dense = env[v.STRICT], env[v.DENSE]
    if is_strict and dense != "kx1":
        raise ConfigError(
            f"KVASIR_STRICT=1 promises the text of one process alone, and with KVASIR_DENSE={dense} that depends on "
            "what runs beside it; set KVASIR_DENSE=kx1, or KVASIR_STRICT=0"
        )
    return is_strict


def market_settings(env: Environment) -> MarketSettings:
    """Return the market's settings. Raises ConfigError if the largest target is below the smallest."""
    fewest, most = env[v.TARGET_REPLICAS], env[v.MAX_REPLICAS]
    if most < fewest and not env.is_set(v.MAX_REPLICAS):
        most = fewest
    if most < fewest:
        raise ConfigError(f"KVASIR_MAX_REPLICAS={most} is below KVASIR_TARGET_REPLICAS={fewest}")
    register, address, account = env[v.REGISTER_RATE], env[v.MARKET_ADDRESS_RATE], env[v.MARKET_ACCOUNT_RATE]
    return MarketSettings(
        registration=Registration(env[v.REGISTRATION]),
        targets=TargetBounds(fewest, most),
        lease_s=env[v.LEASE_S],
        volunteer_lease_s=env[v.VOLUNTEER_LEASE_S],
        node_days=env[v.NODE_DAYS],
        nodes_per_account=env[v.NODES_PER_ACCOUNT],
        register_rate=Rate(register, 5 * register),  # a household's machines register at one moment
        address_rate=Rate(address, address),
        account_rate=Rate(account, account),
        proxy_hops=env[v.PROXY_HOPS],
        rate_microcredits=env[v.RATE_MICROCREDITS],
    )
