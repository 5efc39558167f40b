"""The configuration: what holds, and who said so."""

from __future__ import annotations

import os
from typing import Any

import typer

from torpor.apps.cli import screen
from torpor.apps.cli.options import AsJson, configured, examples, said_by_flags
from torpor.apps.config import Config
from torpor.apps.settings import Source, Value

app = typer.Typer(
    no_args_is_help=True, help="Settings, and where they come from.", epilog=examples("torpor config show")
)


@app.callback()
def root() -> None:
    """Settings, and where they come from."""


@app.command(epilog=examples("torpor config show", "torpor config show --json"))
def show(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Show each setting with its value and where that came from. The key is not shown, only who gives it.

    Flag over environment over torpor.toml here over torpor.toml in the home over default.
    """
    config = configured(context)
    settings = Config.settings(os.environ, said_by_flags(context))
    rows = [_row(value, config) for value in settings]
    if as_json:
        screen.emit(rows)
        return
    screen.table(
        ["SETTING", "VALUE", "FROM", "WHERE"],
        [[row["name"], row["value"], row["source"], row["place"] or "-"] for row in rows],
    )


def _row(value: Value, config: Config) -> dict[str, Any]:
    held: dict[str, object] = {
        "home": config.home,
        "api_url": config.api_url,
        "api_key": "(set)" if value.text else "(api.key)",
        "host": config.host,
        "port": config.port,
        "store_url": config.store_url or f"file://{config.store_dir}",
        "keys_dir": config.keys_dir,
        "cache_bytes": config.cache_bytes,
        "warm_bytes": config.warm_bytes,
        "clone_bytes": config.clone_bytes,
    }
    name = value.setting.name
    place = str(config.server_file) if name == "api_url" and _from_server(value, config) else value.place
    return {"name": name, "value": str(held[name]), "source": value.source.value, "place": place}


def _from_server(value: Value, config: Config) -> bool:
    return value.source is Source.DEFAULT and config.server_file.exists()
