# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A file system in memory, by FUSE, that hangs when it is told to (`python -m support.hanging_fs`).

SIGUSR1: it reads no request any more, like a network file system whose server is gone; a process
that waits for it can be killed. SIGUSR2: it reads requests and never answers; such a process cannot
even be killed. SIGHUP: it answers again. Its end aborts all that waits. Without an answer to
"flush", which the kernel would wait for in every exit, it behaves like NFS. It speaks the protocol
of /dev/fuse itself, since the tests must not depend on libfuse; needs root.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_HEAD = struct.Struct("<IIQQIIIHH")
_ANSWER = struct.Struct("<IiQ")
_ATTR = struct.Struct("<6Q10I")
_ROOT = 1
_MAX_WRITE = 1 << 17
_NO_ANSWER = frozenset({2, 36, 42})  # forget, interrupt, batch forget
_EMPTY = frozenset({18, 20, 29, 30, 38})  # release, fsync, releasedir, fsyncdir, destroy
_MNT_DETACH = 2
_MS_RDONLY, _MS_REMOUNT, _MS_BIND = 1, 32, 4096
LIBC = ctypes.CDLL(None, use_errno=True)


class _Refused(Exception):
    pass


class _Node:
    def __init__(self, mode: int) -> None:
        self.mode, self.data = mode, bytearray()
        self.names: dict[bytes, int] = {}


