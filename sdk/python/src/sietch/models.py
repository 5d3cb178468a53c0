"""What the API answers with.

Names and units are the API's: sizes in bytes, durations in milliseconds, times
aware and in UTC. Fields may be added by newer servers; they are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Dict, List, Optional


@dataclass(frozen=True)
class ImageConfig:
    """What the Dockerfile said beside the files."""

    env: List[str]
    entrypoint: List[str]
    cmd: List[str]
    user: str
    workdir: str
    exposed_ports: List[str]
    labels: Dict[str, str]
    stop_signal: str = ""


@dataclass(frozen=True)
class Image:
    """A root file system to boot."""

    id: str
    name: str
    tag: str
    created: datetime
    size_bytes: int
    rootfs_digest: str
    config: ImageConfig


@dataclass(frozen=True)
class Head:
    """Where a sandbox stands in history."""

    branch: str  #: empty when detached
    commit: str  #: empty before the first commit


@dataclass(frozen=True)
class Port:
    """A forwarded port."""

    host_ip: str
    host: int
    guest: int
    protocol: str


@dataclass(frozen=True)
class Main:
    """The main process, as the image names it."""

    running: bool
    exit_code: Optional[int]


@dataclass(frozen=True)
class BootTiming:
    ready_ms: float


@dataclass(frozen=True)
class SandboxInfo:
    """A sandbox as it was when it was asked for."""

    name: str
    id: str
    state: str  #: running, paused, stopped or failed
    image: str
    head: Head
    ip: str
    network: str
    ports: List[Port]
    vmm: str
    accel: str
    cpus: int
    memory_bytes: int
    disk_bytes: int
    labels: Dict[str, str]
    created: datetime
    pid: int
    main: Main
    dir: str
    expires: Optional[datetime] = None
    reason: str = ""
    cpu_limit: Optional[float] = None  #: when resized
    memory_limit_bytes: Optional[int] = None  #: when resized
    timing: Optional[BootTiming] = None


@dataclass(frozen=True)
class CPUStats:
    """The time that the virtual machine's process has run."""

    time_ms: float  #: of all its threads since its start
    cpus: int
    threads: int
    limit: Optional[float] = None


@dataclass(frozen=True)
class MemoryStats:
    """The host's view: guest memory and the virtual machine's own together."""

    size_bytes: int  #: of guest memory
    rss_bytes: int
    pss_bytes: int  #: what several map counts for each in equal shares
    shared_bytes: int  #: mapped by others too
    private_bytes: int  #: what its removal frees
    swap_bytes: int
    limit_bytes: Optional[int] = None


@dataclass(frozen=True)
class GuestStats:
    """What the guest's kernel says."""

    total_bytes: int
    free_bytes: int
    available_bytes: int
    cached_bytes: int
    held_bytes: int  #: kept from the guest by resize
    load: List[float]  #: averages of 1, 5 and 15 minutes
    uptime_ms: int
    rx_bytes: int
    tx_bytes: int
    disk_bytes: int
    disk_free_bytes: int


@dataclass(frozen=True)
class Stats:
    """What a sandbox uses at one moment."""

    name: str
    state: str  #: running or paused
    time: datetime
    cpu: CPUStats
    memory: MemoryStats
    guest: Optional[GuestStats]  #: None when it is paused or does not answer


@dataclass(frozen=True)
class ReclaimReport:
    name: str
    reclaimed_bytes: int
    private_bytes: int  #: what is left that no other sandbox shares


@dataclass(frozen=True)
class ExecResult:
    """How a command ended and what it wrote.

    ``exit_code`` is as a shell gives it: 126 not executable, 127 not found, 124
    timed out, 128 + n ended by signal n. ``error`` says why it could not be run.
    """

    exit_code: int
    stdout: str
    stderr: str
    signal: int = 0
    error: str = ""
    truncated: bool = False
    duration_ms: float = 0.0
    #: What was written, exactly; ``stdout`` and ``stderr`` have replacement
    #: characters where it was no UTF-8.
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


