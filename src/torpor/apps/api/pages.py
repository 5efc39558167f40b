"""The page at ``/docs``: the description at ``/openapi.json`` for people, without a script and without another host."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "code,pre{font-family:ui-monospace,monospace;font-size:.92em}summary{cursor:pointer;padding:.3rem 0}"
    "table{border-collapse:collapse;margin:.3rem 0 1rem}td{padding:.15rem 1rem .15rem 0;vertical-align:top}"
    "b{display:inline-block;width:4.5rem}"
)
# Nothing may be loaded or run; the page's own style is inline.
HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}

Described = Mapping[str, Any]


async def page(request: Request) -> HTMLResponse:
    """All routes, with their fields and answers."""
    return HTMLResponse(page_of(request.app.openapi()), headers=HEADERS)


def page_of(api: Described) -> str:
    """The page of an OpenAPI description."""
    schemas = api["components"]["schemas"]
    routes = [
        _route(method, path, route, schemas)
        for path, methods in api["paths"].items()
        for method, route in methods.items()
    ]
    title = html.escape(f"{api['info']['title']} {api['info']['version']}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f'<h1>{title}</h1><p>The same for programs: <a href="openapi.json">openapi.json</a>. All but '
        "<code>/v1/health</code> want <code>Authorization: Bearer KEY</code> or <code>X-API-Key: KEY</code>.</p>"
        f"{''.join(routes)}<h2>Bodies and answers</h2>{''.join(_schema(name, one) for name, one in schemas.items())}"
        "</html>"
    )


def _route(method: str, path: str, route: Described, schemas: Described) -> str:
    body = _body(route)
    rows = [(one["name"], f"in the {one['in']}", one.get("description", "")) for one in route.get("parameters", ())]
    rows += list(_fields(schemas[body])) if body else []
    answers = ", ".join(route["responses"])
    return (
        f"<details><summary><b>{method.upper()}</b> <code>{html.escape(path)}</code></summary>"
        f"<p>{html.escape(route.get('description', ''))}</p>{_table(rows)}<p>Answers: {answers}</p></details>"
    )


def _body(route: Described) -> str | None:
    for media in route.get("requestBody", {}).get("content", {}).values():
        for schema in (media["schema"], *media["schema"].get("anyOf", ())):
            if "$ref" in schema:
                return str(schema["$ref"]).rpartition("/")[2]
    return None


def _schema(name: str, schema: Described) -> str:
    return (
        f'<h3 id="{html.escape(name)}"><code>{html.escape(name)}</code></h3>'
        f"<p>{html.escape(schema.get('description', ''))}</p>{_table(list(_fields(schema)))}"
    )


def _fields(schema: Described) -> Iterator[tuple[str, str, str]]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        default = f"default {field['default']!r}" if "default" in field else ""
        yield name, _kind(field), "required" if name in required else default


def _kind(field: Described) -> str:
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "anyOf" in field:
        return " or ".join(_kind(one) for one in field["anyOf"])
    if "enum" in field:
        return ", ".join(str(one) for one in field["enum"])
    inner = f" of {_kind(field['items'])}" if "items" in field else ""
    return f"{field.get('type', 'any')}{inner}"


def _table(rows: list[tuple[str, str, str]]) -> str:
    cells = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>" if rows else ""
