package runtime

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/procfs"
)

// Stats is what a sandbox uses at one moment.
type Stats struct {
	Name  string    `json:"name"`
	State State     `json:"state"`
	Time  time.Time `json:"time"` // of the measurement
	CPU   CPUStats  `json:"cpu"`
	// Memory is the host's view: pages of the VMM process.
	Memory MemoryStats `json:"memory"`
	// Guest is the guest's own view; nil when it is paused or does not answer.
	Guest *GuestStats `json:"guest"`
}

// CPUStats is the time the VMM process has run.
type CPUStats struct {
	TimeMS  float64 `json:"time_ms"` // of all its threads since its start
	CPUs    int     `json:"cpus"`
	Limit   float64 `json:"limit,omitempty"` // 0: none
	Threads int     `json:"threads"`
}

// MemoryStats sizes the VMM process, guest RAM and its own together.
type MemoryStats struct {
	SizeBytes  int64 `json:"size_bytes"`            // of guest RAM
	LimitBytes int64 `json:"limit_bytes,omitempty"` // 0: none below the size
	RSSBytes   int64 `json:"rss_bytes"`
	// PSSBytes counts a page that n processes map as an n-th part: the sum over
	// all sandboxes is what they use together.
	PSSBytes     int64 `json:"pss_bytes"`
	SharedBytes  int64 `json:"shared_bytes"`  // pages of files, which others map or may: what forks have in common
	PrivateBytes int64 `json:"private_bytes"` // its own: what its removal frees
	SwapBytes    int64 `json:"swap_bytes"`
}

// GuestStats is what the guest kernel says. A hostile guest can say anything.
type GuestStats struct {
	TotalBytes     int64 `json:"total_bytes"`
	FreeBytes      int64 `json:"free_bytes"`
	AvailableBytes int64 `json:"available_bytes"`
	CachedBytes    int64 `json:"cached_bytes"`
	HeldBytes      int64 `json:"held_bytes"` // kept from the guest by resize

	Load          [3]float64 `json:"load"` // averages of 1, 5 and 15 minutes
	UptimeMS      int64      `json:"uptime_ms"`
	RxBytes       int64      `json:"rx_bytes"`
	TxBytes       int64      `json:"tx_bytes"`
	DiskBytes     int64      `json:"disk_bytes"` // of the root file system
	DiskFreeBytes int64      `json:"disk_free_bytes"`
}

// Stats measures sandboxes. Of those that are named, one that does not run is an
// error.
func (e *Local) Stats(ctx context.Context, names []string) ([]Stats, error) {
	if err := e.readable(); err != nil {
		return nil, err
	}
	var records []*record
	if len(names) == 0 {
		all, err := e.records()
		if err != nil {
			return nil, err
		}
		for _, r := range all {
			if alive(r) && r.Phase == settled {
				records = append(records, r)
			}
		}
	}
	for _, name := range names {
		r, err := e.find(name)
		if err != nil {
			return nil, err
		}
		if r = e.completed(ctx, r); !alive(r) {
			return nil, wrongState("sietch start "+name, "sandbox %s is not running", name)
		}
		records = append(records, r)
	}
	found := make([]*Stats, len(records))
	errs := make([]error, len(records))
	var wg sync.WaitGroup
	for i, r := range records {
		wg.Go(func() { found[i], errs[i] = e.measure(ctx, r) })
	}
	wg.Wait()
	list := []Stats{}
	for i, s := range found {
		switch {
		case errs[i] == nil:
			list = append(list, *s)
		case len(names) == 0 && !alive(records[i]): // ended meanwhile
		default:
			return nil, fmt.Errorf("measure sandbox %s: %w", records[i].Name, errs[i])
		}
	}
	return list, nil
}

// statsTimeout bounds the wait for one guest's own view.
const statsTimeout = 3 * time.Second

func (e *Local) measure(ctx context.Context, r *record) (*Stats, error) {
	s := &Stats{Name: r.Name, Time: time.Now().UTC()}
	s.State, _ = e.stateOf(r)
	s.CPU.CPUs, s.CPU.Limit = r.Machine.CPUs, r.Machine.CPULimit
	s.Memory.SizeBytes, s.Memory.LimitBytes = r.Machine.MemoryBytes, r.Machine.MemoryLimitBytes
	if err := s.Memory.read(r.Handle.PID); err != nil {
		return nil, err
	}
	if err := s.CPU.read(r.Handle.PID); err != nil {
		return nil, err
	}
	if !alive(r) {
		return nil, errors.New("its virtual machine has ended")
	}
	if s.State != Running {
		return s, nil
	}
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	c, err := e.line(r)
	if err != nil {
		return s, nil
	}
	defer c.Close()
	if g, err := c.Stats(ctx); err == nil {
		s.Guest = &GuestStats{
			TotalBytes: g.Memory.TotalBytes, FreeBytes: g.Memory.FreeBytes, AvailableBytes: g.Memory.AvailableBytes,
			CachedBytes: g.Memory.CachedBytes, HeldBytes: g.Memory.HeldBytes,
			Load: g.Load, UptimeMS: g.UptimeMS, RxBytes: g.RxBytes, TxBytes: g.TxBytes,
			DiskBytes: g.DiskBytes, DiskFreeBytes: g.DiskFreeBytes,
		}
	}
	return s, nil
}

// read sums a process's mappings (proc_pid_smaps(5)).
func (m *MemoryStats) read(pid int) error {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return err
	}
	r, err := p.ProcSMapsRollup()
	if err != nil {
		return err
	}
	m.RSSBytes, m.PSSBytes, m.SwapBytes = int64(r.Rss), int64(r.Pss), int64(r.Swap)
	m.PrivateBytes = int64(r.PrivateDirty)
	m.SharedBytes = m.RSSBytes - m.PrivateBytes
	return nil
}

func (c *CPUStats) read(pid int) error {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return err
	}
	st, err := p.Stat()
	if err != nil {
		return err
	}
	c.TimeMS, c.Threads = 1000*st.CPUTime(), st.NumThreads
	return nil
}

// hostMemory is what the host has in all, and could give to somebody now.
func hostMemory() (total, available int64, err error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, 0, err
	}
	m, err := fs.Meminfo()
	if err != nil {
		return 0, 0, fmt.Errorf("read the host's memory: %w", err)
	}
	if m.MemTotalBytes == nil || m.MemAvailableBytes == nil {
		return 0, 0, errors.New("read the host's memory: /proc/meminfo does not say")
	}
	return int64(*m.MemTotalBytes), int64(*m.MemAvailableBytes), nil
}
