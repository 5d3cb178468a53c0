package acceptance

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestJail looks at the VMMs of two sandboxes from the outside, and does what
// one that was taken over could try: as its user, in its namespaces and with its
// root directory, but without its system call filter.
func TestJail(t *testing.T) {
	r := shared(t)
	first, second := r.runSmall(t), r.runSmall(t)
	a, b := r.inspect(t, first), r.inspect(t, second)

	for _, s := range []sandboxInfo{a, b} {
		status := procStatus(t, s.PID)
		for field, want := range map[string]string{
			"NoNewPrivs": "1", "CapInh": "0000000000000000", "CapPrm": "0000000000000000",
			"CapEff": "0000000000000000", "CapAmb": "0000000000000000",
		} {
			if got := status[field]; len(got) != 1 || got[0] != want {
				t.Errorf("%s of the VMM of %s is %v, want %s", field, s.Name, got, want)
			}
		}
		checkSeccomp(t, s)
		for _, id := range append(status["Uid"], status["Gid"]...) {
			if n, err := strconv.Atoi(id); err != nil || n < 1<<16 {
				t.Errorf("the VMM of %s runs as %s", s.Name, id)
			}
		}
		limits := readFile(t, fmt.Sprintf("/proc/%d/limits", s.PID))
		if !strings.Contains(limits, "Max core file size        0                    0 ") {
			t.Errorf("the VMM of %s may leave a core:\n%s", s.Name, limits)
		}
		checkLimits(t, s)
	}
	if sa, sb := procStatus(t, a.PID), procStatus(t, b.PID); sa["Uid"][0] == sb["Uid"][0] {
		t.Errorf("both VMMs run as user %s", sa["Uid"][0])
	}

	uid := procStatus(t, a.PID)["Uid"][0]
	// as runs a command on the host as the VMM of the first sandbox, with its
	// network.
	as := func(args ...string) error {
		t.Helper()
		all := append([]string{"--target", strconv.Itoa(a.PID), "--net", "--", "setpriv", "--reuid", uid, "--regid", uid,
			"--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"}, args...)
		out, err := exec.Command("nsenter", all...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
		}
		return nil
	}
	if err := as("true"); err != nil {
		t.Fatalf("nothing at all works as that user: %v", err)
	}
	for what, args := range map[string][]string{
		"the other's disk":          {"cat", filepath.Join(b.Dir, "layer.ext4")},
		"its own record":            {"cat", filepath.Join(a.Dir, "sandbox.json")},
		"the store":                 {"ls", filepath.Join(r.dir, "store")},
		"memory dumps":              {"ls", filepath.Join(r.dir, "cache")},
		"the other's memory":        {"head", "-c1", fmt.Sprintf("/proc/%d/mem", b.PID)},
		"the other's memory map":    {"cat", fmt.Sprintf("/proc/%d/maps", b.PID)},
		"the other's files":         {"ls", fmt.Sprintf("/proc/%d/fd", b.PID)},
		"a signal to the other":     {"kill", "-0", strconv.Itoa(b.PID)},
		"a signal to the host's":    {"kill", "-0", strconv.Itoa(os.Getpid())},
		"the host's password file":  {"cat", "/etc/shadow"},
		"the VMM's control sockets": {"sh", "-c", "ls /run/sietch/*/*/"},
	} {
		if err := as(args...); err == nil {
			t.Errorf("a VMM can reach %s", what)
		}
	}

	// What it sees of the host's files: no way out of its root directory.
	for _, path := range []string{"etc/shadow", "proc/1/environ", "root", "home", "var/lib"} {
		if _, err := os.Lstat(filepath.Join(fmt.Sprintf("/proc/%d/root", a.PID), path)); err == nil {
			t.Errorf("the VMM sees /%s", path)
		}
	}

	// The network, beyond what the guest itself may do: nothing.
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	gateway := hostSide(t, a)
	connect := func(addr, port string) error {
		return as("busybox", "nc", "-w", "2", addr, port, "-e", "true")
	}
	for what, addr := range map[string]string{"the host": gateway, "another guest": b.IP, "the host's loopback": "127.0.0.1"} {
		if err := connect(addr, port); err == nil {
			t.Errorf("a VMM reaches %s at %s", what, addr)
		}
	}

	// And the guest: neither the host's services, nor another guest, nor what
	// clouds answer on.
	for what, addr := range map[string]string{"the host": gateway, "another guest": b.IP, "cloud metadata": "169.254.169.254"} {
		res := r.try(t, "exec", first, "--", "nc", "-w", "2", addr, port, "-e", "true")
		if res.code == 0 {
			t.Errorf("a guest reaches %s at %s", what, addr)
		}
	}
	r.remove(t, first, second)
}

