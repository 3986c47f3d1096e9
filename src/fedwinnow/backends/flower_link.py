"""Flower's own link in one process per side: the only file that leans on Flower's internals.

The coordinator runs Flower's link in a thread and lets nobody reach more of it than the sites' interface: Flower
serves its control interface, which has no login, on the same port. A site pulls, answers and pushes in its own
process; it never runs code that was sent to it, and nothing here ends the process or signals it.
`network.quiet.prepare` must be called before this file is imported: Flower looks at its settings only then.
"""

from __future__ import annotations

import contextlib
import functools
import re
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import uvicorn
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_MIN_INTERVAL, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fleet_pb2 as fleet
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.servicer.runtime import runtime_handlers as core_handlers
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig, load_control_authn_plugin
from flwr.superlink.grid import HttpGrid, http_grid
from flwr.superlink.main import create_app
from flwr.superlink.servicer.runtime import runtime_handlers as link_handlers
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedwinnow.backends.flower import nap
from fedwinnow.backends.flower_records import from_records, to_records
from fedwinnow.errors import DataError, RunError, UsageError
from fedwinnow.network.keys import ServerFiles, SiteFiles
from fedwinnow.network.site import Site

SOON = 0.02  # seconds until an object that is not there yet is looked for again
MOST_SAID = 100  # different things about strangers: nobody from outside can fill a log
CLOSING = 5.0  # seconds for the link to close
AGAIN = 2.0  # seconds between two attempts to reach a coordinator that is away

# --- the coordinator -----------------------------------------------------------------------------------------------


class FleetOnly:
    """Lets requests to the sites' interface through, and no others."""

    def __init__(self, app: Any, refused: Callable[[str], None]) -> None:
        self.app, self.refused = app, refused

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not scope["path"].startswith(("/v1/fleet/", "/health")):
            self.refused(f"a request for {scope['path'][:80]!r} was refused: only sites may talk to this port")
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return

        async def watched(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] in (401, 403, 412):
                who = (scope.get("client") or ("somebody",))[0]
                self.refused(f"{who} was refused (no key that is known here, or its last visit has not ended yet)")
            await send(message)

        await self.app(scope, receive, watched)


class Direct:
    """Answers what a grid asks by the link's own functions, without a request over the network."""

    def __init__(self, state: Any, task: Any) -> None:
        self.state, self.task = state, task

    def __getattr__(self, name: str) -> Any:
        snake = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        function = getattr(link_handlers, snake, None) or getattr(core_handlers, snake)
        return lambda request: function(request, self.state, self.task)

    def close(self) -> None:
        """Nothing was opened."""


class Link:
    """Flower's link in a thread of this process, and a grid to it."""

    def __init__(
        self, host: str, port: int, files: ServerFiles | None, timeout: float, say: Callable[[str], None]
    ) -> None:
        # By default it looks again after a whole second, and waits two hours for a site that dies while it sends.
        patient = functools.partial(pull_objects, initial_backoff=SOON, backoff_cap=1, max_time=timeout)
        http_grid.pull_objects = patient  # type: ignore[attr-defined]
        self.say, self.stop = say, threading.Event()
        self.names: dict[int, str] = {}
        self.said: set[str] = set()
        self.app = create_app(config_of(host, port, files), SuperLinkLifespan)
        self.state = self.app.state.linkstate_factory.state()
        for name, key in (files.site_keys() if files else {}).items():
            public = public_key(key, f"sites/{name}.pub")
            node = self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public, HEARTBEAT_MIN_INTERVAL)
            self.names[node] = name
        self.server = self.started(host, port, files)
        self.grid = self.open_grid()

    def started(self, host: str, port: int, files: ServerFiles | None) -> uvicorn.Server:
        """Listen, in a thread."""
        certificate, key = (str(files.certificate), str(files.key)) if files else (None, None)
        guarded = FleetOnly(self.app, self.once)
        settings = uvicorn.Config(
            guarded, host, port, log_level="critical", access_log=False, ssl_certfile=certificate, ssl_keyfile=key
        )
        server = uvicorn.Server(settings)
        self.thread = threading.Thread(target=run_quietly, args=(server,), daemon=True)
        self.thread.start()
        while not server.started:
            if not self.thread.is_alive():
                raise UsageError(f"--port {port}: cannot listen on {host}:{port}. Is another program using it?")
            time.sleep(0.02)
        return server

    def once(self, text: str) -> None:
        """Tell the operator, but not the same thing every two seconds."""
        if text not in self.said and len(self.said) < MOST_SAID:
            self.said.add(text)
            self.say(text)

    def open_grid(self) -> HttpGrid:
        """A run of Flower's that is ours, and the grid that belongs to it."""
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
        """Flower ends runs that do not say from time to time that they are there."""
        while not self.stop.wait(HEARTBEAT_MIN_INTERVAL):
            self.state.acknowledge_task_heartbeat(task)

    def name_of(self, node: int) -> str | None:
        """The name that belongs to a node's key; None where there are no keys."""
        return self.names.get(node)

    def close(self) -> None:
        """Stop listening."""
        self.stop.set()
        self.server.should_exit = True
        self.thread.join(CLOSING)


