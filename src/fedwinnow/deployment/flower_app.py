"""The Flower app: a run on an existing Flower federation, started with `flwr run`.

The run config of the server has `config` (a TOML file as for `fedwinnow run`), `out` and `sites`. The node config of
each site has `data`, or `scene` and `clients`, and `folder`; `allow-exposure` and `least-count` are as in `join`. This
file uses Flower's public interface only.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TypeVar

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedwinnow.deployment.exposure_limit import level_of
from fedwinnow.deployment.flower_records import reply_of
from fedwinnow.deployment.flower_run import Terms, coordinate
from fedwinnow.deployment.serve_settings import ServeSettings
from fedwinnow.deployment.site import Site
from fedwinnow.deployment.site_data import holding_of
from fedwinnow.errors import UsageError
from fedwinnow.flags import find_config, read_config

server_app = ServerApp()
client_app = ClientApp()
Number = TypeVar("Number", int, float)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the run of the run config."""
    settings = {key: str(value) for key, value in context.run_config.items()}
    for key in ("config", "out", "sites"):
        if key not in settings:
            raise UsageError(f"the run config has no '{key}'; needed: config, out and sites.")
    config = find_config(settings["config"])
    serve = ServeSettings(**read_config(config, ServeSettings), config=config)
    sites = number(int, "sites", settings["sites"])
    timeout = number(float, "timeout", settings.get("timeout", str(serve.timeout)))
    terms = Terms(sites, timeout, serve.patience)
    coordinate(grid, serve.experiment(), Path(settings["out"]), serve.execution(), terms)


def number(kind: type[Number], key: str, text: str) -> Number:
    """A number in the run config."""
    try:
        return kind(text)
    except ValueError:
        allowed = "a whole number" if kind is int else "a number"
        raise UsageError(f"the run config has {key} = {text!r}; allowed: {allowed} above 0.") from None


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Answer one message for the clients of the node config."""
    keys = ("data", "scene", "clients", "name", "folder", "allow-exposure", "least-count")
    site = site_of(*(str(context.node_config.get(key, "")) for key in keys), context.node_id)
    reply = reply_of(site, message)
    if site.failure is not None:
        print(f"error: {site.failure}")  # into Flower's log; Flower ends this process
    return reply


@functools.lru_cache(maxsize=4)
def site_of(
    data: str, scene: str, clients: str, name: str, folder: str, allowed: str, least_count: str, node: int
) -> Site:
    """The site of a node; kept for the next message if Flower keeps the process."""
    if allowed and scene:
        raise UsageError(f"the node config has allow-exposure = {allowed!r} with a scene; allowed: with data.")
    least = number(int, "least-count", least_count) if least_count else None
    holding = holding_of(data or None, Path(scene) if scene else None, clients or None, None, least)
    named = name or f"node-{node}"
    bound = level_of(allowed, "the node config: allow-exposure")
    return Site(named, holding, Path(folder or f"sites/{named}"), print, bound)
