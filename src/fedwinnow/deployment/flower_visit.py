"""A site's side of Flower's own link: it pulls messages, answers them and pushes the replies, in one process.

It never runs code that was sent to it, and nothing here ends the process or signals it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message

from fedwinnow.deployment.flower_backend import SOON, pause
from fedwinnow.deployment.flower_private import (
    ConfirmMessageReceivedRequest,
    FleetHttpClient,
    Node,
    NodeAuthHttpInterceptor,
    ObjectPullError,
    ObjectPushError,
    RuntimeVersionHttpInterceptor,
    SendNodeHeartbeatRequest,
    fleet,
    generate_key_pairs,
    get_all_nested_objects,
    get_object_tree,
    inflate_object_from_contents,
    iterate_object_tree,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
    message_from_proto,
    message_to_proto,
    no_object_id_recompute,
    public_key_to_bytes,
    pull_objects,
    push_objects,
    remove_content_from_message,
)
from fedwinnow.deployment.flower_records import reply_of
from fedwinnow.deployment.foreign_text import one_line
from fedwinnow.deployment.keys import SiteFiles, pinned
from fedwinnow.deployment.site import Site
from fedwinnow.errors import DataError, RunError, UsageError

# Seconds that a site which cannot take part waits until the coordinator confirms that it knows: Flower throws away
# the replies of a node that has left.
HEARD_WITHIN = 60.0
# Answers of a coordinator, or of a proxy before it, that did not carry a request out and may do so later: it came too
# slowly, there are too many, or somebody on the way is busy or away.
MAY_PASS = (408, 425, 429, 502, 503, 504)
SENT_AGAIN = (0.5, 1.0, 2.0)  # seconds to wait before the same request is sent once more
BROKEN = (*SENT_AGAIN, 4.0)  # the same where the connection broke, so that nobody knows whether the request came


class Unreachable(Exception):
    """The coordinator cannot be reached at the moment, or does not accept this site yet."""


class Busy(Unreachable):
    """The coordinator, or a proxy before it, did not carry a request out, and may do so later."""


class AnswerLost(Unreachable):
    """The connection broke before the answer came, or there is none; the request may have been carried out."""


class JoinRefused(Unreachable):
    """The coordinator was reached and refused."""


class Visit:
    """A site's connection to the coordinator."""

    def __init__(self, server: str, files: SiteFiles | None, heartbeat: float, coordinator: str | None = None) -> None:
        """`coordinator` is the fingerprint that its key must have."""
        self.server, self.heartbeat = server, heartbeat
        private, public = load_pair(files)
        self.public = public_key_to_bytes(public)
        self.unknown = files is None  # a site without a key registers a new one
        version: Any = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        interceptors = [version, NodeAuthHttpInterceptor(private, public)]
        self.tls = None if files is None else pinned(files.authority, coordinator)
        address = f"http{'' if self.tls is None else 's'}://{server}"
        self.client = FleetHttpClient(address, interceptors=interceptors, verify=self.tls or False)
        self.node = Node()

    def call(self, method: str, request: Any) -> Any:
        """Make one request, again if the answer says to come later, or if it was lost during a visit.

        The coordinator gives the same answer to the same request, so that nothing counts twice (`flower_again.py`).
        Raises Unreachable for an error that may pass, JoinRefused for a refusal, UsageError for what will not pass.
        """
        busy, broken = iter(SENT_AGAIN), iter(BROKEN if self.node.node_id else ())
        lost = False
        while True:
            try:
                got = self.call_once(method, request)
                if lost and method == "PushObject":
                    got.stored = True  # if it was not stored now, it was before
                return got
            except (Busy, AnswerLost) as problem:
                lost |= isinstance(problem, AnswerLost)
                if (seconds := next(broken if isinstance(problem, AnswerLost) else busy, None)) is None:
                    raise
                time.sleep(seconds)

    def call_once(self, method: str, request: Any) -> Any:
        """Make one request; an answer that says to come later is an error, too."""
        try:
            return getattr(self.client, method)(request)
        except httpx.TransportError as problem:
            if self.tls is not None and self.tls.found and self.tls.allowed not in (None, self.tls.found):
                raise UsageError(
                    f"the coordinator at {self.server} has the key {self.tls.found}, and the policy names "
                    f"{self.tls.allowed} (coordinator): nothing was sent. Ask its people which key is theirs."
                ) from None
            if "certificate" in str(problem).lower():
                raise UsageError(certificate_problem(self.server, one_line(problem))) from None
            reached = self.unknown and not isinstance(problem, httpx.ConnectError)
            hint = "; a coordinator with --tls does not understand plain text" if reached else ""
            raise AnswerLost(
                f"no answer from {self.server} ({one_line(problem) or type(problem).__name__}){hint}"
            ) from None
        except (httpx.InvalidURL, UnicodeError) as problem:
            raise UsageError(f"--server {self.server} was given, which cannot be a name ({problem}).") from None
        except httpx.HTTPStatusError as problem:
            kind = Busy if problem.response.status_code in MAY_PASS else JoinRefused
            raise kind(refusal(problem.response)) from None

    def enter(self) -> None:
        """Connect as a node."""
        if self.unknown:
            with contextlib.suppress(JoinRefused):  # registered before the connection broke
                self.call("RegisterNode", fleet.RegisterNodeFleetRequest(public_key=self.public))
        wish = fleet.ActivateNodeRequest(public_key=self.public, heartbeat_interval=self.heartbeat)
        got = self.call("ActivateNode", wish)
        self.node = Node(node_id=got.node_id)

    def beat(self, stop: threading.Event) -> None:
        """Send heartbeats, also while a client trains."""
        sign = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=self.heartbeat)
        while not stop.wait(self.heartbeat / 5):  # more often than necessary, because some are late on a busy machine
            with contextlib.suppress(Unreachable, UsageError):  # the main loop meets the same error and reports it
                self.call("SendNodeHeartbeat", sign)

    def one(self, site: Site) -> bool:
        """Answer one message; False if none is waiting."""
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
        self.push(reply_of(site, message), run, began)
        return True

    def push(self, reply: Message, run: int, began: float) -> None:
        """Send a reply: first the list of its parts, then the parts that the link does not have yet."""
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
        """Disconnect, so that the coordinator knows it at once."""
        with contextlib.suppress(Unreachable, UsageError):
            self.call_once("DeactivateNode", fleet.DeactivateNodeRequest(node_id=self.node.node_id))


