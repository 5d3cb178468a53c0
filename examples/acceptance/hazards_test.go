package acceptance

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestForksShareNoDisk is hazard 1: what was written without a sync is in every
// copy, and what a copy writes is in no other, at any depth of history.
func TestForksShareNoDisk(t *testing.T) {
	r := apart(t)
	const depth = 5
	name := r.runSmall(t)
	written := map[string]string{}
	for i := 1; i <= depth; i++ {
		file := fmt.Sprintf("/root/depth%d", i)
		written[file] = r.in(t, name, fmt.Sprintf("dd if=/dev/urandom of=%s bs=64k count=32 2>/dev/null; md5sum < %s", file, file))
		c := r.commit(t, name, fmt.Sprint("depth ", i))
		copies := 1
		if i == depth {
			copies = 8
		}
		forks := r.fork(t, copies, c.ID)
		own := map[string]string{}
		var all []string
		for _, f := range forks {
			all = append(all, f.Name)
			for file, want := range written {
				if got := r.in(t, f.Name, "md5sum < "+file); got != want {
					t.Errorf("depth %d: %s in %s has checksum %q, want %q", i, file, f.Name, got, want)
				}
			}
			own[f.Name] = r.in(t, f.Name, fmt.Sprintf("dd if=/dev/urandom of=%s bs=64k count=32 2>/dev/null; md5sum < %s", file, file))
		}
		for _, f := range forks {
			if got := r.in(t, f.Name, "md5sum < "+file); got != own[f.Name] {
				t.Errorf("depth %d: what %s wrote itself reads %q, want %q", i, f.Name, got, own[f.Name])
			}
			for other, sum := range own {
				if other != f.Name && sum == own[f.Name] {
					t.Errorf("depth %d: %s and %s wrote the same random bytes", i, f.Name, other)
				}
			}
		}
		for file, want := range written {
			// Past the page cache, as it lies on the disk.
			if got := r.in(t, name, "sync; echo 3 > /proc/sys/vm/drop_caches; md5sum < "+file); got != want {
				t.Errorf("depth %d: %s in the source has checksum %q, want %q", i, file, got, want)
			}
		}
		if i == 1 || i == depth {
			r.cleanLayers(t, all...)
		}
		r.remove(t, all...)
	}
	r.cleanLayers(t, name)
	r.remove(t, name)
}

// TestChain is hazard 2: a restored machine can be committed, again and again,
// with a large buffer intact, part of it never touched since the restore.
func TestChain(t *testing.T) {
	r := apart(t)
	steps := 6
	if s := os.Getenv("SIETCH_TEST_CHAIN"); s != "" {
		var err error
		if steps, err = strconv.Atoi(s); err != nil {
			t.Fatalf("SIETCH_TEST_CHAIN: %v", err)
		}
	}
	name := r.runSmall(t)
	sum := r.probe(t, name, "fill", "64")[0]
	check := func(step int, when, box string) {
		t.Helper()
		got := r.probe(t, box, "sum")
		if got[0] != sum || got[1] != sum {
			t.Fatalf("step %d, %s: buffer has checksum %v, want %s", step, when, got, sum)
		}
	}
	parent := r.commit(t, name, "step 0").ID
	for i := 1; i <= steps; i++ {
		r.ok(t, "checkout", "--no-save", name, parent)
		// A commit right after a restore: hardly a page was touched.
		early := r.commit(t, name, fmt.Sprintf("step %d, right after restore", i))
		if early.Memory.ChangedBytes > 64<<20 {
			t.Errorf("step %d: commit right after restore says %d MiB changed", i, early.Memory.ChangedBytes>>20)
		}
		r.ok(t, "checkout", "--no-save", name, early.ID)
		check(i, "after restoring a commit of a restored machine", name)
		sum = r.probe(t, name, "dirty", "4")[0]
		parent = r.commit(t, name, fmt.Sprintf("step %d", i)).ID
	}
	r.ok(t, "checkout", "--no-save", name, parent)
	check(steps, "at the end", name)
	log := query[[]commitInfo](t, r, "log", name)
	if want := 1 + 2*steps; len(log) != want {
		t.Errorf("log has %d commits, want %d", len(log), want)
	}
	// From the end of the chain: the name alone is the branch, which stayed behind
	// when another commit was checked out.
	old := r.fork(t, 1, fmt.Sprintf("%s~%d", parent, 2*steps))[0]
	if got := r.probe(t, old.Name, "sum"); got[0] != got[1] || got[0] == sum {
		t.Errorf("the first commit's buffer has checksums %v; the last one's is %s", got, sum)
	}
	r.remove(t, name, old.Name)
	r.ok(t, "fsck")
}

