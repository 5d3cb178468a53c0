// Command guest is /init of the machines that the contract suite boots. It
// loads the modules of the initramfs, counts (package counter) and reports each
// tick on the serial console, the virtio console and the second disk.
//
// It is linked statically, and needs nothing but the kernel.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime/vmm/vmmtest/counter"
)

func main() {
	err := run()
	fmt.Println("guest ends:", err)
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

func run() error {
	for _, m := range []struct{ what, dir, kind string }{{"dev", "/dev", "devtmpfs"}, {"proc", "/proc", "proc"}} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.what, m.dir, m.kind, 0, ""); err != nil && err != unix.EBUSY {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	console, err := os.OpenFile("/dev/ttyS0", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	os.Stdout, os.Stderr = console, console
	if err := loadModules("/modules"); err != nil {
		return err
	}
	if command := option("run"); command != "" {
		return runTest(command)
	}
	return count(console)
}

// loadModules inserts what the index lists as "module NAME …", in its order, and
// passes over what is there in compressed form only: it is not for booting.
func loadModules(dir string) error {
	index, err := os.ReadFile(dir + "/index")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(index)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "module" {
			continue
		}
		image, err := os.ReadFile(dir + "/" + f[1] + ".ko")
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := unix.InitModule(image, ""); err != nil && err != unix.EEXIST {
			return fmt.Errorf("load module %s: %w", f[1], err)
		}
	}
	return nil
}

// option reads NAME=VALUE from the kernel command line.
func option(name string) string {
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return ""
	}
	for _, word := range strings.Fields(string(line)) {
		if v, ok := strings.CutPrefix(word, "vmmtest."+name+"="); ok {
			return v
		}
	}
	return ""
}

func number(name string, otherwise int) int {
	if n, err := strconv.Atoi(option(name)); err == nil {
		return n
	}
	return otherwise
}

func count(console *os.File) error {
	main, err := os.OpenFile("/dev/hvc0", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	disk, err := openDisk("/dev/vdb")
	if err != nil {
		return err
	}
	size := number("memory", 2<<20)
	last := number("ticks", 0)
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	block := aligned(512)
	for c := counter.Memory(mem); ; time.Sleep(30 * time.Millisecond) {
		c.Step()
		// The disk first: a tick on the console is on the disk.
		binary.LittleEndian.PutUint64(block, c.Tick())
		if _, err := disk.WriteAt(block, 0); err != nil {
			return fmt.Errorf("write disk: %w", err)
		}
		line := c.Report()
		if _, err := main.WriteString(line); err != nil {
			return fmt.Errorf("write virtio console: %w", err)
		}
		if _, err := console.WriteString(line); err != nil {
			return err
		}
		if last > 0 && c.Tick() >= uint64(last) {
			return fmt.Errorf("after %d ticks, as asked", last)
		}
	}
}

// openDisk opens a disk past the guest's page cache.
func openDisk(path string) (*os.File, error) {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT|unix.O_DSYNC, 0)
		if err == nil || time.Now().After(deadline) {
			return f, err
		}
	}
}

// aligned is a buffer that direct I/O accepts.
func aligned(n int) []byte {
	buf := make([]byte, 2*n)
	off := int(-uintptr(unsafe.Pointer(&buf[0])) & uintptr(n-1))
	return buf[off : off+n : off+n]
}
