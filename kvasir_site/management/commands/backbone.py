"""`manage.py backbone`: become a backbone process, a Celery worker with as many tasks as its engine holds requests."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from backbone.service_settings import celery_command


class Command(BaseCommand):
    help = "Serve the model of KVASIR_MODEL to the queue in REDIS_URL, until SIGTERM."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--name", default="backbone", help="tells several on one machine apart (default %(default)s)"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        command = celery_command(settings.KVASIR_SERVICE, options["name"])
        os.chdir(settings.BASE_DIR)
        os.execv(command[0], command)  # noqa: S606 - the same program, without a shell, in place of this one