// TestClock is hazard 4: a machine from the past knows what time it is at its
// first exec, and its monotonic clock goes on without a leap.
func TestClock(t *testing.T) {
	r := shared(t)
	name := r.runSmall(t)
	read := func(box string) (wall time.Time, since time.Duration, asked, answered time.Time) {
		t.Helper()
		asked = time.Now()
		f := r.probe(t, box, "clock")
		answered = time.Now()
		w, err1 := strconv.ParseInt(f[0], 10, 64)
		s, err2 := strconv.ParseInt(f[1], 10, 64)
		if err1 != nil || err2 != nil {
			t.Fatalf("clock answers %v", f)
		}
		return time.Unix(0, w), time.Duration(s), asked, answered
	}
	_, sinceBefore, _, _ := read(name)
	committed := time.Now()
	c := r.commit(t, name, "a while ago")
	// Longer than any tolerance below; `date` set back would show as this much.
	away := within(10 * time.Second)
	time.Sleep(away - min(time.Since(committed), away*9/10))
	fork := r.fork(t, 1, c.ID)[0]
	wall, since, asked, answered := read(fork.Name)
	if wall.Before(asked.Add(-time.Second)) || wall.After(answered.Add(time.Second)) {
		t.Errorf("guest clock says %s; the host's said %s to %s", wall, asked, answered)
	}
	if since < sinceBefore {
		t.Errorf("monotonic clock went back from %s to %s", sinceBefore, since)
	}
	if leap := since - sinceBefore; leap > away*8/10 {
		t.Errorf("monotonic clock leapt by %s over a restore; the machine stood still meanwhile", leap)
	}
	r.remove(t, name, fork.Name)
}

// TestIdentity is hazard 5: copies do not share what must be unique, and the
// source's running process draws other random bytes in each of them.
func TestIdentity(t *testing.T) {
	r := apart(t)
	name := r.runSmall(t)
	c := r.commit(t, name, "one")
	forks := r.fork(t, 8, c.ID)
	names := []string{name}
	for _, f := range forks {
		names = append(names, f.Name)
	}
	for what, line := range map[string]string{
		"random bytes": "probe random",
		"hostname":     "hostname",
		"machine id":   "cat /etc/machine-id",
		"boot id":      "cat /proc/sys/kernel/random/boot_id",
	} {
		seen := map[string]string{}
		for _, box := range names {
			got := r.in(t, box, line)
			if got == "" {
				t.Errorf("%s of %s is empty", what, box)
			}
			if other, twice := seen[got]; twice {
				t.Errorf("%s and %s have the same %s: %s", box, other, what, got)
			}
			seen[got] = box
		}
	}
	for _, box := range names {
		if got := r.in(t, box, "hostname"); !strings.EqualFold(got, box) {
			t.Errorf("hostname in %s: got %s", box, got)
		}
	}
	r.remove(t, names...)
}

// TestPrivateData is hazard 22: nobody but root reads what a machine remembered.
func TestPrivateData(t *testing.T) {
	r := shared(t)
	name := r.runSmall(t)
	r.commit(t, name, "secret")
	defer r.remove(t, name)
	checkPrivate(t, r.dir)
}
