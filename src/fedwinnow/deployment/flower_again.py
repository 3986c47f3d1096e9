"""The same request gets the same answer: a site sends one again whose answer was lost when the connection broke.

Flower hands out a message once, and takes the parts of a reply for one announcement only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from fastapi import HTTPException

from fedwinnow.deployment.flower_private import fleet_handlers, iterate_object_tree
from fedwinnow.deployment.front import TOO_LONG

MOST_TIMES = 8  # that one message is handed out
pull_messages, push_messages = fleet_handlers.pull_messages, fleet_handlers.push_messages
confirm_message_received, activate_node = fleet_handlers.confirm_message_received, fleet_handlers.activate_node


class SameAgain:
    """Takes the place of Flower's own functions for the requests of sites."""

    def __init__(self, most_parts: Callable[[], int]) -> None:
        """`most_parts`: of one reply."""
        self.most_parts, self.lock = most_parts, threading.Lock()
        self.handed: dict[int, tuple[Any, int]] = {}  # node -> the message that it has not confirmed, and how often
        self.announced: dict[int, tuple[str, Any]] = {}  # node -> its last reply, and what it was told to send of it

    def take_over(self) -> None:
        """From now on requests come here."""
        fleet_handlers.activate_node = self.activate
        fleet_handlers.pull_messages = self.pull
        fleet_handlers.confirm_message_received = self.confirm
        fleet_handlers.push_messages = self.push

    def activate(self, request: Any, state: Any) -> Any:
        """A site comes: what an earlier visit has not confirmed is lost."""
        found = activate_node(request, state)
        with self.lock:
            self.handed.pop(found.node_id, None)
        return found

    def pull(self, request: Any, state: Any, store: Any) -> Any:
        """The next message of a site; the last one again if the site does not say that it has come."""
        node = request.node.node_id
        with self.lock:
            last, times = self.handed.pop(node, (None, 0))
            if last is None or times >= MOST_TIMES:
                last, times = pull_messages(request, state, store), 0
            if last.messages_list:
                self.handed[node] = last, times + 1
        return last

    def confirm(self, request: Any, state: Any, store: Any) -> Any:
        """The site has the whole message."""
        node, name = request.node.node_id, request.message_object_id
        with self.lock:
            last, _ = self.handed.get(node, (None, 0))
            if last is not None and last.messages_list[0].metadata.message_id == name:
                del self.handed[node]
        return confirm_message_received(request, state, store)

    def push(self, request: Any, state: Any) -> Any:
        """A reply is announced: it counts once, and has to be of the site itself and not of too many parts."""
        if any(parts_in(tree) > self.most_parts() for tree in request.message_object_trees):
            raise HTTPException(TOO_LONG, "a reply that is too large for the model of this run")
        if any(message.metadata.src_node_id != request.node.node_id for message in request.messages_list):
            raise HTTPException(403, "a reply in the name of another site")
        node = request.node.node_id
        name = request.message_object_trees[0].object_id if request.message_object_trees else ""
        with self.lock:
            before, told = self.announced.get(node, ("", None))
            if told is None or before != name:
                told = push_messages(request, state)
                self.announced[node] = name, told
        return told


def parts_in(tree: Any) -> int:
    """How many parts the list of a message's parts names."""
    return sum(1 for _ in iterate_object_tree(tree))
