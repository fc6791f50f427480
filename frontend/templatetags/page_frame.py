"""Tags of base.html: the import map, and a link of the navigation that marks the current page."""

from __future__ import annotations

from django import template
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from frontend.content_policy import IMPORT_MAP

register = template.Library()


@register.simple_tag
def import_map() -> SafeString:
    """Return the inline import map: exactly the bytes whose hash the policy allows."""
    return mark_safe(f'<script type="importmap">{IMPORT_MAP}</script>')  # noqa: S308 - a constant


@register.simple_tag(takes_context=True)
def page_link(context: template.Context, name: str, text: str) -> SafeString:
    """Return a link to the page of that route name."""
    request = context.get("request")
    url = reverse(name)
    is_here = isinstance(request, HttpRequest) and request.path_info == url
    return format_html('<a href="{}"{}>{}</a>', url, mark_safe(' aria-current="page"') if is_here else "", text)
