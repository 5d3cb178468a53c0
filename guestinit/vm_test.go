package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/builder/guestboot"
	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/runtime/agent"
)

// bootLimit is what one guest gets on a host that does much else.
const bootLimit = 3 * time.Minute

// parts are made once for all tests of a run: this program as a guest runs it,
// and a kernel with its initramfs.
var parts = sync.OnceValues(func() (guestboot.Guest, error) {
	elf := filepath.Join(work, "guestinit")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", elf, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := build.CombinedOutput(); err != nil {
		return guestboot.Guest{}, fmt.Errorf("build guestinit: %w\n%s", err, out)
	}
	b, err := os.ReadFile(elf)
	if err != nil {
		return guestboot.Guest{}, err
	}
	kernel := filepath.Join(work, "kernel")
	if dir := os.Getenv("SIETCH_TEST_DIR"); dir != "" {
		kernel = filepath.Join(dir, "guestinit-kernel")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	return guestboot.Ensure(ctx, guestboot.Options{Dir: kernel, InitELF: b})
})

// work is a directory of this run.
var work string

func TestMain(m *testing.M) {
	var err error
	if work, err = os.MkdirTemp("", "sietch-guestinit-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(work)
	os.Exit(code)
}

// guest is a running machine with its agent's client.
type guest struct {
	*agent.Client
	t        *testing.T
	dir      string
	layer    string
	qemu     *exec.Cmd
	monitor  string
	ended    chan struct{}
	endError error
}

// guestOptions of start.
type guestOptions struct {
	image  string // ext4
	layer  string // ext4; empty makes a fresh one
	config proto.Config
	cpus   int
	memory int // MiB
	noCard bool
}

// start boots a machine in a network namespace of its own. It is gone at the
// end of the test.
func start(t *testing.T, o guestOptions) *guest {
	t.Helper()
	parts, err := parts()
	if err != nil {
		t.Fatal(err)
	}
	g := &guest{t: t, dir: t.TempDir(), ended: make(chan struct{}), layer: o.layer}
	if g.layer == "" {
		g.layer = filepath.Join(g.dir, "layer.img")
		makeExt4(t, g.layer, "", 512<<20)
	}
	o.config.Version = proto.Version
	id := &o.config.Identity
	if id.Time.IsZero() {
		id.Hostname, id.Time, id.Entropy = o.config.Hostname, time.Now(), bytes.Repeat([]byte{7}, 64)
	}
	config, err := json.Marshal(o.config)
	if err != nil {
		t.Fatal(err)
	}
	initramfs := filepath.Join(g.dir, "initramfs")
	if err := guestboot.WithConfig(parts.Initramfs, initramfs, config); err != nil {
		t.Fatal(err)
	}
	g.monitor = filepath.Join(g.dir, "monitor")
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "microvm,acpi=on,pcie=off,usb=off,auto-kernel-cmdline=off",
		"-global", "virtio-mmio.force-legacy=false",
		"-accel", "tcg,thread=multi", "-cpu", "max",
		"-smp", strconv.Itoa(max(o.cpus, 1)), "-m", strconv.Itoa(max(o.memory, 512)),
		"-kernel", parts.Kernel, "-initrd", initramfs, "-append", "console=ttyS0 " + parts.Cmdline,
		"-serial", "file:" + g.path("console.log"),
		"-chardev", "socket,id=monitor,path=" + g.monitor + ",server=on,wait=off", "-mon", "chardev=monitor,mode=readline",
		"-drive", "if=none,id=image,format=raw,readonly=on,file=" + o.image, "-device", "virtio-blk-device,drive=image,serial=" + proto.ImageDisk,
		"-drive", "if=none,id=layer,format=raw,file=" + g.layer, "-device", "virtio-blk-device,drive=layer,serial=" + proto.LayerDisk,
		"-device", "virtio-serial-device", "-chardev", "file,id=main,path=" + g.path("main.log"), "-device", "virtconsole,chardev=main",
		"-device", "virtio-rng-device",
	}
	ns := newNamespace(t)
	g.qemu = exec.Command("qemu-system-x86_64", args...)
	if !o.noCard {
		var tap *os.File
		if err := ns.run(func() (err error) { tap, err = makeTap(); return err }); err != nil {
			t.Fatal(err)
		}
		defer tap.Close()
		g.qemu.ExtraFiles = []*os.File{tap}
		g.qemu.Args = append(g.qemu.Args, "-netdev", "tap,id=net,fd=3", "-device", "virtio-net-device,netdev=net,mac="+proto.GuestMAC)
	}
	var said bytes.Buffer
	g.qemu.Stderr = &said
	if err := g.qemu.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		g.endError = g.qemu.Wait()
		close(g.ended)
	}()
	t.Cleanup(func() {
		g.qemu.Process.Kill()
		<-g.ended
		if t.Failed() {
			t.Logf("QEMU said:\n%s\nconsole:\n%s\nmain process:\n%s", said.String(), g.console(), g.mainLog())
		}
	})
	g.Client = agent.New(agent.Options{Dial: func(ctx context.Context) (nc net.Conn, err error) {
		err = ns.run(func() (err error) {
			d := net.Dialer{Timeout: time.Second}
			nc, err = d.DialContext(ctx, "tcp4", net.JoinHostPort(proto.GuestAddr, strconv.Itoa(proto.Port)))
			return err
		})
		return nc, err
	}})
	t.Cleanup(func() { g.Client.Close() })
	return g
}

