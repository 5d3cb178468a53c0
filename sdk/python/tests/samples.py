"""Answers, as the document has them."""

from __future__ import annotations

from typing import Any, Dict

TIME = "2026-01-02T03:04:05.123456789Z"
HEAD = {"branch": "main", "commit": "c1"}
PORT = {"host_ip": "127.0.0.1", "host": 18080, "guest": 80, "protocol": "tcp"}
IMAGE: Dict[str, Any] = {
    "id": "sha256:1",
    "name": "debian",
    "tag": "bookworm",
    "created": TIME,
    "size_bytes": 1 << 30,
    "rootfs_digest": "sha256:2",
    "config": {
        "env": ["PATH=/bin"],
        "entrypoint": [],
        "cmd": ["/bin/sh"],
        "user": "",
        "workdir": "/",
        "exposed_ports": ["80/tcp"],
        "labels": {"a": "b"},
    },
}
SANDBOX: Dict[str, Any] = {
    "name": "box",
    "id": "s1",
    "state": "running",
    "image": "debian:bookworm",
    "head": HEAD,
    "ip": "10.88.0.2",
    "network": "nat",
    "ports": [PORT],
    "vmm": "qemu",
    "accel": "tcg",
    "cpus": 1,
    "memory_bytes": 1 << 29,
    "disk_bytes": 1 << 32,
    "labels": {},
    "created": TIME,
    "pid": 42,
    "main": {"running": True, "exit_code": None},
    "dir": "/var/lib/sietch/sandboxes/s1",
    "timing": {"ready_ms": 812.5},
}
STATS: Dict[str, Any] = {
    "name": "box",
    "state": "running",
    "time": TIME,
    "cpu": {"time_ms": 12.5, "cpus": 1, "threads": 3},
    "memory": {
        "size_bytes": 1 << 29,
        "limit_bytes": 1 << 28,
        "rss_bytes": 200,
        "pss_bytes": 90,
        "shared_bytes": 150,
        "private_bytes": 50,
        "swap_bytes": 0,
    },
    "guest": {
        "total_bytes": 1 << 28,
        "free_bytes": 2,
        "available_bytes": 3,
        "cached_bytes": 4,
        "held_bytes": 5,
        "load": [0.5, 0.25, 1],
        "uptime_ms": 6,
        "rx_bytes": 7,
        "tx_bytes": 8,
        "disk_bytes": 9,
        "disk_free_bytes": 10,
    },
}
PROCESS: Dict[str, Any] = {
    "id": "p1",
    "args": ["sleep", "60"],
    "pid": 7,
    "started": TIME,
    "running": True,
    "exit_code": None,
    "output_bytes": 0,
    "output_from": 0,
}
ENDED = {**PROCESS, "running": False, "exit_code": 143, "signal": 15, "ended": TIME}
COMMIT: Dict[str, Any] = {
    "id": "c1",
    "parents": [],
    "branch": "main",
    "sandbox": "box",
    "image": "sha256:1",
    "message": "first",
    "author": "root@host",
    "created": TIME,
    "labels": {"k": "v"},
    "kind": "full",
    "memory": {"size_bytes": 4, "resident_bytes": 3, "changed_bytes": 2, "stored_bytes": 1},
    "disk": {"size_bytes": 3, "changed_bytes": 2, "stored_bytes": 1},
    "refs": ["main", "tag: v1"],
    "timing": {"pause_ms": 12.5, "total_ms": 80},
}
REF = {"name": "main", "commit": "c1", "sandbox": "box"}
STAT = {
    "name": "a",
    "size_bytes": 5,
    "mode": 0o100644,
    "uid": 0,
    "gid": 0,
    "modified": TIME,
    "is_dir": False,
}
REFLOG = {"index": 0, "commit": "c1", "action": "commit", "message": "first", "time": TIME}
EVENT = {"id": 9, "time": TIME, "type": "sandbox.run", "sandbox": "box"}
GC = {
    "dry_run": True,
    "commits": 1,
    "chunks": 2,
    "freed_bytes": 3,
    "waiting_bytes": 4,
    "cached_bytes": 5,
    "leftover_dirs": 6,
}
FSCK = {"commits": 1, "chunks": 2, "problems": [{"object": "c1", "reason": "gone", "hint": "gc"}]}
DU = {
    "images_bytes": 1,
    "store_bytes": 2,
    "cache_bytes": 3,
    "sandboxes_bytes": 4,
    "build_cache_bytes": 5,
    "kernel_bytes": 6,
}
DOCTOR = {
    "ok": False,
    "checks": [{"name": "kvm", "status": "missing", "detail": "none", "fix": "modprobe kvm"}],
}
HEALTH = {"status": "ok", "checks": [{"name": "engine", "ok": True}]}
FORKS = [{"name": f"box-{n}", "commit": "c1", "ip": f"10.88.0.{n}", "ready_ms": 100.0 * n} for n in (1, 2)]
EXEC = {"exit_code": 3, "stdout": "out\n", "stderr": "\ufffd", "stderr_base64": "/w==", "duration_ms": 1.5}
