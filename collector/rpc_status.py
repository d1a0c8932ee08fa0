"""google.rpc.Status, the form of OTLP's errors over both transports, without depending on its package for two messages.

`Status {int32 code = 1; string message = 2; repeated Any details = 3}`, `RetryInfo {Duration retry_delay = 1}`.
"""

from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration

INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED, UNIMPLEMENTED, UNAVAILABLE, UNAUTHENTICATED = 3, 5, 8, 12, 14, 16
RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
LONGEST_MESSAGE = 500
"""Characters. Over gRPC a status travels in headers, twice, and clients take 8 kB of those."""


def status_message(code: int, message: str, retry_after_s: float | None = None) -> bytes:
    """An encoded Status; with `retry_after_s`, it says when to come again."""
    encoded = b"\x08" + bytes([code]) + _field(2, message[:LONGEST_MESSAGE].encode())
    if retry_after_s is None:
        return encoded
    detail = Any(type_url=RETRY_INFO, value=retry_info(retry_after_s))
    return encoded + _field(3, detail.SerializeToString())


def retry_info(after_s: float) -> bytes:
    """An encoded RetryInfo."""
    delay = Duration()
    delay.FromNanoseconds(int(after_s * 1e9))
    return _field(1, delay.SerializeToString())


def _field(number: int, content: bytes) -> bytes:
    length, size = bytearray(), len(content)
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes([number << 3 | 2, *length]) + content