def load_pair(files: SiteFiles | None) -> tuple[Any, Any]:
    """The site's keys; new ones if the link is not protected."""
    if files is None:
        fresh: tuple[Any, Any] = generate_key_pairs()
        return fresh
    try:
        private = load_ssh_private_key(files.key.read_bytes(), None)
    except (ValueError, TypeError) as problem:
        raise DataError(f"{files.key} cannot be read as a key ({problem}).") from None
    return private, private.public_key()


def certificate_problem(server: str, problem: str) -> str:
    """The message for a certificate that OpenSSL refuses."""
    if "expired" in problem or "not yet valid" in problem:
        when = "has expired" if "expired" in problem else "is not valid yet"
        return (
            f"--tls: the certificate of {server} {when} ({problem}). Look at the clock of this machine; if that is "
            f"right, the coordinator needs a new one: fedwinnow certificates --renew."
        )
    return (
        f"--tls: the certificate of {server} is not signed by this site's ca.crt, or not for this name ({problem}). "
        f"Use the folder that the coordinator made, and the name it was made for."
    )


def refusal(response: httpx.Response) -> str:
    """What an error status of the coordinator means."""
    text = one_line(response.text, 200)
    if "2004" in text:
        return "the coordinator does not know this site's key, or still waits for an earlier start of this site"
    if "2001" in text:
        return "the coordinator takes sites with a known key only; give --tls with the folder made for this site"
    if response.status_code in MAY_PASS:
        return f"the coordinator is too busy at the moment ({response.status_code})"
    return f"the coordinator answered {response.status_code} {text}".rstrip()


def join(site: Site, server: str, files: SiteFiles | None, patience: float, heartbeat: float) -> None:
    """Answer until the run is over; waits while the coordinator cannot be reached."""
    visit = Visit(server, files, heartbeat, site.consent.policy.key)
    away, last = time.monotonic(), ""
    while not site.finished:
        try:
            visit.enter()
            site.coordinator, last = visit.tls.found if visit.tls else None, ""
            site.say(f"connected to {server} as {site.name}")
            answer_messages(visit, site)
        except Unreachable as problem:
            if visit.node.node_id:
                away, visit.node = time.monotonic(), Node()
            if str(problem) != last:  # print a line only once, not at every attempt
                last = str(problem)
                site.say(f"waiting: {last}")
            if time.monotonic() - away > patience:
                raise RunError(f"{server} was not reached within {patience:g} seconds: {problem}.") from None
            pause(away)


def answer_messages(visit: Visit, site: Site) -> None:
    """Answer until the run is over; raises Unreachable when the coordinator is gone."""
    stop = threading.Event()
    threading.Thread(target=visit.beat, args=(stop,), daemon=True).start()
    since = time.monotonic()
    try:
        while not site.finished:
            try:
                since = time.monotonic() if visit.one(site) else pause(since)
            except (ObjectPullError, ObjectPushError) as problem:
                site.say(f"a message was given up on its way ({problem})")
            except Unreachable:
                if site.failure is None:
                    raise
                site.unheard = False  # the coordinator is gone
            if site.failure is not None and not (site.unheard and time.monotonic() - since < HEARD_WITHIN):
                raise site.failure
    finally:
        stop.set()
        visit.leave()
