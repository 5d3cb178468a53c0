package acceptance

import (
	"testing"
)

type statsInfo struct {
	Name, State string
	CPU         struct {
		TimeMS  float64 `json:"time_ms"`
		Limit   float64
		Threads int
	}
	CPUPercent *float64 `json:"cpu_percent"`
	Memory     struct {
		SizeBytes    int64 `json:"size_bytes"`
		LimitBytes   int64 `json:"limit_bytes"`
		RSSBytes     int64 `json:"rss_bytes"`
		PSSBytes     int64 `json:"pss_bytes"`
		SharedBytes  int64 `json:"shared_bytes"`
		PrivateBytes int64 `json:"private_bytes"`
	}
	Guest *struct {
		TotalBytes     int64 `json:"total_bytes"`
		AvailableBytes int64 `json:"available_bytes"`
		HeldBytes      int64 `json:"held_bytes"`
		UptimeMS       int64 `json:"uptime_ms"`
		TxBytes        int64 `json:"tx_bytes"`
	}
}

func (r *repo) stats(t testing.TB, name string) statsInfo {
	t.Helper()
	all := query[[]statsInfo](t, r, "stats", name)
	if len(all) != 1 || all[0].Name != name {
		t.Fatalf("stats %s answers %+v", name, all)
	}
	return all[0]
}

func TestStats(t *testing.T) {
	r := shared(t)
	name := r.runSmall(t)
	c := r.commit(t, name, "base")
	forks := r.fork(t, 2, c.ID)
	paused := forks[1].Name
	r.ok(t, "pause", paused)
	s := r.stats(t, forks[0].Name)
	m := s.Memory
	switch {
	case s.State != "running", s.CPU.TimeMS <= 0, s.CPU.Threads < 1, s.CPUPercent == nil:
		t.Errorf("of the process: %+v", s)
	case m.SizeBytes != 256<<20, m.PrivateBytes <= 0, m.SharedBytes <= 0, m.PSSBytes <= m.PrivateBytes/2, m.PSSBytes >= m.RSSBytes, m.PrivateBytes+m.SharedBytes != m.RSSBytes:
		t.Errorf("of its memory: %+v", m)
	case s.Guest == nil || s.Guest.TotalBytes < 128<<20 || s.Guest.TotalBytes > m.SizeBytes || s.Guest.AvailableBytes > s.Guest.TotalBytes || s.Guest.UptimeMS <= 0 || s.Guest.TxBytes <= 0:
		t.Errorf("of the guest: %+v", s.Guest)
	}
	if p := r.stats(t, paused); p.State != "paused" || p.Guest != nil || p.Memory.RSSBytes == 0 {
		t.Errorf("of a paused one: %+v", p)
	}
	r.ok(t, "stop", name)
	r.fails(t, 1, []string{"is not running"}, "stats", name)
	for _, s := range query[[]statsInfo](t, r, "stats") {
		if s.Name == name {
			t.Errorf("a stopped sandbox is measured: %+v", s)
		}
	}
	r.remove(t, name, forks[0].Name, paused)
}

// Memory that a guest has freed goes back to the host, and neither what it still
// uses nor any commit or fork suffers.
func TestReclaim(t *testing.T) {
	r := apart(t)
	name := r.runSmall(t)
	sum := r.probe(t, name, "fill", "48")[0]
	intact := func(box string) {
		t.Helper()
		if got := r.probe(t, box, "sum"); got[0] != sum || got[1] != sum {
			t.Errorf("the memory of %s is %v, want %s", box, got, sum)
		}
	}
	const churn = "dd if=/dev/urandom of=/dev/shm/x bs=1M count=96 2>/dev/null && rm /dev/shm/x"
	r.in(t, name, churn)
	before := r.stats(t, name)
	r.ok(t, "reclaim", name)
	after := r.stats(t, name)
	if given := before.Memory.PrivateBytes - after.Memory.PrivateBytes; given < 64<<20 {
		t.Errorf("of 96 MiB that were free, %d bytes went back", given)
	}
	if after.Guest == nil || after.Guest.HeldBytes != 0 {
		t.Errorf("the guest did not get its memory back: %+v", after.Guest)
	}
	intact(name)

	// A commit does not hold what was given back, and a fork of it, which maps
	// it, gives back what it has of its own only.
	c := r.commit(t, name, "after")
	if c.Memory.ResidentBytes > 160<<20 {
		t.Errorf("the commit has %d bytes of memory", c.Memory.ResidentBytes)
	}
	fork := r.fork(t, 1, c.ID)[0].Name
	r.in(t, fork, churn)
	r.ok(t, "reclaim", fork)
	r.in(t, fork, churn)
	intact(fork)
	intact(name)
	second := query[commitInfo](t, r, "commit", fork)
	r.ok(t, "checkout", name, second.ID)
	intact(name)
	other := r.fork(t, 1, c.ID)[0].Name
	intact(other)
	r.fails(t, 3, []string{"does not exist"}, "reclaim", "nobody")
	r.remove(t, name, fork, other)
	r.ok(t, "fsck")
}

