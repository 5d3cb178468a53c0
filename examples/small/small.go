// Package small writes the build context of a tiny image: BusyBox and the probe,
// and nothing else. It needs no base image and no network, so what is tested or
// measured with it is sietch.
package small

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const dockerfile = `FROM scratch
COPY root/ /
ENV PATH=/bin HOME=/root
WORKDIR /root
CMD ["/bin/probe", "serve"]
`

// WriteContext fills dir, which exists, with a Dockerfile and what it copies.
// The host must have a static busybox and a go command that reaches this module
// from the working directory.
func WriteContext(dir string) error {
	root := filepath.Join(dir, "root")
	for _, d := range []string{"bin", "etc", "tmp", "root", "proc", "sys", "dev", "run", "mnt"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return fmt.Errorf("write build context: %w", err)
		}
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return fmt.Errorf("find static busybox: %w", err)
	}
	if err := run("cp", busybox, filepath.Join(root, "bin/busybox")); err != nil {
		return err
	}
	applets, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return fmt.Errorf("list applets of busybox: %w", err)
	}
	for _, a := range strings.Fields(string(applets)) {
		if a == "busybox" {
			continue
		}
		if err := os.Symlink("busybox", filepath.Join(root, "bin", a)); err != nil {
			return fmt.Errorf("write build context: %w", err)
		}
	}
	if err := run("go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(root, "bin/probe"), "github.com/sietch-dev/sietch/examples/probe"); err != nil {
		return err
	}
	for name, text := range map[string]string{
		"root/etc/passwd":     "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
		"root/etc/group":      "root:x:0:\nnogroup:x:65534:\n",
		"root/etc/machine-id": "",
		"root/etc/hostname":   "unset\n",
		"root/etc/motd":       "of the image\n",
		"Dockerfile":          dockerfile,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("write build context: %w", err)
		}
	}
	return nil
}

func run(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}
