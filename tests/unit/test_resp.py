"""The reader of the Redis protocol, fed piece by piece."""

from __future__ import annotations

from typing import Any

import pytest

from celery_sticky.redis_resp import Reader


class Piece(bytes):
    """Counts the bytes that appending received bytes to a buffer copies."""

    copied = 0

    def __radd__(self, before: bytes) -> bytes:
        Piece.copied += len(before) + len(self)
        return bytes(before) + bytes(self)


class Socket:
    """Hands out what the server sent, at most `size` bytes at a time."""

    def __init__(self, sent: bytes, size: int) -> None:
        self._sent, self._at, self._size = sent, 0, size

    def recv(self, most: int) -> bytes:
        end = self._at + min(most, self._size)
        piece, self._at = Piece(self._sent[self._at : end]), end
        return piece


def reader(sent: bytes, size: int) -> Reader:
    sock: Any = Socket(sent, size)
    return Reader(sock)


def bulk(body: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(body), body)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 100, 10_000])
def test_replies_are_read_whole_however_they_are_cut(size: int) -> None:
    body = b"a\r\n$3\r\nb" * 50
    sent = b"*4\r\n" + bulk(body) + b":7\r\n" + bulk(b"") + b"$-1\r\n" + b"+OK\r\n" + bulk(body)
    read = reader(sent, size)
    assert [read.read(), read.read(), read.read()] == [[body, 7, b"", None], "OK", body]
    assert not read.has_more


def test_a_closed_connection_in_the_middle_of_a_body_is_an_error() -> None:
    with pytest.raises(ConnectionError):
        reader(bulk(b"abcdef")[:6], 100).read()


@pytest.mark.parametrize("items", [1, 4])
def test_a_body_in_many_pieces_is_not_copied_once_for_each(items: int) -> None:
    """Twice as long a body may cost twice as much and no more: its pieces are joined once."""
    copied = {}
    for length in (1_000_000, 2_000_000):
        Piece.copied = 0
        body = bytes(length)
        read = reader(b"*%d\r\n" % items + bulk(body) * items, size=4096)
        assert read.read() == [body] * items
        copied[length] = Piece.copied
    assert copied[2_000_000] <= 2 * copied[1_000_000] + 4096
    assert copied[2_000_000] <= items * 2 * 4096