@dataclass(frozen=True)
class ExitStatus:
    """How a streamed command ended; see :class:`ExecResult`."""

    exit_code: int
    signal: int = 0
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


@dataclass(frozen=True)
class Chunk:
    """Some output of a streamed command."""

    stream: str  #: stdout or stderr
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True)
class ProcessInfo:
    """A background process as it was when it was asked for."""

    id: str
    args: List[str]
    pid: int
    started: datetime
    running: bool
    exit_code: Optional[int]
    output_bytes: int  #: all it has written
    output_from: int  #: offset of the oldest byte that is still kept
    ended: Optional[datetime] = None
    signal: int = 0
    reason: str = ""


@dataclass(frozen=True)
class ProcessOutput:
    """A piece of a process's output; ``next`` is where to go on."""

    data: bytes
    next: int

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True)
class PathStat:
    """A path in a guest. ``mode`` is st_mode."""

    name: str
    size_bytes: int
    mode: int
    uid: int
    gid: int
    modified: datetime
    is_dir: bool
    link_target: str = ""


@dataclass(frozen=True)
class FileEvent:
    """A change: create, write, remove, rename, attributes, or overflow when more
    happened than could be told."""

    path: str
    op: str
    is_dir: bool


@dataclass(frozen=True)
class CommitMemory:
    size_bytes: int
    resident_bytes: int
    changed_bytes: int
    stored_bytes: int


@dataclass(frozen=True)
class CommitDisk:
    size_bytes: int
    changed_bytes: int
    stored_bytes: int


@dataclass(frozen=True)
class CommitTiming:
    pause_ms: float  #: how long the machine stood still
    total_ms: float


@dataclass(frozen=True)
class Commit:
    """A machine at one instant."""

    id: str
    parents: List[str]
    branch: str
    sandbox: str
    image: str
    message: str
    author: str
    created: datetime
    labels: Dict[str, str]
    kind: str  #: full or disk
    memory: CommitMemory
    disk: CommitDisk
    refs: List[str]
    timing: Optional[CommitTiming] = None


@dataclass(frozen=True)
class Fork:
    """A live copy. ``ready_ms``: from the request to its first successful exec."""

    name: str
    commit: str
    ip: str
    ready_ms: float


@dataclass(frozen=True)
class ReflogEntry:
    """Where a HEAD has been; index 0 is the present."""

    index: int
    commit: str
    action: str
    message: str
    time: datetime


@dataclass(frozen=True)
class Ref:
    """A branch or tag. ``sandbox``: where the branch is checked out."""

    name: str
    commit: str
    sandbox: str


@dataclass(frozen=True)
class GCReport:
    dry_run: bool
    commits: int
    chunks: int
    freed_bytes: int
    waiting_bytes: int
    cached_bytes: int
    leftover_dirs: int


@dataclass(frozen=True)
class FsckProblem:
    object: str
    reason: str
    hint: str = ""


@dataclass(frozen=True)
class FsckReport:
    commits: int
    chunks: int
    problems: List[FsckProblem]


@dataclass(frozen=True)
class UsageReport:
    images_bytes: int
    store_bytes: int
    cache_bytes: int
    sandboxes_bytes: int
    build_cache_bytes: int
    kernel_bytes: int


@dataclass(frozen=True)
class Event:
    """Something that happened. ``type`` is noun.verb, such as ``sandbox.run``."""

    id: int
    time: datetime
    type: str
    sandbox: str = ""
    commit: str = ""
    image: str = ""
    ref: str = ""
    port: Optional[Port] = None


@dataclass(frozen=True)
class DoctorCheck:
    name: str
    status: str  #: ok, note or missing
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class DoctorReport:
    ok: bool
    checks: List[DoctorCheck]


@dataclass(frozen=True)
class Version:
    version: str
    api: str


@dataclass(frozen=True)
class HealthCheck:
    name: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True)
class Health:
    status: str  #: ok or failing
    checks: List[HealthCheck] = field(default_factory=list)