class MemoryFs:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._nodes = {_ROOT: _Node(stat.S_IFDIR | 0o755)}
        self._last = _ROOT
        self.does_read = self.does_answer = True

    def serve(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        while True:
            if not self.does_read:
                signal.pause()
                continue
            if not poll.poll(200) or not self.does_read:  # it may have been told meanwhile
                continue
            try:
                request = os.read(self._fd, _MAX_WRITE + 4096)
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                raise
            self._handle(request)

    def _handle(self, request: bytes) -> None:
        _, op, unique, node, *_ = _HEAD.unpack_from(request)
        if op in _NO_ANSWER or not self.does_answer:
            return
        code, body = 0, b""
        try:
            if op not in _EMPTY:
                body = self._answer(op, node, request[_HEAD.size :])
        except _Refused as refused:
            code = -refused.args[0]
        with suppress(OSError):  # who waited was killed
            os.write(self._fd, _ANSWER.pack(_ANSWER.size + len(body), code, unique) + body)

    def _answer(self, op: int, node: int, body: bytes) -> bytes:
        known = {
            1: self._lookup, 3: self._getattr, 4: self._setattr, 8: self._mknod, 9: self._mkdir,
            10: self._unlink, 11: self._unlink, 12: self._rename, 13: self._link, 14: self._open,
            15: self._read, 16: self._write, 17: self._statfs, 26: self._init, 27: self._open,
            28: self._readdir, 35: self._create, 45: self._rename2,
        }  # fmt: skip
        if op not in known:
            raise _Refused(errno.ENOSYS)
        if node not in self._nodes and op != 26:
            raise _Refused(errno.ESTALE)
        return known[op](node, body)

    def _init(self, _: int, body: bytes) -> bytes:
        return struct.pack("<4I2H2I2HI28x", 7, 31, 0, 0, 8, 6, _MAX_WRITE, 1, 32, 0, 0)

    def _attr(self, node: int) -> bytes:
        found = self._nodes[node]
        size = len(found.data)
        return _ATTR.pack(
            node, size, -(-size // 512), 0, 0, 0, 0, 0, 0, found.mode, 1, 0, 0, 0, 4096, 0
        )

    def _entry(self, node: int) -> bytes:
        return struct.pack("<4Q2I", node, 0, 0, 0, 0, 0) + self._attr(node)

    def _child(self, node: int, name: bytes) -> int:
        found = self._nodes[node].names.get(name)
        if found is None:
            raise _Refused(errno.ENOENT)
        return found

    def _add(self, parent: int, name: bytes, mode: int) -> int:
        if name in self._nodes[parent].names:
            raise _Refused(errno.EEXIST)
        self._last += 1
        self._nodes[self._last] = _Node(mode)
        self._nodes[parent].names[name] = self._last
        return self._last

    def _lookup(self, node: int, body: bytes) -> bytes:
        return self._entry(self._child(node, body.rstrip(b"\0")))

    def _getattr(self, node: int, body: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._attr(node)

    def _setattr(self, node: int, body: bytes) -> bytes:
        valid, _, _, size = struct.unpack_from("<IIQQ", body)
        found = self._nodes[node]
        if valid & 1:
            (mode,) = struct.unpack_from("<I", body, 68)
            found.mode = stat.S_IFMT(found.mode) | stat.S_IMODE(mode)
        if valid & 8:
            found.data = found.data[:size].ljust(size, b"\0")
        return self._getattr(node, b"")

    def _mknod(self, node: int, body: bytes) -> bytes:
        (mode,) = struct.unpack_from("<I", body)
        return self._entry(self._add(node, body[16:].rstrip(b"\0"), mode))

    def _mkdir(self, node: int, body: bytes) -> bytes:
        (mode,) = struct.unpack_from("<I", body)
        return self._entry(self._add(node, body[8:].rstrip(b"\0"), stat.S_IFDIR | mode))

    def _create(self, node: int, body: bytes) -> bytes:
        _, mode = struct.unpack_from("<II", body)
        made = self._add(node, body[16:].rstrip(b"\0"), stat.S_IFREG | stat.S_IMODE(mode))
        return self._entry(made) + self._open(made, b"")

    def _open(self, node: int, body: bytes) -> bytes:
        return struct.pack("<QII", 0, 1, 0)  # direct: no page cache answers for us

    def _read(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        return bytes(self._nodes[node].data[offset : offset + size])

    def _write(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        data = self._nodes[node].data
        if len(data) < offset:
            data.extend(bytes(offset - len(data)))
        data[offset : offset + size] = body[40 : 40 + size]
        return struct.pack("<II", size, 0)

    def _unlink(self, node: int, body: bytes) -> bytes:
        name = body.rstrip(b"\0")
        self._child(node, name)
        del self._nodes[node].names[name]
        return b""

    def _move(self, node: int, to: int, names: bytes) -> bytes:
        old, new = names.split(b"\0")[:2]
        moved = self._child(node, old)
        del self._nodes[node].names[old]
        self._nodes[to].names[new] = moved
        return b""

    def _rename(self, node: int, body: bytes) -> bytes:
        return self._move(node, struct.unpack_from("<Q", body)[0], body[8:])

    def _rename2(self, node: int, body: bytes) -> bytes:
        return self._move(node, struct.unpack_from("<Q", body)[0], body[16:])

    def _link(self, node: int, body: bytes) -> bytes:
        (old,) = struct.unpack_from("<Q", body)
        name = body[8:].rstrip(b"\0")
        if name in self._nodes[node].names:
            raise _Refused(errno.EEXIST)
        self._nodes[node].names[name] = old
        return self._entry(old)

    def _readdir(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        found = b""
        for place, (name, child) in enumerate(sorted(self._nodes[node].names.items()), 1):
            kind = stat.S_IFMT(self._nodes[child].mode) >> 12
            entry = struct.pack("<QQII", child, place, len(name), kind) + name
            entry += bytes(-len(entry) % 8)
            if place > offset and len(found) + len(entry) <= size:
                found += entry
        return found

    def _statfs(self, node: int, body: bytes) -> bytes:
        return struct.pack(
            "<5Q4I24x", 1 << 20, 1 << 19, 1 << 19, 1 << 20, 1 << 19, 4096, 255, 4096, 0
        )


def main(target: str) -> None:
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_NONBLOCK)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    _mount(b"mwatch-test", Path(target), b"fuse", 0, options)
    served = MemoryFs(fd)

    def change(number: int, _: object) -> None:
        served.does_read = number != signal.SIGUSR1
        served.does_answer = number != signal.SIGUSR2
        os.write(1, b"changed\n")

    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, change)
    print("ready", flush=True)
    served.serve()


@contextmanager
def mounted(target: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The process of the file system; give it the signals above by `tell`."""
    target.mkdir(parents=True, exist_ok=True)
    root = str(Path(__file__).resolve().parents[1])
    served = subprocess.Popen(
        [sys.executable, "-m", "support.hanging_fs", str(target)],
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
    )
    assert served.stdout is not None
    try:
        assert served.stdout.readline() == b"ready\n"
        yield served
    finally:
        served.kill()  # aborts what waits for it
        served.wait(60)
        served.stdout.close()
        LIBC.umount2(os.fsencode(target), _MNT_DETACH)


def tell(served: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Return when it has heard: from then on it hangs, or answers again."""
    served.send_signal(number)
    assert served.stdout is not None
    assert served.stdout.readline() == b"changed\n"


@contextmanager
def small_disk(target: Path, size: str) -> Iterator[Path]:
    """A disk of this size, such as `2m`."""
    target.mkdir(parents=True, exist_ok=True)
    _mount(b"tmpfs", target, b"tmpfs", 0, f"size={size}".encode())
    try:
        yield target
    finally:
        while not LIBC.umount2(os.fsencode(target), _MNT_DETACH):
            pass  # a read-only one lies above it


def fill(disk: Path) -> None:
    """Until not one byte more fits."""
    with (disk / "filling").open("wb", buffering=0) as file:
        for size in (1 << 16, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


def make_read_only(target: Path) -> None:
    """From now on, for all that is opened by its path; of a disk that was mounted here."""
    place = os.fsencode(target)
    _mount(place, target, b"", _MS_BIND, b"")
    _mount(b"", target, b"", _MS_BIND | _MS_REMOUNT | _MS_RDONLY, b"")


def _mount(source: bytes, target: Path, kind: bytes, flags: int, options: bytes) -> None:
    if LIBC.mount(source, os.fsencode(target), kind, flags, options):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(target))


def why_not() -> str:
    """Why a file system cannot be mounted here; empty: it can."""
    if os.geteuid():
        return "needs root to mount"
    return "" if os.path.exists("/dev/fuse") else "needs /dev/fuse"


if __name__ == "__main__":
    main(sys.argv[1])
