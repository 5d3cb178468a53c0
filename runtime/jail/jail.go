package jail

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// firstID is where user ids of sandboxes begin.
const firstID = 0x70000000

// ID is user and group id of the VMM of a sandbox with that address, an IPv4
// address of one host-wide pool no larger than a /16.
func ID(addr netip.Addr) (int, error) {
	if !addr.Is4() {
		return 0, fmt.Errorf("user id of a sandbox: %s is no IPv4 address", addr)
	}
	b := addr.As4()
	return firstID + int(b[2])<<8 + int(b[3]), nil
}

// Limits of a VMM.
type Limits struct {
	CPUs        int   // of the guest
	MemoryBytes int64 // of the guest
	// CPULimit is how many CPUs' time the VMM gets, its own work included; 0:
	// enough for all of the guest's CPUs and that.
	CPULimit float64
}

const (
	// period is what CPU time is given out in, in microseconds.
	period = 100_000
	// A VMM works beside its guest's CPUs: disks, network, a translation cache,
	// page tables, the kernel's own memory for it.
	vmmCPU         = period / 2
	minQuota       = 1000 // the kernel's
	vmmMemoryBytes = 512 << 20
	// maxTasks bounds threads; I/O pools of VMMs have up to 64, once per CPU at most.
	maxTasks = 256
)

func (l Limits) quota() int64 {
	if l.CPULimit > 0 {
		return max(minQuota, int64(l.CPULimit*period))
	}
	return int64(l.CPUs)*period + vmmCPU
}

func (l Limits) memory() int64 { return l.MemoryBytes + vmmMemoryBytes }

// Group is the control group of a sandbox.
type Group struct {
	// Dirs are what a process has to be moved into: one of cgroup v2, or one of
	// each v1 hierarchy.
	Dirs []string
	// Unlimited are the controllers that this host does not have: cpu, memory, pids.
	Unlimited []string
}

// ErrDenied is wrapped by the errors of a host that lets nobody make control
// groups, as inside some containers.
var ErrDenied = errors.New("this host allows no control groups")

// MakeGroup makes the control group name, a path such as "/sietch/INSTANCE/ID",
// or sets the limits of one that is there.
func MakeGroup(name string, l Limits) (Group, error) {
	make := makeLegacy
	if cgroups.Mode() == cgroups.Unified {
		make = makeUnified
	}
	var g Group
	var err error
	for range 5 {
		// Whoever removes a group at this moment takes empty levels above it along.
		if g, err = make(name, l); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		if denied(err) {
			err = fmt.Errorf("%w: %w", ErrDenied, err)
		}
		return Group{}, errors.Join(fmt.Errorf("make control group %s: %w", name, err), RemoveGroup(name))
	}
	return g, nil
}

func denied(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) ||
		errors.Is(err, cgroup1.ErrMountPointNotExist) ||
		// The root of a container's control groups, with its processes in it: none
		// beneath can have limits then. Of the host's own root that is not so.
		cgroups.Mode() == cgroups.Unified && errors.Is(err, unix.EBUSY)
}

// controllers that are used; their names are the same in v1 and v2.
var controllers = []cgroup1.Name{cgroup1.Cpu, cgroup1.Memory, cgroup1.Pids}

// hierarchies are those of the controllers that this host has in v1.
func hierarchies() ([]cgroup1.Subsystem, error) {
	all, err := cgroup1.Default()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(s cgroup1.Subsystem) bool { return !slices.Contains(controllers, s.Name()) }), nil
}

func makeLegacy(name string, l Limits) (Group, error) {
	quota, memory, tasks, window := l.quota(), l.memory(), int64(maxTasks), uint64(period)
	group, err := cgroup1.New(cgroup1.StaticPath(name), &specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Quota: &quota, Period: &window},
		Memory: &specs.LinuxMemory{Limit: &memory},
		Pids:   &specs.LinuxPids{Limit: &tasks},
	}, cgroup1.WithHierarchy(hierarchies), func(c *cgroup1.InitConfig) error {
		c.InitCheck = cgroup1.AllowAny
		return nil
	})
	if err != nil {
		return Group{}, err
	}
	var g Group
	for _, c := range controllers {
		if !slices.ContainsFunc(group.Subsystems(), func(s cgroup1.Subsystem) bool { return s.Name() == c }) {
			g.Unlimited = append(g.Unlimited, string(c))
		}
	}
	if len(g.Unlimited) == len(controllers) {
		return Group{}, errNoController
	}
	for _, s := range group.Subsystems() {
		if p, ok := s.(interface{ Path(string) string }); ok {
			g.Dirs = append(g.Dirs, p.Path(name))
		}
	}
	return g, nil
}

