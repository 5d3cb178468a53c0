package runtime

import (
	"context"
	"io"
	"syscall"
	"time"
)

// Engine is every verb of the product. The shell and the REST server are two
// callers of the same Engine, so neither can do what the other cannot.
//
// All methods are safe for concurrent use and validate their whole request
// before the first side effect. NAME arguments are sandbox names; REF arguments
// are expressions as in `sietch --help` (sandbox name, branch, tag, id or unique
// prefix, looked for in this order, REF~n, REF^n, NAME@{n}).
type Engine interface {
	Images
	Sandboxes
	Processes
	Files
	Ports
	Commits
	Storage
	Events

	// Doctor looks at the host; it needs no rights and changes nothing.
	Doctor(ctx context.Context) (DoctorReport, error)
	// Close waits for nothing: sandboxes go on running without an Engine.
	Close() error
}

// Images are root file systems.
type Images interface {
	Build(ctx context.Context, r BuildRequest) (Image, error)
	ListImages(ctx context.Context) ([]Image, error)
	InspectImage(ctx context.Context, image string) (Image, error)
	// RemoveImage refuses (ErrInUse) while a sandbox or a commit needs it.
	RemoveImage(ctx context.Context, image string) error
	// TagImage gives an image one more name, taking it from the one that had it.
	TagImage(ctx context.Context, image, name string) (Image, error)
	ImportImage(ctx context.Context, r ImportRequest) (Image, error)
	ExportImage(ctx context.Context, image, format string, w io.Writer) error
	PullImage(ctx context.Context, ref string, progress io.Writer) (Image, error)
	BootstrapImage(ctx context.Context, name string, progress io.Writer) (Image, error)
}

// Sandboxes are running machines.
type Sandboxes interface {
	// Run returns when the first exec would succeed.
	Run(ctx context.Context, r RunRequest) (Sandbox, error)
	List(ctx context.Context, all bool) ([]Sandbox, error)
	Inspect(ctx context.Context, name string) (Sandbox, error)
	Logs(ctx context.Context, r LogsRequest, w io.Writer) error
	Exec(ctx context.Context, r ExecRequest, stdio ExecIO) (ExitStatus, error)
	// CopyIn writes a tar stream beneath a path of the guest; CopyOut reads one.
	CopyIn(ctx context.Context, r CopyInRequest, tar io.Reader) error
	CopyOut(ctx context.Context, r CopyOutRequest, tar io.Writer) error
	StatPath(ctx context.Context, name, path string) (PathStat, error)
	// Stats measures running and paused sandboxes: those named, or all. It takes
	// three seconds when a guest does not answer.
	Stats(ctx context.Context, names []string) ([]Stats, error)
	// Resize changes what a running sandbox may use, within what it was made
	// with. ErrState when the guest does not have that much to spare; nothing is
	// changed then.
	Resize(ctx context.Context, r ResizeRequest) (Sandbox, error)
	// Reclaim gives the memory that a running guest does not use at this moment
	// back to the host.
	Reclaim(ctx context.Context, name string) (ReclaimReport, error)
	Pause(ctx context.Context, name string) error
	Resume(ctx context.Context, name string) error
	Stop(ctx context.Context, r StopRequest) error
	Start(ctx context.Context, name string) (Sandbox, error)
	Remove(ctx context.Context, name string, force bool) error
}

// Commits are machines at one instant.
type Commits interface {
	Commit(ctx context.Context, r CommitRequest) (Commit, error)
	// Fork calls each as every copy answers its first exec, in that order; the
	// error is for those that did not come up (the others stay).
	Fork(ctx context.Context, r ForkRequest, each func(Fork)) ([]Fork, error)
	Checkout(ctx context.Context, r CheckoutRequest) (Sandbox, error)
	Log(ctx context.Context, r LogRequest) ([]Commit, error)
	Show(ctx context.Context, ref string) (Commit, error)
	Reflog(ctx context.Context, name string) ([]ReflogEntry, error)
	ListRefs(ctx context.Context, kind RefKind) ([]Ref, error)
	CreateRef(ctx context.Context, kind RefKind, name, ref string) (Ref, error)
	DeleteRef(ctx context.Context, kind RefKind, name string) error
	RenameBranch(ctx context.Context, from, to string) error
}

