"""The event reader gives the same events however the bytes are cut, and never loses a byte."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sidecar.sse import Event, EventReader

STREAM = (
    b'data: {"a": "caf\xc3\xa9"}\n\n'
    b": keep-alive\n\n"
    b"event: x\r\nid: 7\r\ndata: one\r\ndata:two\r\n\r\n"
    b"data\n\n"
    b"data: cr\r\r"
    b"data: [DONE]\n\n"
)
DATA = [b'{"a": "caf\xc3\xa9"}', None, b"one\ntwo", b"", b"cr", b"[DONE]"]


def read(pieces: list[bytes]) -> tuple[list[Event], bytes]:
    reader = EventReader()
    return [event for piece in pieces for event in reader.feed(piece)], reader.rest


def test_events_of_a_whole_stream() -> None:
    events, rest = read([STREAM])
    assert [event.data for event in events] == DATA
    assert rest == b""


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_cuts_anywhere_change_nothing(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    events, rest = read([STREAM[a:b] for a, b in itertools.pairwise(edges)])
    assert [event.data for event in events] == DATA
    assert b"".join(event.raw for event in events) + rest == STREAM


@given(st.lists(st.sampled_from([b"data: x", b"\n", b"\r", b"\r\n", b":", b"a"]), max_size=30), st.integers(1, 5))
def test_no_byte_is_lost_in_any_stream(parts: list[bytes], size: int) -> None:
    stream = b"".join(parts)
    events, rest = read([stream[start : start + size] for start in range(0, len(stream), size)])
    assert b"".join(event.raw for event in events) + rest == stream


def test_what_a_stream_ends_with_is_an_event_too() -> None:
    _, rest = read([b"data: a\n\ndata: b\n"])
    assert Event.last(rest) == Event(b"data: b\n", b"b")