func TestResize(t *testing.T) {
	r := apart(t)
	name := r.runSmall(t, "--cpus", "2")
	sum := r.probe(t, name, "fill", "16")[0]
	intact := func(box string) {
		t.Helper()
		if got := r.probe(t, box, "sum"); got[0] != sum || got[1] != sum {
			t.Errorf("the memory of %s is %v, want %s", box, got, sum)
		}
	}
	held := func(box string, want int64) {
		t.Helper()
		if s := r.stats(t, box); s.Guest == nil || s.Guest.HeldBytes != want || s.Memory.LimitBytes != 0 && s.Memory.LimitBytes != s.Memory.SizeBytes-want {
			t.Errorf("%s holds %+v of %+v, want %d", box, s.Guest, s.Memory, want)
		}
	}
	const fits = "dd if=/dev/zero of=/dev/shm/x bs=1M count=110 2>&1; rm /dev/shm/x"

	r.ok(t, "resize", "--memory", "160M", "--cpus", "0.5", name)
	held(name, 96<<20)
	intact(name)
	if got := r.stats(t, name); got.CPU.Limit != 0.5 {
		t.Errorf("its CPU limit is %g", got.CPU.Limit)
	}
	checkLimits(t, r.inspect(t, name))

	// A commit, and what comes of it, has the size of its instant.
	c := r.commit(t, name, "small")
	r.ok(t, "resize", "--memory", "256M", "--cpus", "2", name)
	held(name, 0)
	r.in(t, name, fits)
	intact(name)
	fork := r.fork(t, 1, c.ID)[0].Name
	held(fork, 96<<20)
	r.ok(t, "resize", "--memory", "256M", fork)
	held(fork, 0)
	r.in(t, fork, fits)
	intact(fork)
	r.ok(t, "checkout", name, c.ID)
	held(name, 96<<20)
	intact(name)

	// What the guest uses is not taken; nothing has changed then.
	r.ok(t, "resize", "--memory", "256M", name)
	r.in(t, name, "dd if=/dev/zero of=/dev/shm/full bs=1M count=100 2>/dev/null")
	r.fails(t, 1, []string{"uses too much memory", "can spare", "hint:"}, "resize", "--memory", "128M", name)
	held(name, 0)
	intact(name)
	r.fails(t, 2, []string{"was made with 256 MiB"}, "resize", "--memory", "1G", name)
	r.fails(t, 2, []string{"was made with 2 CPUs"}, "resize", "--cpus", "3", name)
	r.fails(t, 2, []string{"less than 128 MiB"}, "resize", "--memory", "64M", name)
	r.ok(t, "pause", name)
	r.fails(t, 1, []string{"is paused", "hint: sietch resume"}, "resize", "--memory", "200M", name)
	r.ok(t, "resume", name)

	// A cold boot has all of its memory.
	r.in(t, name, "rm /dev/shm/full")
	r.ok(t, "resize", "--memory", "200M", name)
	r.ok(t, "stop", name)
	r.ok(t, "start", name)
	held(name, 0)
	if got := r.stats(t, name).Memory.LimitBytes; got != 0 {
		t.Errorf("after a cold boot its limit is %d", got)
	}
	r.remove(t, name, fork)
}

// Memory beyond 3 GiB is elsewhere in the guest's address space, and huge pages
// are taken from there first.
func TestResizeLarge(t *testing.T) {
	r := apart(t)
	name := r.runSmall(t, "--memory", "4G")
	sum := r.probe(t, name, "fill", "16")[0]
	r.ok(t, "resize", "--memory", "4000M", name)
	if s := r.stats(t, name); s.Guest == nil || s.Guest.HeldBytes != 96<<20 {
		t.Errorf("the guest holds %+v", s.Guest)
	}
	fork := r.fork(t, 1, name)[0].Name
	r.ok(t, "resize", "--memory", "4G", fork)
	for _, box := range []string{name, fork} {
		if got := r.probe(t, box, "sum"); got[0] != sum {
			t.Errorf("the memory of %s is %v, want %s", box, got, sum)
		}
	}
	r.remove(t, name, fork)
}

func TestAdmission(t *testing.T) {
	r := apart(t)
	name := r.runSmall(t)
	c := r.commit(t, name, "base")
	r.ok(t, "resize", "--memory", "200M", name)
	stopped := r.fork(t, 1, c.ID)[0].Name
	r.ok(t, "stop", stopped)
	count := len(r.all(t))
	refused := []string{"promised already", "hint: stop some"}
	tight := func(args ...string) []string { return append([]string{"--overcommit", "0.001"}, args...) }
	r.fails(t, 1, refused, tight("run", "--name", "refused", "small")...)
	r.fails(t, 1, refused, tight("fork", "-n", "3", c.ID)...)
	r.fails(t, 1, refused, tight("start", stopped)...)
	r.fails(t, 1, refused, tight("resize", "--memory", "256M", name)...)
	if got := len(r.all(t)); got != count {
		t.Errorf("there are %d sandboxes, want %d", got, count)
	}
	r.ok(t, tight("resize", "--memory", "180M", name)...) // less is always possible
	r.ok(t, tight("checkout", name, c.ID)...)
	r.ok(t, "start", stopped)
	r.remove(t, name, stopped)
}
