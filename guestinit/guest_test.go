package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/runtime/testlane"
)

// needGuest skips tests that boot machines where that cannot be done.
func needGuest(t *testing.T) {
	t.Helper()
	testlane.Need(t, testlane.Root, testlane.QEMU, testlane.Mirror)
	for _, tool := range []string{"mkfs.ext4", "e2fsck"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
}

// busyboxImage is an image like Alpine's: busybox and a few files.
func busyboxImage(t *testing.T, more map[string]string) string {
	t.Helper()
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Skipf("busybox-static is missing: %v", err)
	}
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{
		"bin/busybox":         string(busybox),
		"bin/sh":              "-> busybox",
		"etc/passwd":          "root:x:0:0:root:/root:/bin/sh\nfremen:x:1000:1000::/home/fremen:/bin/sh\n",
		"etc/group":           "root:x:0:\nfremen:x:1000:\nwater:x:44:fremen\n",
		"etc/machine-id":      "",
		"etc/hosts":           "10.9.8.7 of-the-image\n",
		"etc/resolv.conf":     "-> ../run/systemd/resolve/stub-resolv.conf",
		"home/fremen/":        "",
		"root/":               "",
		"run/of-the-image":    "kept\n",
		"var/lib/misc/nested": "x\n",
	})
	writeFiles(t, dir, more)
	if err := os.Chown(filepath.Join(dir, "home/fremen"), 1000, 1000); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(t.TempDir(), "image.ext4")
	makeExt4(t, image, dir, 64<<20)
	return image
}

const sh = "/bin/sh"

func config(args ...string) proto.Config {
	return proto.Config{
		Hostname: "box",
		Network:  true,
		Args:     args,
		Env:      []string{"PATH=/bin:/usr/bin", "SPICE=melange"},
		Identity: proto.Identity{
			Hostname: "box", MachineID: "0123456789abcdef0123456789abcdef", BootID: "11111111-2222-4333-8444-555555555555",
			Time: time.Now(), Entropy: make([]byte, 64),
		},
	}
}

