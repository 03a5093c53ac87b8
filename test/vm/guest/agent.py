#!/usr/bin/python3
"""The guest's end of the line to the test: one virtio serial port.

A request is one line of JSON, for "put" followed by n bytes of a tar. The
answer is frames: one byte of type, four of length (big endian), the body.
'o' is output, 't' a piece of a tar, 'x' the end, with JSON in its body.

    {"op": "ping"}                       x {"boot": ...}
    {"op": "time", "unix": seconds}      x {"exit": 0}; a restored host lives in the past
    {"op": "put", "dir": D, "n": bytes}  x {"exit": of tar}
    {"op": "run", "argv": [...], "dir": D}   o..., x {"exit": code}
    {"op": "get", "dir": D}              t..., x {"exit": of tar}
    {"op": "off"}                        x, then the host powers off
"""
import json
import os
import struct
import subprocess
import time

PORT = os.open("/dev/virtio-ports/bulkhead.vm", os.O_RDWR)
ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
CHUNK = 1 << 16


def read(n):
    while True:
        got = os.read(PORT, n)
        if got:
            return got
        time.sleep(0.02)  # nobody is connected outside


def read_line():
    line = b""
    while not line.endswith(b"\n"):
        line += read(1)
    return line


def frame(kind, body=b""):
    left = kind + struct.pack(">I", len(body)) + body
    while left:
        left = left[os.write(PORT, left):]


def stream(kind, argv, **how):
    """Runs argv, sends what it prints as frames, returns its exit code."""
    p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True, env=ENV, **how)
    while True:
        some = os.read(p.stdout.fileno(), CHUNK)
        if not some:
            break
        frame(kind, some)
    code = p.wait()
    return code if code >= 0 else 128 - code


def put(dir, n):
    os.makedirs(dir, exist_ok=True)
    p = subprocess.Popen(["tar", "-xpf", "-", "-C", dir], stdin=subprocess.PIPE)
    while n:
        some = read(min(n, CHUNK))
        n -= len(some)
        p.stdin.write(some)
    p.stdin.close()
    return p.wait()


def answer(q):
    op = q["op"]
    if op == "ping":
        return {"boot": open("/proc/sys/kernel/random/boot_id").read().strip()}
    if op == "time":
        return {"exit": subprocess.call(["date", "-u", "-s", "@%f" % q["unix"]], stdout=subprocess.DEVNULL)}
    if op == "put":
        return {"exit": put(q["dir"], q["n"])}
    if op == "run":
        return {"exit": stream(b"o", q["argv"], cwd=q["dir"], stderr=subprocess.STDOUT)}
    if op == "get":
        return {"exit": stream(b"t", ["tar", "-cf", "-", "-C", q["dir"], "."])}
    if op == "off":
        return {"exit": subprocess.call(["systemctl", "--no-block", "poweroff"])}
    raise ValueError("unknown op %r" % op)


while True:
    try:
        reply = answer(json.loads(read_line()))
    except Exception as e:  # the line must stay usable, whatever went wrong
        reply = {"exit": 255, "error": repr(e)}
    frame(b"x", json.dumps(reply).encode())
