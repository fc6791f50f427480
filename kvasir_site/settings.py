"""Django settings. Everything that an operator changes comes from the environment, through `env`."""

from __future__ import annotations

import secrets

from kvasir_site import variables as v
from kvasir_site.channel_layers import channel_layers
from kvasir_site.database_url import database_from_url
from kvasir_site.typed_settings import market_settings, service_settings

BASE_DIR = v.BASE_DIR
ENVIRONMENT = v.read_environment()
RUN_DIR = ENVIRONMENT[v.RUN_DIR].absolute()  # files that runs leave behind

DEBUG = ENVIRONMENT[v.DEBUG]
# Without a secret in the environment each start makes its own: sessions then end with the process, which is right for
# a trial on one machine and wrong for a site, so docs/operate/deploy.md asks for one.
SECRET_KEY = ENVIRONMENT[v.SECRET_KEY] or secrets.token_urlsafe(48)
ALLOWED_HOSTS = [*ENVIRONMENT[v.ALLOWED_HOSTS]]

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
DATABASES = {"default": database_from_url(ENVIRONMENT[v.DATABASE_URL], RUN_DIR / "kvasir.sqlite3")}
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

# The relay (docs/reference/relay.md). Without REDIS_URL there is no directory: backbones are given one relay's address.
RELAY_URL = ENVIRONMENT[v.RELAY_URL]
# The address that workers are told, where they reach the relay by another name than backbones do.
WORKER_RELAY_URL = ENVIRONMENT[v.WORKER_RELAY_URL]
RELAY_ID = ENVIRONMENT[v.RELAY_ID]
REDIS_URL = ENVIRONMENT[v.REDIS_URL]

# The dashboard's feed (docs/operate/dashboard.md): sockets that may watch in each web process. Where processes share
# a layer, one of them makes the snapshots of all.
CHANNEL_LAYERS = channel_layers(REDIS_URL)
LIVE_IS_SHARED = bool(REDIS_URL)
KVASIR_LIVE_SOCKETS = ENVIRONMENT[v.LIVE_SOCKETS]

# Celery carries only ids and small JSON; a task is the life of one request (docs/develop/architecture.md).
CELERY_BROKER_URL = REDIS_URL or "redis://127.0.0.1:6379/0"
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_WORKER_POOL = "threads"
CELERY_TASK_ACKS_LATE = False  # a request is never generated twice: see backbone/tasks.py
CELERY_WORKER_DISABLE_PREFETCH = True  # what a busy backbone cannot start stays on the queue for another one
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False  # unused, and access to Redis must not allow commands
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True

# How many requests may wait on the queue, and how long: one that no backbone took by then is never started.
KVASIR_QUEUE_LIMIT = ENVIRONMENT[v.QUEUE_LIMIT]
KVASIR_QUEUE_WAIT_S = 120.0

# The REST API (docs/use/api.md). Rates are requests a minute, bursts how many of them may come at once.
KVASIR_BODY_LIMIT = ENVIRONMENT[v.BODY_LIMIT]
KVASIR_REQUEST_DEADLINE_S = ENVIRONMENT[v.REQUEST_DEADLINE_S]
KVASIR_KEY_RATE = ENVIRONMENT[v.KEY_RATE]
KVASIR_KEY_BURST = max(1, KVASIR_KEY_RATE * 256 // 600)  # an agent that asks for all at once
KVASIR_ADDRESS_RATE = ENVIRONMENT[v.ADDRESS_RATE]
KVASIR_ADDRESS_BURST = max(1, KVASIR_ADDRESS_RATE * 512 // 1200)
KVASIR_PROXY_HOPS = ENVIRONMENT[v.PROXY_HOPS]
if KVASIR_PROXY_HOPS:  # only the operator's own proxy is believed about TLS
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
KVASIR_METRICS_OPEN = ENVIRONMENT[v.METRICS_OPEN]
# The playground: whether visitors get a key that soon ends, and how many requests a minute an address's visitors have.
KVASIR_PLAYGROUND = ENVIRONMENT[v.PLAYGROUND]
KVASIR_PLAYGROUND_RATE = ENVIRONMENT[v.PLAYGROUND_RATE]

DEMO_MODEL = v.DEMO_MODEL
KVASIR_SERVICE = service_settings(ENVIRONMENT)  # what a backbone process serves

# Slices over HTTP (docs/reference/slices.md).
KVASIR_SLICE_DOWNLOADS = ENVIRONMENT[v.SLICE_DOWNLOADS]
KVASIR_SLICE_DOWNLOADS_ALL = 64
KVASIR_SLICE_BYTES_PER_S = ENVIRONMENT[v.SLICE_BYTES_PER_S]
KVASIR_ORIGIN_URL = ENVIRONMENT[v.ORIGIN_URL]
KVASIR_MARKET = market_settings(ENVIRONMENT)  # docs/reference/market.md
