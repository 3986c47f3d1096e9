"""The Flower app: a run on an existing Flower federation, started with `flwr run`.

The run config of the server has `config` (a TOML file as for `fedwinnow run`), `out` and `sites`. The node config of
each site has `data`, or `scene` and `clients`, and `folder`; `policy`, `yes`, `allow-exposure` and `least-count` are
as in `join`. This file uses Flower's public interface only.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TypeVar

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedwinnow.deployment.consent import ByPolicy, Consent, Trial, demanded_least_count
from fedwinnow.deployment.exposure_limit import level_of
from fedwinnow.deployment.flower_records import reply_of
from fedwinnow.deployment.flower_run import Terms, coordinate
from fedwinnow.deployment.policy import read_policy, shipped
from fedwinnow.deployment.serve_settings import ServeSettings
from fedwinnow.deployment.site import Site
from fedwinnow.deployment.site_data import holding_of
from fedwinnow.errors import UsageError
from fedwinnow.flags import find_config, read_config

server_app = ServerApp()
client_app = ClientApp()
NODE_CONFIG = ("data", "scene", "clients", "name", "folder", "allow-exposure", "least-count", "policy", "yes")
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
    if serve.audit:
        raise UsageError(f"{config} has audit = true; allowed with `fedwinnow serve`. The app plays runs only.")
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
    site = site_of(*(str(context.node_config.get(key, "")) for key in NODE_CONFIG), context.node_id)
    reply = reply_of(site, message)
    if site.failure is not None:
        print(f"error: {site.failure}")  # into Flower's log; Flower ends this process
    return reply


@functools.lru_cache(maxsize=4)
def site_of(
    data: str,
    scene: str,
    clients: str,
    name: str,
    folder: str,
    allowed: str,
    least_count: str,
    policy: str,
    yes: str,
    node: int,
) -> Site:
    """The site of a node; kept for the next message if Flower keeps the process."""
    if allowed and scene:
        raise UsageError(f"the node config has allow-exposure = {allowed!r} with a scene; allowed: with data.")
    least = number(int, "least-count", least_count) if least_count else None
    consent = consent_of(scene, allowed, least, policy, yes)
    least = demanded_least_count(least, consent)
    holding = holding_of(data or None, Path(scene) if scene else None, clients or None, None, least)
    named = name or f"node-{node}"
    return Site(named, holding, Path(folder or f"sites/{named}"), print, consent=consent)


def consent_of(scene: str, allowed: str, least: int | None, policy: str, yes: str) -> Consent:
    """Who says yes for a node: a file, the default policy, or nobody for a shared scene."""
    if yes.lower() not in ("", "true", "false", "1", "0"):
        raise UsageError(f"the node config has yes = {yes!r}; allowed: true or false.")
    agreed = yes.lower() in ("true", "1")
    if policy and (agreed or allowed):
        raise UsageError("the node config has policy and yes or allow-exposure; allowed: either a policy, or these.")
    if policy:
        return ByPolicy(read_policy(Path(policy)), f"the policy {policy}")
    if scene:
        return Trial()
    if not agreed:
        raise UsageError(
            "the node config does not say what may be asked of this site; give policy (a file; `fedwinnow join "
            "--write-policy FILE` writes one), or yes = true for the default policy."
        )
    default = shipped(exposure=level_of(allowed, "the node config: allow-exposure"))
    default = default if least is None else dataclasses.replace(default, least_count=least)
    return ByPolicy(default, "yes in the node config, the default policy")
