package process

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// attempts are what a process tries whose files are restricted. since is the
// version of Landlock from which on it fails, 0 if it never does.
var attempts = []struct {
	what  string
	since int
	do    func(dir string) error
}{
	{"read what may be read", 0, func(dir string) error { return read(dir + "/read/file") }},
	{"read a directory", 0, func(dir string) error { return list(dir + "/read") }},
	{"write what may be read", 1, func(dir string) error { return write(dir + "/read/file") }},
	{"read what may be written", 0, func(dir string) error { return read(dir + "/write") }},
	{"write what may be written", 0, func(dir string) error { return write(dir + "/write") }},
	{"truncate what may be written", 0, func(dir string) error { return os.Truncate(dir+"/write", 0) }},
	{"truncate what may be read", 3, func(dir string) error { return os.Truncate(dir+"/read/file", 0) }},
	{"make a file", 0, func(dir string) error { return write(dir + "/make/new") }},
	{"remove a file", 0, func(dir string) error { return os.Remove(dir + "/make/new") }},
	{"make a directory", 1, func(dir string) error { return os.Mkdir(dir+"/make/dir", 0o700) }},
	{"make a file elsewhere", 1, func(dir string) error { return write(dir + "/read/new") }},
	{"remove a file elsewhere", 1, func(dir string) error { return os.Remove(dir + "/read/other") }},
	{"read another file", 1, func(dir string) error { return read(dir + "/secret") }},
	{"read another directory", 1, func(dir string) error { return list(dir) }},
	{"run what may be read", 1, func(dir string) error { return exec.Command(dir + "/read/program").Run() }},
	{"run what may be run", 0, func(dir string) error { return exec.Command(dir+"/run/program", "-test.run=^$").Run() }},
	{"control a device", 0, func(string) error { return entropy("/dev/random") }},
	{"control another device", 5, func(string) error { return entropy("/dev/urandom") }},
	{"listen on TCP", 4, func(string) error { return listenTCP() }},
	{"connect by TCP", 4, func(dir string) error { return connectTCP(dir) }},
	{"signal another process", 6, func(string) error { return unix.Kill(os.Getppid(), 0) }},
	{"connect to another's abstract socket", 6, func(dir string) error {
		c, err := net.Dial("unix", "@"+dir)
		if err == nil {
			c.Close()
		}
		return err
	}},
}

func read(path string) error { _, err := os.ReadFile(path); return err }
func list(path string) error { _, err := os.ReadDir(path); return err }

func write(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

func entropy(device string) error {
	f, err := os.Open(device)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = unix.IoctlGetInt(int(f.Fd()), unix.RNDGETENTCNT)
	return err
}

// listenTCP and connectTCP use plain sockets: those of package net may be of
// multipath TCP, which Landlock does not know about.
func listenTCP() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	return unix.Bind(s, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
}

func connectTCP(dir string) error {
	// Linked there, so that it is read without a right to any file.
	to, err := os.Readlink(dir + "/port")
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(to)
	if err != nil {
		return err
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	return unix.Connect(s, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
}

// The test binary takes the part of the VMM.
func init() {
	if len(os.Args) == 3 && os.Args[1] == "attempt" {
		for _, a := range attempts {
			err := a.do(os.Args[2])
			denied := errors.Is(err, os.ErrPermission)
			if err != nil && !denied {
				fmt.Println("error", a.what+":", err)
				os.Exit(1)
			}
			fmt.Println(map[bool]string{true: "denied", false: "done"}[denied], a.what)
		}
		os.Exit(0)
	}
}

// said runs a command to its end, which is a good one, and gives what it wrote to
// its log.
func said(t *testing.T, c Command) string {
	t.Helper()
	out, err := os.Create(c.Log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	c.Stdout, c.Stderr = out, out
	p, err := c.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	wait(t, p)
	if p.Err() != nil {
		t.Fatal(p.Err())
	}
	text, err := os.ReadFile(c.Log)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestLandlock starts a process that tries what its Files allow and what they do
// not, and the same without a jail, which may do everything.
func TestLandlock(t *testing.T) {
	offered := Landlock()
	t.Logf("Landlock: version %d", offered)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, jailed := range []bool{false, true} {
		dir := t.TempDir()
		for _, d := range []string{"read", "make", "run"} {
			if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range []string{"read/file", "read/other", "write", "secret"} {
			if err := os.WriteFile(filepath.Join(dir, f), []byte("text\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		program, err := os.ReadFile(self)
		if err != nil {
			t.Fatal(err)
		}
		for name, data := range map[string][]byte{"run/program": program, "read/program": []byte("#!" + dir + "/run/program -test.run=^$\n")} {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		tcp, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer tcp.Close()
		if err := os.Symlink(strconv.Itoa(tcp.Addr().(*net.TCPAddr).Port), filepath.Join(dir, "port")); err != nil {
			t.Fatal(err)
		}
		abstract, err := net.Listen("unix", "@"+dir)
		if err != nil {
			t.Fatal(err)
		}
		defer abstract.Close()

		c := Command{Cmd: exec.Command(filepath.Join(dir, "run/program"), "attempt", dir), RunDir: dir, Log: filepath.Join(dir, "make", "log")}
		if jailed {
			c.Jail = &Jail{Files: Files{
				Read:    []string{filepath.Join(dir, "read"), filepath.Join(dir, "is not there")},
				Write:   []string{filepath.Join(dir, "write"), "/dev/null", "/dev/urandom"},
				Make:    []string{filepath.Join(dir, "make")},
				Run:     []string{filepath.Join(dir, "run"), "/lib", "/lib64", "/usr/lib", "/etc/ld.so.cache"},
				Control: []string{"/dev/random"},
			}}
		}
		results := map[string]string{}
		for line := range strings.Lines(said(t, c)) {
			result, what, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			results[what] = result
		}
		for _, a := range attempts {
			want := "done"
			if jailed && a.since > 0 && offered >= a.since {
				want = "denied"
			}
			if got := results[a.what]; got != want {
				t.Errorf("jail %t: %s: %q, want %q", jailed, a.what, got, want)
			}
		}
	}
	// Nothing of it stays here.
	if err := read(self); err != nil {
		t.Error(err)
	}
	if err := listenTCP(); err != nil {
		t.Error(err)
	}
}
