package main

import (
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// runTest runs a program of the initramfs, a test binary, so that tests of what
// depends on the kernel can be run on another one than the host's.
func runTest(program string) error {
	for _, dir := range []string{"/tmp", "/sys"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("tmp", "/tmp", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount /tmp: %w", err)
	}
	cmd := exec.Command(program, "-test.v", "-test.short", "-test.run="+option("tests"))
	cmd.Env = []string{"PATH=/", "TMPDIR=/tmp", "HOME=/tmp"}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err := cmd.Run()
	fmt.Println("test ended:", err)
	return err
}