def run_quietly(server: uvicorn.Server) -> None:
    """uvicorn ends its thread by SystemExit when a port is taken."""
    with contextlib.suppress(SystemExit):
        server.run()


def config_of(host: str, port: int, files: ServerFiles | None) -> SuperLinkLifespanConfig:
    """Everything of Flower's that we do not need, switched off."""
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


# --- a site --------------------------------------------------------------------------------------------------------


class Away(Exception):
    """The coordinator cannot be reached now, or does not take us yet."""


class Refused(Away):
    """The coordinator was reached and said no."""


class Visit:
    """A site's connection to the coordinator."""

    def __init__(self, server: str, files: SiteFiles | None, heartbeat: float) -> None:
        self.server, self.heartbeat = server, heartbeat
        private, public = load_pair(files)
        self.public = public_key_to_bytes(public)
        self.unknown = files is None  # without a key that the coordinator has, a site makes itself known
        version: Any = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        interceptors = [version, NodeAuthHttpInterceptor(private, public)]
        root = files.authority.read_bytes() if files else None
        self.client = FleetHttpClient.from_server_address(server, files is None, root, interceptors=interceptors)
        self.node = Node()

    def call(self, method: str, request: Any) -> Any:
        """One request; what may pass is told apart from what will not."""
        try:
            return getattr(self.client, method)(request)
        except httpx.TransportError as problem:
            if "certificate" in str(problem).lower():
                raise UsageError(
                    f"--tls: the certificate of {self.server} is not signed by this site's ca.crt, or not for this "
                    f"name ({problem}). Use the folder that the coordinator made, and the name it was made for."
                ) from None
            reached = self.unknown and not isinstance(problem, httpx.ConnectError)
            hint = "; a coordinator with --tls does not understand plain text" if reached else ""
            raise Away(f"no answer from {self.server} ({str(problem) or type(problem).__name__}){hint}") from None
        except httpx.HTTPStatusError as problem:
            raise Refused(refusal(problem.response)) from None

    def enter(self) -> None:
        """Become a node of the coordinator's."""
        if self.unknown:
            with contextlib.suppress(Refused):  # known already, from before a connection broke
                self.call("RegisterNode", fleet.RegisterNodeFleetRequest(public_key=self.public))
        wish = fleet.ActivateNodeRequest(public_key=self.public, heartbeat_interval=self.heartbeat)
        got = self.call("ActivateNode", wish)
        self.node = Node(node_id=got.node_id)

    def beat(self, stop: threading.Event) -> None:
        """Say from time to time that we are there, also while a client trains."""
        sign = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=self.heartbeat)
        while not stop.wait(self.heartbeat / 5):  # more often than need be: on a busy machine some come too late
            with contextlib.suppress(Away, UsageError):  # the main loop meets the same trouble and says so
                self.call("SendNodeHeartbeat", sign)

    def one(self, site: Site) -> bool:
        """Answer one message, where there is one."""
        got = self.call("PullMessages", fleet.PullMessagesRequest(node=self.node))
        if not got.messages_list:
            return False
        head, tree = message_from_proto(got.messages_list[0]), got.message_object_trees[0]
        run, name = head.metadata.run_id, head.metadata.message_id
        pull = make_pull_object_fn_protobuf(functools.partial(self.call, "PullObject"), self.node, run)
        contents = pull_objects([part.object_id for part in iterate_object_tree(tree)], pull, initial_backoff=SOON)
        received = ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=name)
        self.call("ConfirmMessageReceived", received)
        message: Any = inflate_object_from_contents(name, contents)
        message.metadata.__dict__["_message_id"] = name
        began = time.monotonic()
        self.push(answered(site, message), run, began)
        return True

    def push(self, reply: Message, run: int, began: float) -> None:
        """Send a reply: first what it is made of, then the parts that the link does not have yet."""
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            request = fleet.PushMessagesRequest(
                node=self.node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
                clientapp_runtime_list=[time.monotonic() - began],
            )
            result = self.call("PushMessages", request)
            give = functools.partial(self.call, "PushObject")
            push = make_push_object_fn_protobuf(give, self.node, run, result.session_id)
            push_objects(get_all_nested_objects(reply), push, object_ids_to_push=set(result.objects_to_push))

    def leave(self) -> None:
        """Say goodbye, so that the coordinator need not wait for the next heartbeat."""
        with contextlib.suppress(Away, UsageError):
            self.call("DeactivateNode", fleet.DeactivateNodeRequest(node_id=self.node.node_id))


