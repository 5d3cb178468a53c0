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
	// each v1 hierarchy. Empty where the host allows none.
	Dirs []string
}

// MakeGroup makes the control group name, a path such as "/sietch/INSTANCE/ID",
// or sets the limits of one that is there.
func MakeGroup(name string, l Limits) (Group, error) {
	var g Group
	var err error
	if cgroups.Mode() == cgroups.Unified {
		g, err = makeUnified(name, l)
	} else {
		g, err = makeLegacy(name, l)
	}
	if err != nil {
		return Group{}, errors.Join(fmt.Errorf("make control group %s: %w", name, err), RemoveGroup(name))
	}
	return g, nil
}

// controllers of the v1 hierarchies that are used.
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
	for _, s := range group.Subsystems() {
		if p, ok := s.(interface{ Path(string) string }); ok {
			g.Dirs = append(g.Dirs, p.Path(name))
		}
	}
	return g, nil
}

const unifiedMount = "/sys/fs/cgroup"

func makeUnified(name string, l Limits) (Group, error) {
	quota, memory, tasks, window := l.quota(), l.memory(), int64(maxTasks), uint64(period)
	_, err := cgroup2.NewManager(unifiedMount, name, &cgroup2.Resources{
		CPU:    &cgroup2.CPU{Max: cgroup2.NewCPUMax(&quota, &window)},
		Memory: &cgroup2.Memory{Max: &memory},
		Pids:   &cgroup2.Pids{Max: tasks},
	})
	if err != nil {
		return Group{}, err
	}
	return Group{Dirs: []string{filepath.Join(unifiedMount, name)}}, nil
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
