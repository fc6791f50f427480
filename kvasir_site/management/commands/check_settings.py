"""`manage.py check_settings`: print every setting, by group, with its value and where the value comes from."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Print the settings in force, by group: value, source, meaning. Secrets are hidden."

    def handle(self, *_args: Any, **_options: Any) -> None:
        in_force = settings.ENVIRONMENT.in_force()
        width = max(len(setting.variable.name) for setting in in_force)
        for group, members in groupby(in_force, key=lambda setting: setting.variable.group):
            self.stdout.write(f"\n{group}")
            for setting in members:
                name = setting.variable.name.ljust(width)
                self.stdout.write(f"  {name}  {setting.text or '-'}  ({setting.source}): {setting.variable.meaning}")
        for name in settings.ENVIRONMENT.unknown():
            self.stderr.write(f"{name} is set but is not a setting of Kvasir: check its spelling")
