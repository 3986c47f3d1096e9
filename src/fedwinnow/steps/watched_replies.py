"""Looking at replies while they stream by, without keeping their models."""

from __future__ import annotations

from collections.abc import Iterator

from fedwinnow.mathematics.payload import Payload


def noted(
    replies: Iterator[tuple[int, Payload]], *keys: str, maybe: tuple[str, ...] = ()
) -> tuple[Iterator[tuple[int, Payload]], dict[int, Payload]]:
    """The replies, and what each client says under these keys: complete once the last reply has been taken.

    What is under `maybe` a client may leave out. Nothing may be sent on before: it would depend on who answers first.
    """
    news: dict[int, Payload] = {}

    def passing() -> Iterator[tuple[int, Payload]]:
        for client, reply in replies:
            there = (key for key in maybe if key in reply)
            news[client] = {key: reply[key] for key in (*keys, *there)}
            yield client, reply

    return passing(), news