func TestBoot(t *testing.T) {
	needGuest(t)
	c := config(sh, "-c", `id -un; id -G; pwd; echo "$SPICE $HOME"; echo to-stderr >&2; [ -t 1 ] && echo terminal; exit 7`)
	c.User, c.WorkingDir = "fremen", "/work/made/for/it"
	g := start(t, guestOptions{image: busyboxImage(t, nil), config: c, cpus: 2})
	g.ready()

	// The main process.
	eventually(t, "main process has ended", func() bool {
		st, err := g.Status(context.Background())
		return err == nil && !st.Main.Running
	})
	st, err := g.Status(context.Background())
	if err != nil || st.Main.ExitCode == nil || *st.Main.ExitCode != 7 {
		t.Errorf("main status %+v, %v; want exit code 7", st.Main, err)
	}
	want := "fremen\n1000 44\n/work/made/for/it\nmelange /home/fremen\nto-stderr\n"
	eventually(t, "output of the main process", func() bool { return len(g.mainLog()) >= len(want) })
	if got := g.mainLog(); got != want {
		t.Errorf("main process wrote %q, want %q", got, want)
	}

	root := func(shell string) string { return "busybox " + shell }
	for _, c := range []struct{ shell, want string }{
		{root("hostname"), "box"},
		{"cat /etc/hostname", "box"},
		{"busybox awk '/box/ {print $1, $2}' /etc/hosts", "169.254.77.2 box"},
		{"busybox grep -c of-the-image /etc/hosts || true", "0"},
		{"cat /etc/resolv.conf", "nameserver 169.254.77.1"},
		{"cat /etc/machine-id", "0123456789abcdef0123456789abcdef"},
		{"cat /proc/sys/kernel/random/boot_id", "11111111-2222-4333-8444-555555555555"},
		{"busybox grep -c '^overlay / ' /proc/mounts", "1"},
		{"cat /run/of-the-image", "kept"},
		{"busybox stat -c %a /dev/null /dev/net/tun /dev/shm", "666\n666\n1777"},
		{"busybox readlink /dev/fd", "/proc/self/fd"},
		{"busybox grep -c ^cgroup2 /proc/mounts", "1"},
		{"busybox ip -4 -o addr show eth0 | busybox awk '{print $4}'", "169.254.77.2/30"},
		{"busybox ip route | busybox head -n 1", "default via 169.254.77.1 dev eth0 "},
		{"busybox ip -6 addr show eth0", ""},
		{"busybox nproc", "2"},
		{"ulimit -n", "65536"},
		{"busybox pidof init", "1"},
		// What only the boot needed is gone, from sight and from memory.
		{"busybox ls /sietch /image /layer 2>&1 | busybox grep -c 'No such'", "3"},
	} {
		g.want(strings.ReplaceAll(c.shell, "cat ", "busybox cat "), strings.TrimSpace(c.want))
	}

	// A module nobody loaded comes when somebody needs it.
	g.want("busybox grep -c '^tun ' /proc/modules || true", "0")
	g.want("exec 3<>/dev/net/tun && busybox grep -c '^tun ' /proc/modules", "1")

	// Orphans are reaped.
	g.run(sh, "-c", "(busybox sleep 0.1 &) ; exit 0")
	eventually(t, "no zombie is left", func() bool {
		out, _ := g.run(sh, "-c", "busybox grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | busybox wc -l")
		return strings.TrimSpace(out) == "0"
	})
	if out, _ := g.run("/bin/busybox", "date", "+%s"); true {
		now, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
		if off := time.Now().Unix() - now; err != nil || off < -2 || off > 5 {
			t.Errorf("clock of the guest is off by %d s (%v)", off, err)
		}
	}
	steps := regexp.MustCompile(`sietch: ready .*`).FindString(g.console())
	if steps == "" {
		t.Error("the console does not say when the guest was ready")
	}
	t.Log(steps)

	g.run(sh, "-c", "echo kept > /home/fremen/file; busybox sleep 1000 &")
	g.powerOff()
	if end := lastLines(g.console(), 2); !strings.Contains(end, "sietch: power off") {
		t.Errorf("the console ends with %q", end)
	}
	checkClean(t, g.layer)
	out, err := exec.Command("debugfs", "-R", "cat /upper/home/fremen/file", g.layer).Output()
	if err == nil && string(out) != "kept\n" {
		t.Errorf("layer holds %q", out)
	}
	// Names are this machine's alone and not in its layer.
	out, err = exec.Command("debugfs", "-R", "ls -p /upper/etc", g.layer).Output()
	if err == nil && strings.Contains(string(out), "hosts") {
		t.Errorf("the layer has the names of this machine:\n%s", out)
	}
}

func TestStopSignalAndOutputOnTheWayDown(t *testing.T) {
	needGuest(t)
	c := config(sh, "-c", `trap 'echo got it; exit 3' USR1; echo up; while :; do busybox sleep 0.1; done`)
	c.StopSignal = "SIGUSR1"
	g := start(t, guestOptions{image: busyboxImage(t, nil), config: c})
	if st := g.ready(); !st.Main.Running {
		t.Errorf("main status %+v, want running", st.Main)
	}
	eventually(t, "main process is up", func() bool { return strings.Contains(g.mainLog(), "up") })
	g.powerOff()
	if got := g.mainLog(); got != "up\ngot it\n" {
		t.Errorf("main process wrote %q", got)
	}
	checkClean(t, g.layer)
}

// Process 1 does not fall over signals, and powers off by those that say so.
func TestSignalsToInit(t *testing.T) {
	needGuest(t)
	g := start(t, guestOptions{image: busyboxImage(t, nil), config: config()})
	g.ready()
	g.want("for s in HUP QUIT ABRT TRAP ALRM PIPE IO 34 38 64; do busybox kill -$s 1; done; echo alive", "alive")
	g.want("busybox sleep 0.2; echo alive", "alive")
	// Signals handled here are as they were for a child.
	if out, _ := g.run("/bin/busybox", "grep", "SigIgn", "/proc/self/status"); strings.TrimSpace(out) != "SigIgn:\t0000000000000000" {
		t.Errorf("ignored in a child: %q", out)
	}
	g.exec(proto.ExecRequest{Args: []string{"/bin/busybox", "poweroff"}, Detach: true})
	g.gone()
	checkClean(t, g.layer)
}

