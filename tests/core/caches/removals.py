"""Waits and marks taken out of the code one at a time, to see that the simulated device notices each of them.

`python -m tests.core.caches.removals [--only NAME]` copies the code, changes one place, runs the tests of schedules
until the first failure, and prints a table. Cost: some minutes; so the default run only checks that each still applies.
"""

import sys

from tests.core.decoding.mutants import Mutant, main

TESTS = ("tests/core/ops/test_simulated.py", "tests/core/caches/test_schedules.py")
TRANSFER, HOST_ATTENTION = "core/ops/transfer.py", "core/ops/host_attention.py"
STORES, FULL = "core/caches/layer_storage.py", "core/caches/full.py"


def removed(name: str, file: str, line: str, instead: str = "pass") -> Mutant:
    """Without one statement; where it stands several times, `line` begins with what stands before it."""
    *before, statement = line.split("|")
    return Mutant(name, file, "".join(before) + statement, "".join(before) + instead)


REMOVALS = (
    # the ring
    removed("a new buffer is not waited for", TRANSFER, "released.record(own.current())"),
    removed("a buffer of the ring is not shared", TRANSFER, "own.share(slot, self._bringing)"),
    Mutant("a piece in use when a pass broke off", TRANSFER, "        if self._in_use:", "        if False:"),
    removed("pieces do not wait for what is stored", TRANSFER, "self._bringing.wait_event(self._stored)"),
    removed("a buffer is filled while it is used", TRANSFER, "self._bringing.wait_event(self._released[index])"),
    removed("no mark that a piece arrived", TRANSFER, "self._arrived[index].record(self._bringing)"),
    removed("a piece is used before it arrived", TRANSFER, "self._streams.current().wait_event(self._arrived[index])"),
    removed(
        "no mark that a piece was used",
        TRANSFER,
        "self._released[self._taken % len(self._slots)].record(self._streams.current())",
    ),
    # to the host
    removed("the buffer to the host is not shared", TRANSFER, "own.share(self._packed, self._storing)"),
    removed("no mark that rows are computed", TRANSFER, "self._computed.record(self._streams.current())"),
    removed("rows are stored before they are computed", TRANSFER, "self._storing.wait_event(self._computed)"),
    removed("no mark that rows were read", TRANSFER, "self._read.record(self._storing)"),
    removed("no mark that rows were stored", TRANSFER, "self._stored.record(self._storing)"),
    removed("stored rows are not kept", TRANSFER, "self._sources += [rows for _, rows in parts]"),
    removed("rows are written to while they are stored", TRANSFER, "self._streams.current().wait_event(self._read)"),
    removed("the host reads before rows have arrived", TRANSFER, "self._stored.synchronize()"),
    # chosen rows
    removed("a buffer is filled while it is copied", TRANSFER, "copied.synchronize()"),
    removed("no mark that a buffer was copied", TRANSFER, "copied.record(current)"),
    Mutant(
        "pinned memory goes while copies use it",
        TRANSFER,
        "weakref.finalize(self, device_streams.unpin, self.rows).atexit = False",
        "pass",
    ),
    # host attention
    removed("no mark that queries have arrived", HOST_ATTENTION, "self._asked.record(current)"),
    removed("the host attends before queries have arrived", HOST_ATTENTION, "self._asked.synchronize()"),
    # who waits, and when
    removed(
        "rows of one layer are kept with the next one's", STORES, "self._ring.reclaim()  # of the previous layer's rows"
    ),
    removed(
        "a workspace is used again too soon", STORES, "self._left = k.clone(), v.clone()\n        |self._ring.reclaim()"
    ),
    removed("what remains overwrites what is stored", STORES, "self._send_away()\n        |self._ring.reclaim()"),
    removed("rows move up over what is stored", STORES, "either is written to\n            |self._ring.reclaim()"),
    removed("a rewind overwrites what is stored", STORES, "self._sent = 0\n        |self._ring.reclaim()"),
    removed("a cut block is read before it arrived", STORES, "* self._block\n        |self._ring.settle()"),
    removed("rows are read before they arrived", STORES, "return k, v\n        |self._ring.settle()"),
    removed(
        "the host attends to what has not arrived", FULL, "if help is not None:\n                |self._ring.settle()"
    ),
    removed("chunks are gathered before they arrived", FULL, ".any()):\n            |self._ring.settle()"),
)

if __name__ == "__main__":
    sys.exit(main(mutants=REMOVALS, tests=TESTS))
