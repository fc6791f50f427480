"""Django settings. Everything that an operator changes comes from the environment, through `env`."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from kvasir_site.channel_layers import channel_layers
from kvasir_site.database_url import database_from_url
from kvasir_site.env import env_bool, env_choice, env_float, env_http_url, env_int, env_list, env_secret
from kvasir_site.market_env import market_settings
from kvasir_site.service_env import service_settings

BASE_DIR = Path(__file__).resolve().parent.parent
RUN_DIR = Path(os.environ.get("KVASIR_RUN_DIR", BASE_DIR / "run")).absolute()  # what runs leave behind

DEBUG = env_bool("KVASIR_DEBUG", False)
# Without a secret in the environment each start makes its own: sessions then end with the process, which is right for
# a trial on one machine and wrong for a site, so docs/operate/deploy.md asks for one.
SECRET_KEY = env_secret("KVASIR_SECRET_KEY") or secrets.token_urlsafe(48)
ALLOWED_HOSTS = env_list("KVASIR_ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"])

INSTALLED_APPS = [
    "django.contrib.admin",  # staff only: see the operator's page
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",  # its finders alone: frontend.static_files serves
    "channels",
    "kvasir_site",
    "market",
    "relay",
    "backbone",
    "frontend",
]
MIDDLEWARE = [
    "kvasir_site.middleware.SecurityMiddleware",
    "kvasir_site.middleware.CommonMiddleware",
    "kvasir_site.middleware.ContentPolicyMiddleware",
    # what follows is of the pages; requests of programs pass by it
    "kvasir_site.page_middleware.SessionMiddleware",
    "kvasir_site.page_middleware.LocaleMiddleware",
    "kvasir_site.page_middleware.CsrfViewMiddleware",
    "kvasir_site.page_middleware.AuthenticationMiddleware",
    "kvasir_site.page_middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "kvasir_site.urls"
ASGI_APPLICATION = "kvasir_site.asgi.application"
DATABASES = {"default": database_from_url(os.environ.get("DATABASE_URL"), RUN_DIR / "kvasir.sqlite3")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

USE_TZ = True
TIME_ZONE = "UTC"
USE_I18N = True
STATIC_URL = "/static/"
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "django.contrib.staticfiles.finders.FileSystemFinder",
]
STATICFILES_DIRS = [("kvasir/kernels/wgsl", BASE_DIR / "kvasir" / "kernels" / "wgsl")]  # pages compute with them too
SESSION_COOKIE_HTTPONLY = CSRF_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = LANGUAGE_COOKIE_SAMESITE = "Lax"
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("id", "Bahasa Indonesia")]

# The relay's address as backbones see it, and its name in the directory (docs/reference/relay.md). Without REDIS_URL
# there is no directory: one relay, whose address the backbone is told.
RELAY_URL = os.environ.get("KVASIR_RELAY_URL", "")
# The address that workers are told, where they reach the relay by another name than backbones do.
WORKER_RELAY_URL = os.environ.get("KVASIR_WORKER_RELAY_URL", "")
RELAY_ID = os.environ.get("KVASIR_RELAY_ID", "")
REDIS_URL = os.environ.get("REDIS_URL", "")

# The dashboard's feed (docs/operate/dashboard.md): sockets that may watch in each web process. Where processes share
# a layer, one of them makes the snapshots of all.
CHANNEL_LAYERS = channel_layers(REDIS_URL)
LIVE_IS_SHARED = bool(REDIS_URL)
KVASIR_LIVE_SOCKETS = env_int("KVASIR_LIVE_SOCKETS", 500, 0, 100_000)

# Celery carries only ids and small JSON; a task is the life of one request (docs/develop/architecture.md).
CELERY_BROKER_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_WORKER_POOL = "threads"
CELERY_TASK_ACKS_LATE = False  # a request is never generated twice: see backbone/tasks.py
CELERY_WORKER_DISABLE_PREFETCH = True  # what a busy backbone cannot start stays on the queue for another one
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False  # nobody asks, and whoever reaches Redis cannot command
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True

# How many requests may wait on the queue, and how long: one that no backbone took by then is never started.
KVASIR_QUEUE_LIMIT = env_int("KVASIR_QUEUE_LIMIT", 256, 1, 1_000_000)
KVASIR_QUEUE_WAIT_S = env_float("KVASIR_QUEUE_WAIT_S", 120.0, 1.0, 86400.0)

# The REST API (docs/use/api.md). Rates are requests a minute, bursts how many of them may come at once.
KVASIR_BODY_LIMIT = env_int("KVASIR_BODY_LIMIT", 1 << 20, 1 << 10, 1 << 20)
KVASIR_REQUEST_DEADLINE_S = env_float("KVASIR_REQUEST_DEADLINE_S", 600.0, 1.0, 86400.0)
KVASIR_KEY_RATE = env_int("KVASIR_KEY_RATE", 600, 1, 1_000_000)
KVASIR_KEY_BURST = env_int("KVASIR_KEY_BURST", 256, 1, 1_000_000)
KVASIR_ADDRESS_RATE = env_int("KVASIR_ADDRESS_RATE", 1200, 1, 1_000_000)
KVASIR_ADDRESS_BURST = env_int("KVASIR_ADDRESS_BURST", 512, 1, 1_000_000)
KVASIR_PROXY_HOPS = env_int("KVASIR_PROXY_HOPS", 0, 0, 8)
if KVASIR_PROXY_HOPS:  # the operator's own proxy says whether the client came over TLS; nobody else is believed
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
KVASIR_METRICS_OPEN = env_bool("KVASIR_METRICS_OPEN", False)
# The playground: whether visitors get a key that soon ends, and how many requests a minute an address's visitors have.
KVASIR_PLAYGROUND = env_choice("KVASIR_PLAYGROUND", ("open", "off"))
KVASIR_PLAYGROUND_RATE = env_int("KVASIR_PLAYGROUND_RATE", 30, 1, 1_000_000)

DEMO_MODEL = BASE_DIR / "models" / "kvasir-demo-moe.q4_k_m.gguf"
KVASIR_SERVICE = service_settings(DEMO_MODEL, run_dir=RUN_DIR)  # what a backbone process serves

# Slices over HTTP (docs/reference/slices.md): what one node and all together may download at once, what one may take
# a second (0: no limit), and where else the model's file can be had in byte ranges.
KVASIR_SLICE_DOWNLOADS = env_int("KVASIR_SLICE_DOWNLOADS", 4, 1, 64)
KVASIR_SLICE_DOWNLOADS_ALL = env_int("KVASIR_SLICE_DOWNLOADS_ALL", 64, 1, 64)
KVASIR_SLICE_BYTES_PER_S = env_int("KVASIR_SLICE_BYTES_PER_S", 0, 0, 1 << 40)
KVASIR_ORIGIN_URL = env_http_url("KVASIR_ORIGIN_URL")
KVASIR_MARKET = market_settings()  # docs/reference/market.md
