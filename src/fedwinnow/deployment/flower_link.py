"""The coordinator's side of Flower's own link: it runs in a thread of this process.

Flower serves its control interface, which has no login, on the same port; so only requests to the sites' interface
are let through, within the limits of `front.py`. Nothing here ends the process or signals it.
"""

from __future__ import annotations

import functools
import logging
import re
import secrets
import threading
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import Any

import uvicorn
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from fedwinnow.deployment.flower_again import SameAgain
from fedwinnow.deployment.flower_backend import SOON
from fedwinnow.deployment.flower_private import (
    HEARTBEAT_MIN_INTERVAL,
    NOOP_ACCOUNT_NAME,
    NOOP_FEDERATION_ID,
    NOOP_FLWR_AID,
    SUPERLINK_NODE_ID,
    HttpGrid,
    SuperLinkLifespan,
    SuperLinkLifespanConfig,
    TaskIdentity,
    TaskType,
    core_handlers,
    create_app,
    http_grid,
    link_handlers,
    load_control_authn_plugin,
    public_key_to_bytes,
    pull_objects,
)
from fedwinnow.deployment.flower_signature import Signatures
from fedwinnow.deployment.front import FleetOnly, Gate, PortLimits
from fedwinnow.deployment.keys import ServerFiles
from fedwinnow.errors import DataError, RunError

MOST_SAID = 100  # different lines about refused requests, so that strangers cannot fill a log
TLS_BUFFER = 2**15  # bytes per connection; asyncio takes eight times as many, also for one that never says a word
# Seconds for the link to close: until connections on which nothing more comes are ended, and after that.
LAST_WORDS, CLOSING = 0.5, 5.0
LARGEST_PART = 5 * 2**20  # bytes; Flower cuts tensors into parts of this size
FEWEST_PARTS, MODELS_IN_REPLY = 256, 8


class Direct:
    """Calls the link's own functions for a grid, without a request over the network."""

    def __init__(self, state: Any, task: Any) -> None:
        self.state, self.task = state, task

    def __getattr__(self, name: str) -> Any:
        snake = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        function = getattr(link_handlers, snake, None) or getattr(core_handlers, snake)
        return lambda request: function(request, self.state, self.task)

    def close(self) -> None:
        """Nothing to close."""


