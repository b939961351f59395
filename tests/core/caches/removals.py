"""Waits and marks taken out of the code one at a time, to see that the search for races notices each of them.

`python -m tests.core.caches.removals [--only NAME]` copies the code, changes one place, runs the tests of schedules
until the first failure, and prints a table. Cost: some minutes; so the default run only checks that each still applies.
"""

import sys

from tests.core.decoding.mutants import Mutant, main

TESTS = ("tests/core/caches/test_schedules.py",)
TRANSFER, HOST_ATTENTION = "core/ops/transfer.py", "core/ops/host_attention.py"
STORES, FULL = "core/caches/layer_storage.py", "core/caches/full.py"

# By file: what goes wrong, and the statement that is taken out; behind a bar where it stands several times
REMOVED = {
    TRANSFER: {
        # the ring
        "a new buffer is not waited for": "released.record(own.current())",
        "a buffer of the ring is not shared": "own.share(slot, self._bringing)",
        "pieces do not wait for what is stored": "self._bringing.wait_event(self._stored)",
        "a buffer is filled while it is used": "self._bringing.wait_event(self._released[index])",
        "no mark that a piece arrived": "self._arrived[index].record(self._bringing)",
        "a piece is used before it arrived": "self._streams.current().wait_event(self._arrived[index])",
        "no mark of use": "self._released[self._taken % len(self._slots)].record(self._streams.current())",
        # to the host
        "the buffer to the host is not shared": "own.share(self._packed, self._storing)",
        "no mark that rows are computed": "self._computed.record(self._streams.current())",
        "rows are stored before they are computed": "self._storing.wait_event(self._computed)",
        "no mark that rows were read": "self._read.record(self._storing)",
        "no mark that rows were stored": "self._stored.record(self._storing)",
        "stored rows are not kept": "self._sources += [rows for _, rows in parts]",
        "rows are written to while they are stored": "self._streams.current().wait_event(self._read)",
        "the host reads before rows have arrived": "self._stored.synchronize()",
        # chosen rows
        "a buffer is filled while it is copied": "copied.synchronize()",
        "no mark that a buffer was copied": "copied.record(current)",
        "pinned memory goes in use": "weakref.finalize(self, device_streams.unpin, self.rows).atexit = False",
    },
    HOST_ATTENTION: {
        "no mark that queries have arrived": "self._asked.record(current)",
        "the host attends before queries have arrived": "self._asked.synchronize()",
    },
    STORES: {  # who waits, and when
        "rows of one layer are kept with the next one's": "self._ring.reclaim()  # of the previous layer's rows",
        "a workspace is used again too soon": "self._left = k.clone(), v.clone()\n        |self._ring.reclaim()",
        "what remains overwrites what is stored": "self._send_away()\n        |self._ring.reclaim()",
        "rows move up over what is stored": "either is written to\n            |self._ring.reclaim()",
        "a rewind overwrites what is stored": "self._sent = 0\n        |self._ring.reclaim()",
        "a cut block is read before it arrived": "* self._block\n        |self._ring.settle()",
        "rows are read before they arrived": "return k, v\n        |self._ring.settle()",
    },
    FULL: {
        "the host attends to what has not arrived": "if help is not None:\n                |self._ring.settle()",
        "chunks are gathered before they arrived": ".any():\n            |self._ring.settle()",
    },
}
REMOVALS = [Mutant("a piece in use when a pass broke off", TRANSFER, "        if self._in_use:", "        if False:")]
for file, statements in REMOVED.items():
    for name, line in statements.items():
        *before, statement = line.split("|")
        REMOVALS.append(Mutant(name, file, "".join(before) + statement, "".join(before) + "pass"))

if __name__ == "__main__":
    sys.exit(main(mutants=REMOVALS, tests=TESTS))
