package qemu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sietch-dev/sietch/runtime/vmm"
	"github.com/sietch-dev/sietch/runtime/vmm/process"
)

// QEMU gives up its user and its root directory itself, once it has opened its
// files. Where the kernel has Landlock it is held from its first instruction to
// what a machine needs: its own files, and to read what QEMU is installed with.
// That also holds should it find a way out of its root directory later.

// jailRoot is the empty directory a jailed QEMU lives in.
func jailRoot(runDir string) string { return filepath.Join(runDir, "root") }

// makeJail makes what QEMU is jailed with. The files that QEMU would make are
// there afterwards: it may write to files, not make any.
func makeJail(s vmm.Spec, h *findings) (*process.Jail, error) {
	if err := os.Mkdir(jailRoot(s.RunDir), 0o555); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("make root directory of QEMU: %w", err)
	}
	files := process.Files{
		Run: append(installation(h.binary), programTrees...),
		// A kernel's own files: of another process they show nothing, Landlock sees
		// to that.
		Read:    []string{"/proc", "/sys", "/dev/urandom", "/dev/random", s.MemoryFile},
		Write:   []string{"/dev/null"},
		Control: []string{"/dev/kvm"},
	}
	files.Read = append(files.Read, libraryFiles...)
	if !h.atLeast(8, 2) {
		files.Write = append(files.Write, s.MemoryFile) // mapped privately, and opened to be written
	}
	if s.Restore == nil {
		files.Read = append(files.Read, s.Kernel)
		if s.Initramfs != "" {
			files.Read = append(files.Read, s.Initramfs)
		}
	}
	for _, d := range s.Disks {
		if d.ReadOnly {
			files.Read = append(files.Read, d.Path)
		} else {
			files.Write = append(files.Write, d.Path)
		}
	}
	for _, path := range []string{s.ConsoleLog, s.MainLog, filepath.Join(s.RunDir, pidName)} {
		f, err := openLog(path)
		if err != nil {
			return nil, err
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
		files.Write = append(files.Write, path)
	}
	return &process.Jail{Cgroups: s.Jail.Cgroups, Files: files, Deny: unused}, nil
}

// unused are system calls that QEMU would make use of if it could, and does
// without as well (see diskAIO).
var unused = []string{"io_uring_setup", "io_uring_enter", "io_uring_register"}

// programTrees are where distributions install QEMU and its libraries.
var programTrees = []string{"/usr", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/gnu/store"}

// libraryFiles are what the C library and others look things up in.
var libraryFiles = []string{"/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/localtime",
	"/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/gnutls", "/etc/ssl/openssl.cnf"}

// installation is what a QEMU that was installed elsewhere brings along: it looks
// for its firmware beside itself.
func installation(binary string) []string {
	if real, err := filepath.EvalSymlinks(binary); err == nil {
		binary = real
	}
	dir := filepath.Dir(binary)
	dirs := []string{binary, filepath.Join(dir, "pc-bios"), filepath.Join(dir, "qemu-bundle")}
	for _, beside := range []string{"share", "lib", "lib64", "libexec"} {
		dirs = append(dirs, filepath.Join(filepath.Dir(dir), beside))
	}
	return dirs
}