class Link:
    """Flower's link in a thread of this process, and a grid on it."""

    def __init__(
        self,
        host: str,
        port: int,
        files: ServerFiles | None,
        timeout: float,
        say: Callable[[str], None],
        limits: PortLimits | None = None,
    ) -> None:
        # Flower's default is to look again after a second and to wait two hours for a site that dies while it sends.
        patient = functools.partial(pull_objects, initial_backoff=SOON, backoff_cap=1, max_time=timeout)
        http_grid.pull_objects = patient  # type: ignore[attr-defined]
        self.say, self.stop = say, threading.Event()
        self.names: dict[int, str] = {}
        self.said: set[str] = set()
        self.gate = Gate((limits or PortLimits()).suitable())
        self.most_parts = parts_of(0)  # of one reply; more when the model is known
        SameAgain(lambda: self.most_parts).take_over()
        self.app = create_app(config_of(host, port, files), SuperLinkLifespan)
        self.state = self.app.state.linkstate_factory.state()
        given = files.site_keys() if files else {}
        keys = {name: public_key(key, f"sites/{name}.pub") for name, key in given.items()}
        self.signed = Signatures(keys.values()).fit if files else None
        for name, public in keys.items():
            try:
                node = self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public, HEARTBEAT_MIN_INTERVAL)
            except ValueError:
                raise DataError(f"--tls: sites/{name}.pub is the key of another site too; give each its own.") from None
            self.names[node] = name
        self.server = self.started(host, port, files)
        self.grid = self.open_grid()

    def started(self, host: str, port: int, files: ServerFiles | None) -> uvicorn.Server:
        """Start to listen, in a thread."""
        certificate, key = (str(files.certificate), str(files.key)) if files else (None, None)
        settings = uvicorn.Config(
            FleetOnly(self.app, self.once, self.gate, self.signed),
            host,
            port,
            loop="asyncio",  # another one would not ask our sockets
            http=self.gate.protocol(),
            ws="none",
            log_level="critical",
            access_log=False,
            date_header=False,  # front.py dates answers
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        SSLProtocol.max_size = TLS_BUFFER
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # strangers must not fill a log
        try:
            settings.load()
        except (OSError, ValueError) as problem:  # also what ssl raises
            raise DataError(
                f"--tls {files.folder if files else ''}: server.crt and server.key cannot be read, or do not belong "
                f"together ({problem}). `fedwinnow certificates` makes such a pair."
            ) from None
        server = uvicorn.Server(settings)
        sockets = self.gate.listen(host, port)
        self.thread = threading.Thread(target=server.run, args=(sockets,), daemon=True)
        self.thread.start()
        while not server.started:
            if not self.thread.is_alive():
                raise RunError("the coordinator's link to the sites did not start.")
            time.sleep(0.02)
        return server

    def agree(self, size: int) -> None:
        """The model of the run has so many bytes: limit what a site may send at once."""
        self.most_parts = parts_of(size)

    def once(self, text: str) -> None:
        """Print a line for the operator, but the same one only once."""
        if text not in self.said and len(self.said) < MOST_SAID:
            self.said.add(text)
            self.say(text)

    def open_grid(self) -> HttpGrid:
        """Start a run in Flower's sense, and return its grid."""
        number = self.state.create_run(
            fab_id="fedwinnow/run",
            fab_version="0",
            fab_hash=None,
            override_config={},
            federation_id=NOOP_FEDERATION_ID,
            federation_config=None,
            flwr_aid=NOOP_FLWR_AID,
            primary_task_type=TaskType.SERVER_APP,
        )
        run = self.state.get_run_info(run_ids=[number])[0]
        token = self.state.claim_task(run.primary_task_id)
        self.state.activate_task(run.primary_task_id)
        task = self.state.get_task_by_token(token)
        threading.Thread(target=self.keep_alive, args=(task.task_id,), daemon=True).start()
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task.task_id, number, SUPERLINK_NODE_ID
        grid = HttpGrid(token="in this process")
        grid._client = Direct(self.state, task)  # type: ignore[assignment]
        grid.set_run(run)
        return grid

    def keep_alive(self, task: int) -> None:
        """Send heartbeats for the run, because Flower ends runs without them."""
        while not self.stop.wait(HEARTBEAT_MIN_INTERVAL):
            self.state.acknowledge_task_heartbeat(task)

    def name_of(self, node: int) -> str | None:
        """The site that a node's key belongs to; None for an unknown key."""
        return self.names.get(node)

    def close(self) -> None:
        """Stop listening."""
        self.stop.set()
        self.server.should_exit = True
        self.thread.join(LAST_WORDS)
        self.gate.close()
        self.thread.join(CLOSING)


def parts_of(size: int) -> int:
    """In how many parts a reply may come if the model has so many bytes.

    A part has 5 MiB at most. Some methods send several models, and numbers for every sample or class besides.
    """
    return FEWEST_PARTS + MODELS_IN_REPLY * -(-size // LARGEST_PART)


def config_of(host: str, port: int, files: ServerFiles | None) -> SuperLinkLifespanConfig:
    """Flower's settings, with everything switched off that is not needed."""
    return SuperLinkLifespanConfig(
        control_address="",
        health_server_address=None,
        host=host,
        port=port,
        insecure=files is None,
        certificates=None,
        superexec_auth_secret=secrets.token_bytes(32),
        authn_plugin=load_control_authn_plugin(),
        event_log_plugin=None,
        fleet_event_log_plugin=None,
        enable_event_log=False,
        artifact_provider=None,
        enable_supernode_auth=files is not None,
        fleet_api_type="grpc-rere",
        fleet_api_address=None,
        simulation=False,
        ssl_ca_certfile=str(files.authority) if files else None,
        ssl_certfile=str(files.certificate) if files else None,
        ssl_keyfile=str(files.key) if files else None,
        database=":flwr-in-memory:",
        isolation="process",
        runtime_dependency_install=False,
    )


def public_key(content: bytes, name: str) -> bytes:
    """A site's key in the form that Flower compares."""
    try:
        key: Any = load_ssh_public_key(content)
        compared: bytes = public_key_to_bytes(key)
    except (ValueError, TypeError) as problem:
        raise DataError(f"--tls: {name} cannot be read as a public key ({problem}).") from None
    return compared