// Storage is the data directory.
type Storage interface {
	GC(ctx context.Context, dryRun bool) (GCReport, error)
	Fsck(ctx context.Context) (FsckReport, error)
	DiskUsage(ctx context.Context) (UsageReport, error)
}

// State of a sandbox.
type State string

const (
	Running State = "running"
	Paused  State = "paused"
	Stopped State = "stopped" // no process; its disk is there
	Failed  State = "failed"  // the VMM ended without being asked, or its record is damaged
)

// Image is a bootable root file system.
type Image struct {
	ID           string      `json:"id"`
	Name         string      `json:"name"`
	Tag          string      `json:"tag"`
	Created      time.Time   `json:"created"`
	SizeBytes    int64       `json:"size_bytes"`
	RootfsDigest string      `json:"rootfs_digest"`
	Config       ImageConfig `json:"config"`
}

// ImageConfig is what the Dockerfile said beside the files.
type ImageConfig struct {
	Env          []string          `json:"env"`
	Entrypoint   []string          `json:"entrypoint"`
	Cmd          []string          `json:"cmd"`
	User         string            `json:"user"`
	WorkingDir   string            `json:"workdir"`
	StopSignal   string            `json:"stop_signal,omitempty"`
	ExposedPorts []string          `json:"exposed_ports"`
	Labels       map[string]string `json:"labels"`
}

// BuildRequest is `sietch build`.
type BuildRequest struct {
	ContextDir    string
	Context       io.Reader // instead of ContextDir: a tar stream of it, gzip or zstd compressed or not
	ContextPath   string    // directory of the stream that is the context; empty: all of it
	Dockerfile    string    // path, in the stream if there is one; empty: Dockerfile of the context
	Names         []string
	Target        string
	BuildArgs     map[string]string
	Secrets       []BuildSecret
	BuildContexts map[string]string
	NoCache       bool
	Progress      string // auto, plain, rawjson, quiet
	ProgressOut   io.Writer
}

// BuildSecret is offered to RUN --mount=type=secret.
type BuildSecret struct {
	ID     string
	Source string // file
	Env    string // or environment variable
}

// ImportRequest is `sietch image import`.
type ImportRequest struct {
	Source string    // path of a file or directory, or
	Reader io.Reader // a stream
	Name   string
	Format string // auto, oci, docker, rootfs
}

// Sandbox is one microVM, as `inspect` shows it.
type Sandbox struct {
	Name        string            `json:"name"`
	ID          string            `json:"id"`
	State       State             `json:"state"`
	Image       string            `json:"image"`
	Head        Head              `json:"head"`
	IP          string            `json:"ip"`
	Network     string            `json:"network"`
	Ports       []Port            `json:"ports"`
	VMM         string            `json:"vmm"`
	Accel       string            `json:"accel"`
	CPUs        int               `json:"cpus"`
	MemoryBytes int64             `json:"memory_bytes"`
	DiskBytes   int64             `json:"disk_bytes"`
	Labels      map[string]string `json:"labels"`
	Created     time.Time         `json:"created"`
	PID         int               `json:"pid"`
	Main        Main              `json:"main"`
	// Dir holds the sandbox's files (layer.ext4, console.log, main.log).
	Dir string `json:"dir"`
	// Expires is when the sandbox is removed, running or not; nil: never. Copies
	// of it do not inherit that.
	Expires *time.Time `json:"expires,omitempty"`
	// Reason says why State is failed.
	Reason string `json:"reason,omitempty"`
	// Limits that resize has set; 0: none beyond CPUs and MemoryBytes.
	CPULimit         float64 `json:"cpu_limit,omitempty"`
	MemoryLimitBytes int64   `json:"memory_limit_bytes,omitempty"`
	// Timing is set in the answer to Run and Start only.
	Timing *BootTiming `json:"timing,omitempty"`
}

// Head says where a sandbox stands in history.
type Head struct {
	Branch string `json:"branch"` // empty when detached
	Commit string `json:"commit"` // empty before the first commit
}

