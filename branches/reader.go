package branches

import (
	"encoding/binary"
	"errors"
	"fmt"
)

var errTruncated = errors.New("ends too early")

// reader takes binary values apart. The first error sticks and everything
// after it reads as zero, so a decoder checks once, at the end.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.b = nil
}

func (r *reader) version(want byte) {
	if v := r.byte(); r.err == nil && v != want {
		r.fail(fmt.Errorf("%w: version %d, want %d", ErrFormat, v, want))
	}
}

func (r *reader) byte() byte {
	if len(r.b) < 1 {
		r.fail(errTruncated)
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

// uvarint reads a number of at most limit, in its shortest form only, so that
// one value has one encoding.
func (r *reader) uvarint(limit uint64) uint64 {
	v, n := binary.Uvarint(r.b)
	switch {
	case n == 0:
		r.fail(errTruncated)
		return 0
	case n < 0 || v > limit:
		r.fail(fmt.Errorf("number above %d", limit))
		return 0
	case n > 1 && r.b[n-1] == 0:
		r.fail(errors.New("number is not in its shortest form"))
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) hash() Hash {
	if len(r.b) < HashBytes {
		r.fail(errTruncated)
		return Hash{}
	}
	h := Hash(r.b[:HashBytes])
	r.b = r.b[HashBytes:]
	return h
}

// end returns the first error, also when bytes are left over.
func (r *reader) end(what string) error {
	if r.err == nil && len(r.b) > 0 {
		r.err = fmt.Errorf("%d bytes left over", len(r.b))
	}
	if r.err != nil {
		return fmt.Errorf("decode %s: %w", what, r.err)
	}
	return nil
}