def answered(site: Site, message: Message) -> Message:
    """The reply to a message, on any link."""
    try:
        facts, payload = from_records(message.content)
    except DataError as problem:
        return Message(to_records({"error": str(problem)}, {}, {}), reply_to=message)
    said, sent = site.answer(facts, payload)
    return Message(to_records(said, sent, {}), reply_to=message)


def load_pair(files: SiteFiles | None) -> tuple[Any, Any]:
    """The site's keys; new ones that nobody knows where the link is not protected anyway."""
    if files is None:
        fresh: tuple[Any, Any] = generate_key_pairs()
        return fresh
    try:
        private = load_ssh_private_key(files.key.read_bytes(), None)
    except (ValueError, TypeError) as problem:
        raise DataError(f"{files.key} is no key that can be read ({problem}).") from None
    return private, private.public_key()


def public_key(content: bytes, name: str) -> bytes:
    """The key of a site in the form that Flower compares."""
    try:
        key: Any = load_ssh_public_key(content)
        compared: bytes = public_key_to_bytes(key)
    except (ValueError, TypeError) as problem:
        raise DataError(f"--tls: {name} is no public key that can be read ({problem}).") from None
    return compared


def refusal(response: httpx.Response) -> str:
    """What a status of the coordinator's means."""
    text = response.text[:200]
    if "2004" in text:
        return "the coordinator does not know this site's key, or still waits for an earlier start of this site"
    if "2001" in text:
        return "the coordinator takes sites with a known key only; give --tls with the folder made for this site"
    return f"the coordinator answered {response.status_code} {text}"


def join(site: Site, server: str, files: SiteFiles | None, patience: float, heartbeat: float) -> None:
    """Answer until the run is over; a coordinator that is away is waited for."""
    visit = Visit(server, files, heartbeat)
    away, last = time.monotonic(), ""
    while not site.finished:
        try:
            visit.enter()
            last = ""
            site.say(f"connected to {server} as {site.name}")
            stay(visit, site)
        except Away as problem:
            if visit.node.node_id:
                away, visit.node = time.monotonic(), Node()
            if str(problem) != last:  # not the same line every two seconds
                last = str(problem)
                site.say(f"waiting: {last}")
            if time.monotonic() - away > patience:
                raise RunError(f"{server} was not reached within {patience:g} seconds: {problem}.") from None
            time.sleep(AGAIN)


def stay(visit: Visit, site: Site) -> None:
    """Answer until the run is over or the coordinator is gone."""
    stop = threading.Event()
    threading.Thread(target=visit.beat, args=(stop,), daemon=True).start()
    since = time.monotonic()
    try:
        while not site.finished:
            try:
                since = time.monotonic() if visit.one(site) else nap(since)
            except (ObjectPullError, ObjectPushError) as problem:
                site.say(f"a message was given up on its way ({problem})")
            if site.failure is not None:
                raise site.failure
    finally:
        stop.set()
        visit.leave()