// Port is one forwarded port.
type Port struct {
	HostIP   string `json:"host_ip"`
	Host     uint16 `json:"host"`
	Guest    uint16 `json:"guest"`
	Protocol string `json:"protocol"`
}

// Main is the state of the main process (ENTRYPOINT/CMD).
type Main struct {
	Running  bool `json:"running"`
	ExitCode *int `json:"exit_code"`
}

// BootTiming is measured from the request.
type BootTiming struct {
	ReadyMS float64 `json:"ready_ms"`
}

// Network modes.
const (
	NetworkNAT  = "nat"
	NetworkNone = "none"
)

// RunRequest is `sietch run`.
type RunRequest struct {
	Name        string // empty: made up
	From        string // image or REF
	CPUs        int    // 0: default
	MemoryBytes int64  // 0: default
	DiskBytes   int64  // 0: default
	Ports       []Port
	Env         []string // K=V
	WorkingDir  string
	User        string
	Network     string
	Labels      map[string]string
	Message     string   // when set, the sandbox is committed as soon as it is ready
	Args        []string // replaces CMD
	// FromDisk boots a commit's disk cold instead of restoring its memory.
	FromDisk bool
	// Nested shows the guest the CPU's virtualization, for machines of its own.
	Nested bool
	// TTL is how long the sandbox lives; 0: until it is removed. What has
	// expired is removed by the server, or else by the next command.
	TTL time.Duration
}

// LogsRequest is `sietch logs`.
type LogsRequest struct {
	Name   string
	Follow bool
	Source string // "all", "console", "main"
	Tail   int    // last lines only; 0: all
}

// ExecRequest is `sietch exec`.
type ExecRequest struct {
	Name       string
	Args       []string
	Env        []string
	WorkingDir string
	User       string
	Stdin      bool
	TTY        bool
	Rows, Cols uint16
	Timeout    time.Duration
	Detach     bool
}

// ExecIO are the streams of an exec. Nil writers discard.
type ExecIO struct {
	// Started, when set, is called once the command runs.
	Started func()
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Resize  <-chan TTYSize
	Signals <-chan syscall.Signal
}

// TTYSize is a terminal's size in characters.
type TTYSize struct{ Rows, Cols uint16 }

// ExitStatus of an exec, as a shell gives it.
type ExitStatus struct {
	Code   int    `json:"exit_code"`
	Signal int    `json:"signal,omitempty"`
	Error  string `json:"error,omitempty"`
}

// CopyInRequest writes into a guest.
type CopyInRequest struct {
	Name string
	// Path is an existing directory, beneath which the members of the tar go.
	Path string
}

// CopyOutRequest reads from a guest. The tar's members are beneath the base
// name of Path; for "/" the first member is the directory they are beneath.
type CopyOutRequest struct {
	Name       string
	Path       string
	FollowLink bool
}

// PathStat describes a path in a guest.
type PathStat struct {
	Name       string    `json:"name"`
	SizeBytes  int64     `json:"size_bytes"`
	Mode       uint32    `json:"mode"` // st_mode
	UID        int       `json:"uid"`
	GID        int       `json:"gid"`
	Modified   time.Time `json:"modified"`
	LinkTarget string    `json:"link_target,omitempty"`
	IsDir      bool      `json:"is_dir"`
}

// StopRequest is `sietch stop`.
type StopRequest struct {
	Name    string
	Timeout time.Duration // then the machine is killed; 0: 10 s
}

// CommitRequest is `sietch commit`.
type CommitRequest struct {
	Name     string
	Message  string
	Author   string // empty: user@host
	Labels   map[string]string
	DiskOnly bool
}

// Commit is one node of the history.
type Commit struct {
	ID      string            `json:"id"`
	Parents []string          `json:"parents"`
	Branch  string            `json:"branch"`
	Sandbox string            `json:"sandbox"`
	Image   string            `json:"image"`
	Message string            `json:"message"`
	Author  string            `json:"author"`
	Created time.Time         `json:"created"`
	Labels  map[string]string `json:"labels"`
	Kind    string            `json:"kind"` // full or disk
	Memory  CommitMemory      `json:"memory"`
	Disk    CommitDisk        `json:"disk"`
	Refs    []string          `json:"refs"` // what points here: "main", "tag: v1", HEADs as "box@ -> main" or "box@"
	Timing  *CommitTiming     `json:"timing,omitempty"`
}