// procStatus is /proc/PID/status by field.
func procStatus(t *testing.T, pid int) map[string][]string {
	t.Helper()
	return statusFields(readFile(t, fmt.Sprintf("/proc/%d/status", pid)))
}

func statusFields(text string) map[string][]string {
	fields := map[string][]string{}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(line, ":"); ok {
			fields[k] = strings.Fields(v)
		}
	}
	return fields
}

// checkSeccomp wants every thread of a VMM filtered by us, and by itself too if it
// does anything for its guest: cloud-hypervisor's first one only waits for the
// others.
func checkSeccomp(t *testing.T, s sandboxInfo) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", s.PID))
	if err != nil || len(threads) < 2 {
		t.Fatalf("threads of the VMM of %s: %q, %v", s.Name, threads, err)
	}
	for _, thread := range threads {
		first := filepath.Base(filepath.Dir(thread)) == strconv.Itoa(s.PID)
		status, err := os.ReadFile(thread)
		if err != nil {
			continue // it may have ended
		}
		filters := 2
		if first && s.VMM == "cloud-hypervisor" {
			filters = 1
		}
		has := statusFields(string(status))["Seccomp_filters"]
		if len(has) != 1 {
			t.Fatalf("the filters of a thread are not told:\n%s", status)
		}
		// More: those of the thread that made it.
		if n, _ := strconv.Atoi(has[0]); n < filters {
			t.Errorf("a thread of the VMM of %s has %d filters, want %d:\n%s", s.Name, n, filters, status)
		}
	}
}

// checkLimits wants a VMM in a control group that bounds memory, CPU and tasks.
func checkLimits(t *testing.T, s sandboxInfo) {
	t.Helper()
	found := map[string]bool{}
	for line := range strings.Lines(readFile(t, fmt.Sprintf("/proc/%d/cgroup", s.PID))) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 || !strings.HasSuffix(parts[2], "/"+s.ID) {
			continue
		}
		for _, controller := range strings.Split(parts[1], ",") {
			dir := filepath.Join("/sys/fs/cgroup", controller, parts[2])
			for file, what := range map[string]string{
				"memory.max": "memory", "memory.limit_in_bytes": "memory", "cpu.max": "cpu", "cpu.cfs_quota_us": "cpu", "pids.max": "pids",
			} {
				v, err := os.ReadFile(filepath.Join(dir, file))
				if err == nil && !strings.HasPrefix(string(v), "max") && !strings.HasPrefix(string(v), "-1") {
					found[what] = true
				}
			}
		}
	}
	for _, what := range []string{"memory", "cpu", "pids"} {
		if !found[what] {
			t.Errorf("the VMM of %s has no limit of %s", s.Name, what)
		}
	}
}

// hostSide is the host's address on the bridge that a sandbox is behind.
func hostSide(t *testing.T, s sandboxInfo) string {
	t.Helper()
	ip := net.ParseIP(s.IP)
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.Contains(ip) {
			return n.IP.String()
		}
	}
	t.Fatalf("no interface of the host is in the network of %s", s.IP)
	return ""
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
