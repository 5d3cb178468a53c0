package builder

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sweepEngine clears away what a killed engine process left below root: running
// build steps, mounts and temporary directories. It needs no record of them: the
// steps are the directories of the executor, the mounts are in the kernel's
// table. The caller holds the engine lock, so nothing of it is in use.
func sweepEngine(ctx context.Context, root string) error {
	steps, err := filepath.Glob(filepath.Join(root, "runc-*", "executor", "*", "config.json"))
	if err != nil {
		return fmt.Errorf("sweep build steps: %w", err)
	}
	for _, config := range steps {
		deleteStep(ctx, filepath.Base(filepath.Dir(config)))
	}
	if err := unmountBelow(root); err != nil {
		return err
	}
	// Only now that nothing is mounted below them.
	bundles, err := filepath.Glob(filepath.Join(root, "runc-*", "executor", "*", "rootfs"))
	if err != nil {
		return fmt.Errorf("sweep build steps: %w", err)
	}
	leftovers := []string{filepath.Join(root, "tmp")}
	for _, rootfs := range bundles {
		leftovers = append(leftovers, filepath.Dir(rootfs))
	}
	for _, dir := range leftovers {
		if err := removeUnmounted(dir); err != nil {
			return fmt.Errorf("sweep build steps: %w", err)
		}
	}
	return nil
}

// deleteStep kills the processes of a build step and removes its container.
// runc fails when there is none any more, which is as well.
func deleteStep(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if runc, err := findTool("runc"); err == nil {
		_ = exec.CommandContext(ctx, runc, "delete", "--force", id).Run()
	}
}

// unmountBelow unmounts whatever is mounted below dir, the last one first.
func unmountBelow(dir string) error {
	points, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	for i := len(points) - 1; i >= 0; i-- {
		if err := unix.Unmount(points[i], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", points[i], err)
		}
	}
	return nil
}

// mountsBelow lists the mount points below dir in the order they were made.
func mountsBelow(dir string) ([]string, error) {
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	defer f.Close()
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var out []string
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		if p := unescape.Replace(fields[4]); strings.HasPrefix(p, real+"/") {
			out = append(out, p)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return out, nil
}

// removeUnmounted deletes a directory unless something is still mounted below
// it, in which case deleting would reach into that.
func removeUnmounted(dir string) error {
	points, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	if len(points) > 0 {
		return fmt.Errorf("%s is still mounted", points[0])
	}
	return removeTree(dir)
}
