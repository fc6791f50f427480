"""The market's settings from the environment. Called by `settings`; a wrong value stops the start by its name."""

from __future__ import annotations

import os
from collections.abc import Mapping

from kvasir.errors import ConfigError
from kvasir_site.env import env_float, env_int
from market.coverage.targets import TargetBounds
from market.nodes.rate_limits import Rate
from market.settings import MarketSettings, Registration


def market_settings(environ: Mapping[str, str] = os.environ) -> MarketSettings:
    """Parse everything. Raises ConfigError."""
    usual = MarketSettings()
    fewest = env_int("KVASIR_TARGET_REPLICAS", usual.targets.fewest, 1, 1000, environ)
    most = env_int("KVASIR_MAX_REPLICAS", max(fewest, usual.targets.most), fewest, 1000, environ)
    return MarketSettings(
        registration=_registration(environ),
        targets=TargetBounds(fewest, most),
        lease_s=env_float("KVASIR_LEASE_S", usual.lease_s, 0.5, 3600.0, environ),
        volunteer_lease_s=env_float("KVASIR_VOLUNTEER_LEASE_S", usual.volunteer_lease_s, 0.5, 3600.0, environ),
        node_days=env_int("KVASIR_NODE_DAYS", usual.node_days, 1, 3650, environ),
        nodes_per_account=env_int("KVASIR_NODES_PER_ACCOUNT", usual.nodes_per_account, 1, 1_000_000, environ),
        register_rate=_rate("KVASIR_REGISTER", usual.register_rate, environ),
        address_rate=_rate("KVASIR_MARKET_ADDRESS", usual.address_rate, environ),
        account_rate=_rate("KVASIR_MARKET_ACCOUNT", usual.account_rate, environ),
        proxy_hops=env_int("KVASIR_PROXY_HOPS", usual.proxy_hops, 0, 8, environ),
        rate_microcredits=env_int("KVASIR_RATE_MICROCREDITS", usual.rate_microcredits, 0, 1_000_000_000, environ),
    )


def _rate(name: str, usual: Rate, environ: Mapping[str, str]) -> Rate:
    return Rate(
        env_int(f"{name}_RATE", usual.per_minute, 1, 10_000_000, environ),
        env_int(f"{name}_BURST", usual.burst, 1, 10_000_000, environ),
    )


def _registration(environ: Mapping[str, str]) -> Registration:
    value = environ.get("KVASIR_REGISTRATION", Registration.OPEN)
    if value not in set(Registration):
        raise ConfigError(f"KVASIR_REGISTRATION={value!r} is not one of {', '.join(Registration)}")
    return Registration(value)
