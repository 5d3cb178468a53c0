package agent

// ring keeps the end of what was written to it.
type ring struct {
	buf   []byte // full or not; grows by doubling
	at    int    // where the next byte goes
	kept  int
	total int64
}

// minRing is what everybody gets.
const minRing = 4 << 10

// from is the offset of the oldest byte that is kept.
func (r *ring) from() int64 { return r.total - int64(r.kept) }

// write appends p. grow is asked before more memory is taken; where it refuses,
// or limit is reached, the oldest bytes make way. It may not refuse the first
// minRing bytes, which must is true for.
func (r *ring) write(p []byte, limit int, grow func(more int, must bool) bool) {
	for r.kept+len(p) > len(r.buf) && len(r.buf) < limit {
		size := min(max(2*len(r.buf), minRing), limit)
		if !grow(size-len(r.buf), len(r.buf) == 0) {
			break
		}
		r.resize(size)
	}
	r.total += int64(len(p))
	p = p[max(0, len(p)-len(r.buf)):]
	for len(p) > 0 {
		n := copy(r.buf[r.at:], p)
		r.at = (r.at + n) % len(r.buf)
		r.kept = min(r.kept+n, len(r.buf))
		p = p[n:]
	}
}

func (r *ring) resize(size int) {
	buf := make([]byte, size)
	n := r.read(r.from(), buf)
	r.buf, r.at, r.kept = buf, n%size, n
}

// read copies what is kept from off on and returns how much; off must not be
// before from.
func (r *ring) read(off int64, p []byte) int {
	n := int(min(r.total-off, int64(len(p))))
	if n <= 0 {
		return 0
	}
	// Where off lies: so many bytes before the next one to be written.
	i := (r.at - int(r.total-off)) % len(r.buf)
	if i < 0 {
		i += len(r.buf)
	}
	m := copy(p[:n], r.buf[i:])
	copy(p[m:n], r.buf)
	return n
}

// drop forgets the content and returns how much memory that gives back.
func (r *ring) drop() int {
	n := len(r.buf)
	r.buf, r.at, r.kept = nil, 0, 0
	return n
}