func TestPowerButton(t *testing.T) {
	needGuest(t)
	g := start(t, guestOptions{image: busyboxImage(t, nil), config: config()})
	g.ready()
	eventually(t, "the button's driver is there", func() bool {
		_, code := g.run(sh, "-c", "busybox grep -q '^evdev ' /proc/modules && [ -e /dev/input/event0 ]")
		return code == 0
	})
	time.Sleep(time.Second) // the driver is there, the watcher is about to be
	g.press()
	g.gone()
	checkClean(t, g.layer)
}

// An identity given to a running machine, as a fork gets it.
func TestForkIdentity(t *testing.T) {
	needGuest(t)
	image := busyboxImage(t, map[string]string{
		"etc/sietch/fork.d/10-note":  "#!/bin/sh\necho \"$SIETCH_HOSTNAME $(busybox hostname)\" > /root/hook\n",
		"etc/sietch/fork.d/20-fails": "#!/bin/sh\n[ ! -e /root/fail ]\n",
	})
	g := start(t, guestOptions{image: image, config: config()})
	g.ready()
	before, _ := g.run("/bin/busybox", "sh", "-c", "busybox head -c 16 /dev/urandom | busybox md5sum")
	id := proto.Identity{
		Hostname: "twin", MachineID: strings.Repeat("ab", 16), BootID: "99999999-2222-4333-8444-555555555555",
		Entropy: []byte(strings.Repeat("e", 64)), Fork: true, Time: time.Now().Add(time.Hour),
	}
	ctx, cancel := context.WithTimeout(context.Background(), bootLimit)
	defer cancel()
	if err := g.Identify(ctx, id); err != nil {
		t.Fatalf("identify: %v", err)
	}
	g.want("busybox hostname", "twin")
	g.want("busybox cat /etc/hostname /etc/machine-id /proc/sys/kernel/random/boot_id", "twin\n"+id.MachineID+"\n"+id.BootID)
	g.want("busybox grep -c box /etc/hosts || true", "0")
	g.want("busybox cat /root/hook", "twin twin")
	if after, _ := g.run("/bin/busybox", "sh", "-c", "busybox head -c 16 /dev/urandom | busybox md5sum"); after == before {
		t.Error("the same random bytes twice")
	}
	g.run("/bin/busybox", "touch", "/root/fail")
	if err := g.Identify(ctx, id); err == nil || !strings.Contains(err.Error(), "20-fails: exit code 1") {
		t.Errorf("identify with a failing hook: %v", err)
	}
	id.Entropy = nil
	if err := g.Identify(ctx, id); err == nil || !strings.Contains(err.Error(), "entropy") {
		t.Errorf("identify without entropy: %v", err)
	}
}

// An image of one static program: no shell, no /etc, no /dev, nothing.
func TestScratchImage(t *testing.T) {
	needGuest(t)
	dir := t.TempDir()
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, "hello"), "./testdata/hello")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	image := filepath.Join(t.TempDir(), "image.ext4")
	makeExt4(t, image, dir, 16<<20)

	g := start(t, guestOptions{image: image, config: config("/hello", "wait")})
	if st := g.ready(); !st.Main.Running {
		t.Errorf("main status %+v", st.Main)
	}
	out, code := g.run("/hello")
	if want := "hello from box, uid 0, home /, dns nameserver 169.254.77.1\n"; out != want || code != 0 {
		t.Errorf("got %q, code %d; want %q", out, code, want)
	}
	if _, code := g.run("/no/such/program"); code != 127 {
		t.Errorf("code %d, want 127", code)
	}
	g.powerOff()
	checkClean(t, g.layer)
}

// What cannot work is said, and the machine can be looked into.
func TestMainProcessThatCannotStart(t *testing.T) {
	needGuest(t)
	image := busyboxImage(t, map[string]string{"etc/text": "no program\n"})
	for _, c := range []struct {
		name string
		args []string
		user string
		code int
		says string
	}{
		{"not found", []string{"nowhere"}, "", 127, "nowhere: command not found"},
		{"a directory", []string{"/etc"}, "", 126, "/etc: is a directory"},
		{"unknown user", []string{"sh"}, "harkonnen", 126, "no such user"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf := config(c.args...)
			conf.User = c.user
			g := start(t, guestOptions{image: image, config: conf})
			g.ready()
			var st proto.Status
			eventually(t, "main process has ended", func() bool {
				var err error
				st, err = g.Status(context.Background())
				return err == nil && !st.Main.Running
			})
			if st.Main.ExitCode == nil || *st.Main.ExitCode != c.code {
				t.Errorf("main status %+v, want code %d", st.Main, c.code)
			}
			eventually(t, "a reason in the log", func() bool { return strings.Contains(g.mainLog(), c.says) })
		})
	}
}

