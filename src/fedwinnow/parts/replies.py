"""Looking at replies while they stream by, without keeping their models."""

from __future__ import annotations

from collections.abc import Iterator

from fedwinnow.federation.payload import Payload


def noted(
    replies: Iterator[tuple[int, Payload]], *keys: str
) -> tuple[Iterator[tuple[int, Payload]], dict[int, Payload]]:
    """The replies, and what each client says under these keys: complete once the last reply has been taken.

    Nothing of it may be sent before that: it would depend on who answers first.
    """
    news: dict[int, Payload] = {}

    def passing() -> Iterator[tuple[int, Payload]]:
        for client, reply in replies:
            news[client] = {key: reply[key] for key in keys if key in reply}
            yield client, reply

    return passing(), news
