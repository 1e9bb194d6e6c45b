"""The assignor process: `python -m orchestrator.coordinator.assignor_main`. Requests come in on stdin, target assignments go out on stdout.

One rule: it never outlives its coordinator. It ends with the end of stdin, also when the coordinator was killed, and
with the first frame that is no request. A frame is a 4-byte big-endian length and that many bytes
(assignor_codec.py). Started and asked by assignor_process.py.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import BinaryIO

from orchestrator.coordinator.assignor_codec import ResponseEncoder
from orchestrator.errors import ProtocolError

FRAME_BYTES_MAX = 256 << 20  # twenty times what 200,000 tasks with two standbys each take


def frame(body: bytes) -> bytes:
    """Raises ProtocolError for one that is too large."""
    return measured(len(body)).to_bytes(4, "big") + body


def measured(length: int) -> int:
    """The length of a frame, if it can be one. Raises ProtocolError."""
    if length > FRAME_BYTES_MAX:
        raise ProtocolError(f"a frame of {length} bytes is over the limit of {FRAME_BYTES_MAX}")
    return length


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next body, or None where the stream ends, also within a frame: no answer is expected then."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    length = measured(int.from_bytes(head, "big"))
    body = stream.read(length)
    return body if len(body) == length else None


def serve(requests: BinaryIO, targets: BinaryIO) -> int:
    """Until the requests end. Returns the exit code."""
    encoder = ResponseEncoder()
    try:
        while (request := read_frame(requests)) is not None:
            gc.disable()  # an assignment makes hundreds of thousands of objects and not one cycle
            target = frame(encoder.answer(request))
            gc.enable()
            targets.write(target)
            targets.flush()
    except ProtocolError as error:
        print(f"error: the assignor process ends: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def main() -> int:
    if sys.stdin.isatty():
        print(
            "error: this is a part of a coordinator, which starts it by itself when its group is large", file=sys.stderr
        )
        return 2
    try:
        return serve(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        os._exit(0)  # the coordinator is gone; at an ordinary end, what is left to be said would be tried once more


if __name__ == "__main__":
    sys.exit(main())