func TestFatal(t *testing.T) {
	needGuest(t)
	notAFileSystem := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(notAFileSystem, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(notAFileSystem, 8<<20); err != nil {
		t.Fatal(err)
	}
	g := start(t, guestOptions{image: notAFileSystem, config: config()})
	g.gone()
	if !strings.Contains(g.console(), "sietch: fatal: mount image /dev/vda:") {
		t.Error("the console does not say why")
	}
}

func TestNoNetwork(t *testing.T) {
	needGuest(t)
	c := config()
	c.Network = false
	g := start(t, guestOptions{image: busyboxImage(t, nil), config: c})
	g.ready()
	g.want("busybox ip route", "169.254.77.0/30 dev eth0 scope link  src 169.254.77.2")
	g.want("busybox cat /etc/resolv.conf", "")
}

// The layer of a stopped machine carries on, and so does one that was not
// stopped but cut off.
func TestColdStartOnAUsedLayer(t *testing.T) {
	needGuest(t)
	image := busyboxImage(t, nil)
	g := start(t, guestOptions{image: image, config: config()})
	g.ready()
	g.want("echo one > /root/note; busybox rm /var/lib/misc/nested; busybox sync; echo ok", "ok")
	g.qemu.Process.Kill()
	<-g.ended

	again := start(t, guestOptions{image: image, layer: g.layer, config: config()})
	again.ready()
	again.want("busybox cat /root/note; busybox ls /var/lib/misc", "one")
	again.powerOff()
	checkClean(t, g.layer)
}

// systemd as process 1, with the agent beside it.
func TestInitSystem(t *testing.T) {
	needGuest(t)
	if testing.Short() {
		t.Skip("makes a Debian image with systemd")
	}
	tree := filepath.Join(t.TempDir(), "debian")
	make := exec.Command("mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", "--include=systemd,systemd-sysv,dbus", "bookworm", tree)
	if out, err := make.CombinedOutput(); err != nil {
		t.Fatalf("mmdebstrap: %v\n%s", err, out)
	}
	image := filepath.Join(t.TempDir(), "image.ext4")
	makeExt4(t, image, tree, 1<<30)
	os.RemoveAll(tree)

	c := config("/sbin/init")
	c.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	c.Init = true
	g := start(t, guestOptions{image: image, config: c, memory: 768})
	if st := g.ready(); !st.Main.Running || st.Main.PID != 1 {
		t.Errorf("main status %+v, want process 1", st.Main)
	}
	// The machine answers before it hands process 1 over.
	eventually(t, "systemd is process 1", func() bool {
		out, _ := g.run("readlink", "/proc/1/exe")
		return strings.TrimSpace(out) == "/usr/lib/systemd/systemd"
	})
	eventually(t, "systemd is up", func() bool {
		out, _ := g.run("systemctl", "is-system-running")
		return strings.HasPrefix(out, "running") || strings.HasPrefix(out, "degraded")
	})
	out, _ := g.run("systemctl", "--failed", "--no-legend", "--plain")
	t.Logf("failed units: %q", out)
	g.want("cat /etc/machine-id", c.Identity.MachineID)
	g.want("cat /proc/self/cgroup", "0::/sietch")
	g.want("systemctl daemon-reload && systemctl daemon-reexec && echo ok", "ok")
	g.want("readlink /proc/1/exe; hostname", "/usr/lib/systemd/systemd\nbox")
	g.want("grep -c -m1 169.254.77.2 /proc/net/fib_trie", "1")
	// The id is still ours to change.
	id := c.Identity
	id.MachineID, id.Fork, id.Time = strings.Repeat("cd", 16), true, time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), bootLimit)
	defer cancel()
	if err := g.Identify(ctx, id); err != nil {
		t.Errorf("identify: %v", err)
	}
	g.want("cat /etc/machine-id", id.MachineID)
	g.powerOff()
	if !strings.Contains(g.console(), "sietch: power off") {
		t.Error("the machine did not end in our way")
	}
	t.Logf("console ends with %q", lastLines(g.console(), 3))
	checkClean(t, g.layer)
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
