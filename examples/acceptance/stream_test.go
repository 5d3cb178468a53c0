package acceptance

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/examples/small"
)

// TestBuildFromStream: a context on stdin gives the image that its directory
// gives, and leaves nothing behind.
func TestBuildFromStream(t *testing.T) {
	r := apart(t)
	dir := t.TempDir()
	if err := small.WriteContext(dir); err != nil {
		t.Fatal(err)
	}
	want := r.ok(t, "build", "--progress", "quiet", dir)
	for _, flags := range [][]string{{"-c"}, {"-cz"}} {
		archive, err := exec.Command("tar", append(flags, "-C", dir, ".")...).Output()
		if err != nil {
			t.Fatal(err)
		}
		res := r.tryInput(t, archive, "build", "--progress", "quiet", "-t", "streamed", "-")
		if res.code != 0 || strings.TrimSpace(res.stdout) != want {
			t.Errorf("tar %v: want image %s: %s", flags, want, res)
		}
	}
	evil := filepath.Join(t.TempDir(), "evil")
	if err := os.MkdirAll(evil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/shadow", filepath.Join(evil, "Dockerfile")); err != nil {
		t.Fatal(err)
	}
	archive, err := exec.Command("tar", "-c", "-C", evil, ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	res := r.tryInput(t, archive, "build", "-")
	if res.code != 2 || strings.Contains(res.stderr, "root:") {
		t.Errorf("a Dockerfile that is a link to a file of the host: %s", res)
	}
	if left, _ := filepath.Glob(r.dir + "/tmp/build-*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	r.ok(t, "image", "rm", "streamed")
}

// TestUnknownUser: a sandbox whose processes nobody could run is not made.
func TestUnknownUser(t *testing.T) {
	r := shared(t)
	name := fresh("box")
	r.fails(t, 2, []string{"nosuch", "no such user"}, "run", "--name", name, "--memory", "256M", "--disk", "256M", "-u", "nosuch", "small")
	r.fails(t, 3, []string{name}, "inspect", name)
}

// TestSparseCopy: holes are not sent, and are holes at the other end.
func TestSparseCopy(t *testing.T) {
	r := apart(t)
	name := r.runSmall(t)
	defer r.remove(t, name)
	dir := t.TempDir()
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	const size = 512 << 20
	f, err := os.Create(src)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{0, size / 2} {
		if _, err := f.WriteAt([]byte("here"), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	f.Close()
	began := time.Now()
	r.ok(t, "cp", src, name+":/root/f")
	t.Logf("%d MiB of holes in: %.1f s", size>>20, time.Since(began).Seconds())
	// The disk has half of that.
	if got := r.in(t, name, "stat -c %s /root/f; dd if=/root/f bs=4 count=1 skip=67108864 2>/dev/null"); got != "536870912\nhere" {
		t.Errorf("in the guest: got %q", got)
	}
	began = time.Now()
	r.ok(t, "cp", name+":/root/f", dst)
	t.Logf("%d MiB of holes out: %.1f s", size>>20, time.Since(began).Seconds())
	if out, err := exec.Command("cmp", src, dst).CombinedOutput(); err != nil {
		t.Errorf("came back different: %v %s", err, out)
	}
	st, err := os.Stat(dst)
	if err != nil {
		t.Fatal(err)
	}
	if used := st.Sys().(*syscall.Stat_t).Blocks * 512; used > 4<<20 {
		t.Errorf("%d bytes on disk of %d", used, st.Size())
	}
}
