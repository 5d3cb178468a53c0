package agent

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// serveStats answers with the guest's own view of itself.
func (c *conn) serveStats(*request) bool {
	st, err := readStats()
	if err != nil {
		return c.fail(err)
	}
	st.Memory.HeldBytes = c.s.held.bytes()
	return c.okJSON(st)
}

func readStats() (st proto.Stats, err error) {
	if st.Memory, err = readMemory(); err != nil {
		return st, err
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return st, fmt.Errorf("sysinfo: %w", err)
	}
	for i, l := range info.Loads {
		st.Load[i] = float64(l) / (1 << unix.SI_LOAD_SHIFT)
	}
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &up); err != nil {
		return st, fmt.Errorf("clock_gettime: %w", err)
	}
	st.UptimeMS = up.Nano() / int64(time.Millisecond)
	var fs unix.Statfs_t
	if err := unix.Statfs("/", &fs); err != nil {
		return st, fmt.Errorf("statfs /: %w", err)
	}
	st.DiskBytes, st.DiskFreeBytes = int64(fs.Blocks)*fs.Bsize, int64(fs.Bavail)*fs.Bsize
	st.RxBytes, st.TxBytes, err = readTraffic()
	return st, err
}

func readMemory() (m proto.GuestMemory, err error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return m, err
	}
	fields := map[string]*int64{"MemTotal:": &m.TotalBytes, "MemFree:": &m.FreeBytes, "MemAvailable:": &m.AvailableBytes, "Cached:": &m.CachedBytes}
	for line := range bytes.Lines(text) {
		words := bytes.Fields(line)
		if len(words) < 2 {
			continue
		}
		if to := fields[string(words[0])]; to != nil {
			n, err := strconv.ParseInt(string(words[1]), 10, 64)
			if err != nil {
				return m, fmt.Errorf("read /proc/meminfo: %w", err)
			}
			*to = n << 10
		}
	}
	return m, nil
}

// readTraffic sums what all cards but the loopback have carried.
func readTraffic() (rx, tx int64, err error) {
	text, err := os.ReadFile("/proc/net/dev")
	if err != nil {
		return 0, 0, err
	}
	for line := range bytes.Lines(text) {
		name, rest, ok := bytes.Cut(line, []byte(":"))
		words := bytes.Fields(rest)
		if !ok || len(words) < 9 || string(bytes.TrimSpace(name)) == "lo" {
			continue // a heading
		}
		r, rerr := strconv.ParseInt(string(words[0]), 10, 64)
		t, terr := strconv.ParseInt(string(words[8]), 10, 64)
		if rerr != nil || terr != nil {
			return 0, 0, fmt.Errorf("read /proc/net/dev: %q", line)
		}
		rx, tx = rx+r, tx+t
	}
	return rx, tx, nil
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