func (g *guest) path(name string) string { return filepath.Join(g.dir, name) }

func (g *guest) console() string {
	b, _ := os.ReadFile(g.path("console.log"))
	return string(b)
}

func (g *guest) mainLog() string {
	b, _ := os.ReadFile(g.path("main.log"))
	return string(b)
}

// ready waits until the agent answers.
func (g *guest) ready() proto.Status {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bootLimit)
	defer cancel()
	go func() {
		select {
		case <-g.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	st, err := g.WaitReady(ctx, 0)
	if err != nil {
		g.t.Fatalf("guest did not become ready: %v", err)
	}
	return st
}

// run executes a command and returns its output and code.
func (g *guest) run(args ...string) (string, int) {
	g.t.Helper()
	return g.exec(proto.ExecRequest{Args: args})
}

func (g *guest) exec(r proto.ExecRequest) (string, int) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bootLimit)
	defer cancel()
	var out bytes.Buffer
	st, err := g.Exec(ctx, r, agent.IO{Stdout: &out, Stderr: &out})
	if err != nil {
		g.t.Fatalf("exec %v: %v", r.Args, err)
	}
	return out.String() + st.Error, st.Code
}

// want runs a shell command whose output must be as given.
func (g *guest) want(shell, want string) {
	g.t.Helper()
	got, code := g.run("/bin/sh", "-c", shell)
	if strings.TrimSpace(got) != want || code != 0 {
		g.t.Errorf("%s: got %q, code %d; want %q", shell, got, code, want)
	}
}

// gone waits for the machine's end, which must be a clean one.
func (g *guest) gone() {
	g.t.Helper()
	select {
	case <-g.ended:
		if g.endError != nil {
			g.t.Fatalf("virtual machine: %v", g.endError)
		}
	case <-time.After(bootLimit):
		g.t.Fatal("the machine did not end")
	}
}

// powerOff asks for power off and waits for the end.
func (g *guest) powerOff() {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bootLimit)
	defer cancel()
	if err := g.Shutdown(ctx); err != nil {
		g.t.Fatalf("ask for power off: %v", err)
	}
	g.gone()
}

// press presses the power button of the machine.
func (g *guest) press() {
	g.t.Helper()
	nc, err := net.Dial("unix", g.monitor)
	if err != nil {
		g.t.Fatal(err)
	}
	defer nc.Close()
	if _, err := io.WriteString(nc, "system_powerdown\n"); err != nil {
		g.t.Fatal(err)
	}
	nc.SetReadDeadline(time.Now().Add(time.Second))
	io.Copy(io.Discard, nc)
}

// eventually waits for something to become true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(bootLimit); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}