// CommitMemory sizes one commit's RAM.
type CommitMemory struct {
	SizeBytes     int64 `json:"size_bytes"`
	ResidentBytes int64 `json:"resident_bytes"` // not zero
	ChangedBytes  int64 `json:"changed_bytes"`  // against the parent
	StoredBytes   int64 `json:"stored_bytes"`   // new in the store
}

// CommitDisk sizes one commit's writable layer.
type CommitDisk struct {
	SizeBytes    int64 `json:"size_bytes"`
	ChangedBytes int64 `json:"changed_bytes"`
	StoredBytes  int64 `json:"stored_bytes"`
}

// CommitTiming is measured by the commit itself.
type CommitTiming struct {
	PauseMS float64 `json:"pause_ms"` // the guest stood still
	TotalMS float64 `json:"total_ms"`
}

// ForkRequest is `sietch fork`.
type ForkRequest struct {
	From   string // sandbox name (its present state) or REF
	N      int
	Prefix string // names are PREFIX-1 …; empty: from the source's name
	Branch bool   // give every copy a branch of its own, named like the copy
	Labels map[string]string
}

// Fork is one copy.
type Fork struct {
	Name    string  `json:"name"`
	Commit  string  `json:"commit"`
	IP      string  `json:"ip"`
	ReadyMS float64 `json:"ready_ms"` // request to first successful exec
}

// CheckoutRequest is `sietch checkout`.
type CheckoutRequest struct {
	Name      string
	Ref       string
	NewBranch string
	NoSave    bool
}

// LogRequest is `sietch log`.
type LogRequest struct {
	Ref string // empty: every branch, tag and HEAD
	N   int    // 0: all
}

// ReflogEntry is one former position of a sandbox's HEAD; entry 0 is the present.
type ReflogEntry struct {
	Index   int       `json:"index"`
	Commit  string    `json:"commit"`
	Action  string    `json:"action"`
	Message string    `json:"message"`
	Time    time.Time `json:"time"`
}

// RefKind is a branch or a tag.
type RefKind string

const (
	BranchRef RefKind = "branch"
	TagRef    RefKind = "tag"
)

// Ref is a named commit.
type Ref struct {
	Name    string `json:"name"`
	Commit  string `json:"commit"`
	Sandbox string `json:"sandbox"` // where the branch is checked out
}

// GCReport says what gc freed or would free.
type GCReport struct {
	DryRun       bool  `json:"dry_run"`
	Commits      int   `json:"commits"` // unreachable ones removed
	Chunks       int64 `json:"chunks"`
	FreedBytes   int64 `json:"freed_bytes"`
	WaitingBytes int64 `json:"waiting_bytes"` // unreachable too, but among too much that is not to be freed yet
	CachedBytes  int64 `json:"cached_bytes"`  // hot dumps removed
	LeftoverDirs int   `json:"leftover_dirs"`
}

// FsckReport lists what is damaged.
type FsckReport struct {
	Commits  int           `json:"commits"`
	Chunks   int64         `json:"chunks"`
	Problems []FsckProblem `json:"problems"`
}

// FsckProblem is one damaged thing.
type FsckProblem struct {
	Object string `json:"object"`
	Reason string `json:"reason"`
	Hint   string `json:"hint,omitempty"`
}

// UsageReport splits the data directory by use, in bytes on disk.
type UsageReport struct {
	ImagesBytes     int64 `json:"images_bytes"`
	StoreBytes      int64 `json:"store_bytes"`
	CacheBytes      int64 `json:"cache_bytes"`
	SandboxesBytes  int64 `json:"sandboxes_bytes"`
	BuildCacheBytes int64 `json:"build_cache_bytes"`
	KernelBytes     int64 `json:"kernel_bytes"`
}

// DoctorReport says whether this host is able to run sietch.
type DoctorReport struct {
	OK     bool          `json:"ok"`
	Checks []DoctorCheck `json:"checks"`
}

// DoctorCheck is one finding.
type DoctorCheck struct {
	Name   string `json:"name"`
	Status string `json:"status"` // ok, note, missing
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"` // a command
}
