package guestmem

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"slices"
)

// PageBytes is the size of a page.
const PageBytes = 4096

// maxPages bounds what a decoded set may claim: 1 TiB of guest RAM.
const maxPages = 1 << 28

// PageSet is an ordered set of page numbers. The zero value is empty and ready
// to use. It is a bitmap: one bit for each page up to the highest one ever
// added, 32 KiB for 1 GiB of RAM.
type PageSet struct {
	words []uint64
	n     int64
}

// Len is the number of pages.
func (s *PageSet) Len() int64 { return s.n }

// Bytes is the number of bytes in the pages.
func (s *PageSet) Bytes() int64 { return s.n * PageBytes }

// Has reports whether page is in s.
func (s *PageSet) Has(page int64) bool {
	w := page >> 6
	return page >= 0 && w < int64(len(s.words)) && s.words[w]&(1<<(page&63)) != 0
}

// Add puts page into s.
func (s *PageSet) Add(page int64) { s.AddRange(page, 1) }

// AddRange puts the count pages from first on into s.
func (s *PageSet) AddRange(first, count int64) {
	if count <= 0 {
		return
	}
	last := first + count - 1
	s.grow(last)
	for w := first >> 6; w <= last>>6; w++ {
		mask := ^uint64(0)
		if w == first>>6 {
			mask <<= first & 63
		}
		if w == last>>6 {
			mask &= ^uint64(0) >> (63 - last&63)
		}
		s.n += int64(bits.OnesCount64(mask &^ s.words[w]))
		s.words[w] |= mask
	}
}

func (s *PageSet) grow(page int64) {
	if need := int(page>>6) + 1; need > len(s.words) {
		s.words = slices.Grow(s.words, need-len(s.words))[:need]
	}
}

// Union adds the pages of o to s.
func (s *PageSet) Union(o *PageSet) {
	if o == nil {
		return
	}
	if len(o.words) > len(s.words) {
		s.grow(int64(len(o.words))<<6 - 1)
	}
	for i, w := range o.words {
		s.n += int64(bits.OnesCount64(w &^ s.words[i]))
		s.words[i] |= w
	}
}

// Subtract removes the pages of o from s.
func (s *PageSet) Subtract(o *PageSet) {
	if o == nil {
		return
	}
	for i := range min(len(s.words), len(o.words)) {
		s.n -= int64(bits.OnesCount64(s.words[i] & o.words[i]))
		s.words[i] &^= o.words[i]
	}
}

// Clone returns a copy of s that shares nothing with it.
func (s *PageSet) Clone() *PageSet {
	return &PageSet{words: slices.Clone(s.words), n: s.n}
}

// Equal reports whether s and o hold the same pages.
func (s *PageSet) Equal(o *PageSet) bool {
	if s.n != o.n {
		return false
	}
	a, b := s.words, o.words
	if len(a) > len(b) {
		a, b = b, a
	}
	// The counts are equal, so what is beyond the shorter bitmap is empty when
	// the common part is equal.
	return slices.Equal(a, b[:len(a)])
}

// Runs yields the maximal runs of consecutive pages, in order, as the first
// page and the number of pages.
func (s *PageSet) Runs() iter.Seq2[int64, int64] {
	return func(yield func(first, count int64) bool) {
		for at := s.next(0, false); at >= 0; {
			end := s.next(at, true)
			if end < 0 {
				end = int64(len(s.words)) << 6
			}
			if !yield(at, end-at) {
				return
			}
			at = s.next(end, false)
		}
	}
}

// next is the first page from on that is absent (or present), or -1 when the
// bitmap ends before one.
func (s *PageSet) next(from int64, absent bool) int64 {
	for w := from >> 6; w < int64(len(s.words)); w++ {
		word := s.words[w]
		if absent {
			word = ^word
		}
		if w == from>>6 {
			word &= ^uint64(0) << (from & 63)
		}
		if word != 0 {
			return w<<6 + int64(bits.TrailingZeros64(word))
		}
	}
	return -1
}

// last is the highest page, or -1.
func (s *PageSet) last() int64 {
	for w := len(s.words) - 1; w >= 0; w-- {
		if s.words[w] != 0 {
			return int64(w)<<6 + 63 - int64(bits.LeadingZeros64(s.words[w]))
		}
	}
	return -1
}

// The stored form is a version byte and, for each run, two unsigned varints:
// pages skipped since the end of the run before, and pages in the run less one.
const pageSetVersion = 1

// MarshalBinary encodes s. The encoding of a set is unique.
func (s *PageSet) MarshalBinary() ([]byte, error) { return s.marshal(), nil }

func (s *PageSet) marshal() []byte {
	out := []byte{pageSetVersion}
	end := int64(0)
	for first, count := range s.Runs() {
		out = binary.AppendUvarint(out, uint64(first-end))
		out = binary.AppendUvarint(out, uint64(count-1))
		end = first + count
	}
	return out
}

// UnmarshalBinary replaces s with the set encoded in data.
func (s *PageSet) UnmarshalBinary(data []byte) error {
	if len(data) == 0 || data[0] != pageSetVersion {
		return errors.New("decode page set: unknown version")
	}
	var set PageSet
	end := uint64(0)
	for rest := data[1:]; len(rest) > 0; {
		skip, n := binary.Uvarint(rest)
		if n <= 0 {
			return errors.New("decode page set: bad varint")
		}
		rest = rest[n:]
		less, n := binary.Uvarint(rest)
		if n <= 0 {
			return errors.New("decode page set: bad varint")
		}
		rest = rest[n:]
		if skip > maxPages || less >= maxPages || end+skip+less+1 > maxPages {
			return fmt.Errorf("decode page set: run beyond page %d", maxPages)
		}
		if skip == 0 && end > 0 {
			return errors.New("decode page set: adjacent runs")
		}
		first := end + skip
		set.AddRange(int64(first), int64(less)+1)
		end = first + less + 1
	}
	*s = set
	return nil
}
