"""A mapped file that somebody cuts short: reading past its new end is SIGBUS, which would end the process unheard.

A handler in machine code (Python's own cannot run: the instruction would only fault again) puts a page of zeros where
the fault was and notes whose it is; the gather goes on, its caller looks at the note and throws the result away. The
scheme is systemd's (src/basic/sigbus.c). Faults that are not ours go to whoever had the signal before.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import signal
import sys
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import binding
from numpy.typing import NDArray

SLOTS = 64  # mapped parts of files at one time
START, END, HITS = range(3)  # what a slot holds


@dataclass(frozen=True)
class Abi:
    """Where a system keeps what the handler needs: facts from its <signal.h> and <sys/mman.h>, 64 bit."""

    address: int  # offset of siginfo_t.si_addr; si_code is at 8 on both
    handler_bytes: int  # size of struct sigaction; the handler comes first
    flags: int  # offset of sa_flags
    wanted: int  # SA_SIGINFO | SA_ONSTACK


ABIS = {"linux": Abi(16, 152, 136, 0x4 | 0x08000000), "darwin": Abi(24, 16, 12, 0x40 | 0x1)}

# Everything the handler does is a system call or a store: nothing that a signal may not interrupt. A fault that is not
# ours goes back to the handler before, the next one to the system (which ends the process): two cannot play ball.
CODE = """
@slots = global [{slots} x [3 x i64]] zeroinitializer
@before = global [{handler_bytes} x i8] zeroinitializer
declare i64 @mmap(i64, i64, i32, i32, i32, i64)
declare i32 @sigaction(i32, i8*, i8*)

define void @on_sigbus(i32 %signal, i8* %info, i8* %context) {{
entry:
  %code_at = getelementptr i8, i8* %info, i64 8
  %code_in = bitcast i8* %code_at to i32*
  %code = load i32, i32* %code_in
  %address_at = getelementptr i8, i8* %info, i64 {address}
  %address_in = bitcast i8* %address_at to i64*
  %address = load i64, i64* %address_in
  %fault = icmp sgt i32 %code, 0
  br i1 %fault, label %look, label %foreign
look:
  %i = phi i64 [ 0, %entry ], [ %next, %other ]
  %start_in = getelementptr [{slots} x [3 x i64]], [{slots} x [3 x i64]]* @slots, i64 0, i64 %i, i64 0
  %end_in = getelementptr [{slots} x [3 x i64]], [{slots} x [3 x i64]]* @slots, i64 0, i64 %i, i64 1
  %hits_in = getelementptr [{slots} x [3 x i64]], [{slots} x [3 x i64]]* @slots, i64 0, i64 %i, i64 2
  %start = load volatile i64, i64* %start_in
  %end = load volatile i64, i64* %end_in
  %after = icmp uge i64 %address, %start
  %before_end = icmp ult i64 %address, %end
  %ours = and i1 %after, %before_end
  br i1 %ours, label %patch, label %other
other:
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, {slots}
  br i1 %more, label %look, label %foreign
patch:
  store volatile i64 1, i64* %hits_in
  %page = and i64 %address, {page_mask}
  %got = call i64 @mmap(i64 %page, i64 {page}, i32 1, i32 {fixed}, i32 -1, i64 0)
  %done = icmp eq i64 %got, %page
  br i1 %done, label %out, label %foreign
foreign:
  %was = getelementptr [{handler_bytes} x i8], [{handler_bytes} x i8]* @before, i64 0, i64 0
  %ignored = call i32 @sigaction(i32 %signal, i8* %was, i8* null)
  %was_handler = bitcast i8* %was to i64*
  store i64 0, i64* %was_handler
  br label %out
out:
  ret void
}}
"""


class _Guard:
    """The compiled handler and its slots, one for the process."""

    def __init__(self, abi: Abi) -> None:
        self.abi, self.lock = abi, threading.Lock()
        fixed = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
        code = CODE.format(
            slots=SLOTS, handler_bytes=abi.handler_bytes, address=abi.address, page=mmap.PAGESIZE,
            page_mask=-mmap.PAGESIZE, fixed=fixed,
        )  # fmt: skip
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        machine = binding.Target.from_default_triple().create_target_machine()
        self.engine = binding.create_mcjit_compiler(binding.parse_assembly(code), machine)
        self.engine.finalize_object()
        self.handler = self.engine.get_function_address("on_sigbus")
        self.before = self.engine.get_global_value_address("before")
        slots: Any = (ctypes.c_int64 * (3 * SLOTS)).from_address(self.engine.get_global_value_address("slots"))
        self.slots: NDArray[np.int64] = np.frombuffer(slots, np.int64).reshape(SLOTS, 3)
        self.sigaction = ctypes.CDLL(None, use_errno=True).sigaction

    def ready(self) -> None:
        """Ours is the process's handler, now: what somebody put there since comes after it."""
        now = (ctypes.c_char * self.abi.handler_bytes)()
        self.sigaction(int(signal.SIGBUS), None, now)
        if int.from_bytes(bytes(now)[:8], sys.byteorder) == self.handler:
            return
        ctypes.memmove(self.before, now, self.abi.handler_bytes)
        ours = bytearray(self.abi.handler_bytes)
        ours[:8] = self.handler.to_bytes(8, sys.byteorder)
        ours[self.abi.flags : self.abi.flags + 4] = self.abi.wanted.to_bytes(4, sys.byteorder)
        self.sigaction(int(signal.SIGBUS), bytes(ours), None)


MAP_FIXED = 0x10  # the same on Linux and macOS; Python does not name it
_made: list[_Guard] = []
_making = threading.Lock()


def available() -> bool:
    """Does this module know the system's structures? Where not, a file's size is looked at before each gather."""
    return sys.platform in ABIS and platform.machine() in ("x86_64", "aarch64", "arm64") and sys.maxsize > 2**32


class Watch:
    """Memory at address..address + length, watched until `release`: `cut` is True once a page of it was not there."""

    def __init__(self, address: int, length: int) -> None:
        with _making:
            if not _made:
                _made.append(_Guard(ABIS[sys.platform]))
        self._guard = _made[0]
        with self._guard.lock:
            free = np.flatnonzero(self._guard.slots[:, END] == 0)
            if not free.size:
                raise OSError(24, f"more than {SLOTS} mapped tables at one time")
            self._slot = self._guard.slots[int(free[0])]
            self._slot[:] = (address, address + length, 0)
            self._guard.ready()

    def ready(self) -> None:
        with self._guard.lock:
            self._guard.ready()

    @property
    def cut(self) -> bool:
        return bool(self._slot[HITS])

    def release(self) -> None:
        with self._guard.lock:
            self._slot[END] = 0