var errNoController = fmt.Errorf("no controller of CPU time, memory or tasks: %w", fs.ErrPermission)

const unifiedMount = "/sys/fs/cgroup"

func makeUnified(name string, l Limits) (Group, error) {
	offered, err := os.ReadFile(filepath.Join(unifiedMount, "cgroup.controllers"))
	if err != nil {
		return Group{}, err
	}
	quota, memory, tasks, window := l.quota(), l.memory(), int64(maxTasks), uint64(period)
	// What is asked of a controller that is not there fails for all of them.
	var enable []string
	g, r := Group{Dirs: []string{filepath.Join(unifiedMount, name)}}, new(cgroup2.Resources)
	for _, c := range controllers {
		if !slices.Contains(strings.Fields(string(offered)), string(c)) {
			g.Unlimited = append(g.Unlimited, string(c))
			continue
		}
		enable = append(enable, "+"+string(c))
		switch c {
		case cgroup1.Cpu:
			r.CPU = &cgroup2.CPU{Max: cgroup2.NewCPUMax(&quota, &window)}
		case cgroup1.Memory:
			r.Memory = &cgroup2.Memory{Max: &memory}
		case cgroup1.Pids:
			r.Pids = &cgroup2.Pids{Max: tasks}
		}
	}
	if len(g.Unlimited) == len(controllers) {
		return Group{}, errNoController
	}
	// The manager does this at every level, and tells what the last one said.
	if err := os.WriteFile(filepath.Join(unifiedMount, "cgroup.subtree_control"), []byte(strings.Join(enable, " ")), 0); err != nil {
		return Group{}, err
	}
	if _, err := cgroup2.NewManager(unifiedMount, name, r); err != nil {
		return Group{}, err
	}
	return g, nil
}

// RemoveGroup removes a control group whose processes have ended, and the levels
// above it that are empty then. One that is not there is no error.
func RemoveGroup(name string) error {
	var errs []error
	for _, root := range roots() {
		for dir, first := name, true; dir != "/" && dir != "."; dir, first = filepath.Dir(dir), false {
			err := removeDir(filepath.Join(root, dir))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				if first {
					errs = append(errs, err)
				}
				break // others are in there
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove control group %s: %w", name, err)
	}
	return nil
}

// removeDir removes a directory of the control group file system. A process that
// has ended counts for a moment longer.
func removeDir(dir string) error {
	for deadline := time.Now().Add(300 * time.Millisecond); ; time.Sleep(2 * time.Millisecond) {
		err := unix.Rmdir(dir)
		if err != unix.EBUSY || time.Now().After(deadline) {
			return os.NewSyscallError("rmdir "+dir, err)
		}
		if entries, err := os.ReadDir(dir); err == nil && slices.ContainsFunc(entries, fs.DirEntry.IsDir) {
			return unix.EBUSY // of its groups, not of a process
		}
	}
}

// Groups lists the control groups in parent, by their last name.
func Groups(parent string) ([]string, error) {
	found := map[string]bool{}
	for _, root := range roots() {
		entries, err := os.ReadDir(filepath.Join(root, parent))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list control groups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() {
				found[e.Name()] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// roots are where the hierarchies are mounted.
func roots() []string {
	if cgroups.Mode() == cgroups.Unified {
		return []string{unifiedMount}
	}
	subsystems, err := hierarchies()
	if err != nil {
		return nil
	}
	var dirs []string
	for _, s := range subsystems {
		if p, ok := s.(interface{ Path(string) string }); ok {
			dirs = append(dirs, p.Path("/"))
		}
	}
	return dirs
}
