package guestmem

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// region is one mapping of a part of the memory file.
type region struct {
	addr  uint64 // in the VMM's address space
	page  int64  // first page of the memory file
	count int64
}

func (r region) bytes() uint64 { return uint64(r.count) * PageBytes }

// findRegions reads /proc/PID/maps and returns the private mappings of the
// memory file, cut to the target's size, in file order.
func findRegions(t Target) ([]region, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", t.PID))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	same, err := matcher(t)
	if err != nil {
		return nil, err
	}
	return parseMaps(f, t, same)
}

// mapping is one line of /proc/PID/maps.
type mapping struct {
	start, end, offset uint64
	perms              string
	dev                string // hexadecimal major:minor
	inode              uint64
	path               string
}

// matcher returns a test for mappings of the memory file. Paths alone are not
// enough: a jailed VMM sees the file under another name. Device and inode alone
// are not either: btrfs shows other devices in maps than in stat.
func matcher(t Target) (func(mapping) bool, error) {
	var st unix.Stat_t
	if err := unix.Stat(t.MemoryFile, &st); err != nil {
		if err != unix.ENOENT {
			return nil, fmt.Errorf("stat %s: %w", t.MemoryFile, err)
		}
		// Unlinked while mapped: only the name is left to go by.
		return func(m mapping) bool { return m.path == t.MemoryFile+" (deleted)" }, nil
	}
	dev := fmt.Sprintf("%02x:%02x", unix.Major(st.Dev), unix.Minor(st.Dev))
	return func(m mapping) bool {
		if m.inode != st.Ino {
			return false
		}
		if m.dev == dev || m.path == t.MemoryFile {
			return true
		}
		var ms unix.Stat_t
		link := fmt.Sprintf("/proc/%d/map_files/%x-%x", t.PID, m.start, m.end)
		return unix.Stat(link, &ms) == nil && ms.Dev == st.Dev && ms.Ino == st.Ino
	}, nil
}

func parseMaps(r io.Reader, t Target, same func(mapping) bool) ([]region, error) {
	var found []region
	shared := false
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		m, err := parseMapping(lines.Text())
		if err != nil {
			return nil, err
		}
		if m.offset >= uint64(t.SizeBytes) || !same(m) {
			continue
		}
		if !strings.HasSuffix(m.perms, "p") {
			shared = true
			continue
		}
		size := min(m.end-m.start, uint64(t.SizeBytes)-m.offset)
		found = append(found, region{addr: m.start, page: int64(m.offset / PageBytes), count: int64(size / PageBytes)})
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(found) == 0 {
		if shared {
			return nil, fmt.Errorf("%s is mapped shared, so its pages cannot be told apart", t.MemoryFile)
		}
		return nil, fmt.Errorf("%s is not mapped", t.MemoryFile)
	}
	slices.SortFunc(found, func(a, b region) int { return int(a.page - b.page) })
	next := int64(0)
	for _, r := range found {
		if r.page != next {
			return nil, fmt.Errorf("mapping of %s has a gap or overlap at page %d", t.MemoryFile, min(r.page, next))
		}
		next += r.count
	}
	if next != t.SizeBytes/PageBytes {
		return nil, fmt.Errorf("%d of %d pages of %s are mapped", next, t.SizeBytes/PageBytes, t.MemoryFile)
	}
	return found, nil
}

// parseMapping reads "start-end perms offset dev inode path"; the path may be
// missing and may hold spaces.
func parseMapping(line string) (m mapping, err error) {
	bad := func() (mapping, error) { return mapping{}, fmt.Errorf("unknown line in maps: %q", line) }
	f := make([]string, 5)
	rest := line
	for i := range f {
		rest = strings.TrimLeft(rest, " ")
		f[i], rest, _ = strings.Cut(rest, " ")
	}
	start, end, ok := strings.Cut(f[0], "-")
	if !ok {
		return bad()
	}
	for _, n := range []struct {
		to   *uint64
		text string
		base int
	}{{&m.start, start, 16}, {&m.end, end, 16}, {&m.offset, f[2], 16}, {&m.inode, f[4], 10}} {
		if *n.to, err = strconv.ParseUint(n.text, n.base, 64); err != nil {
			return bad()
		}
	}
	m.perms, m.dev = f[1], f[3]
	m.path = unescapeMaps(strings.TrimLeft(rest, " "))
	return m, nil
}

// unescapeMaps undoes the one escape of maps: a newline in a path is \012.
func unescapeMaps(path string) string { return strings.ReplaceAll(path, `\012`, "\n") }
