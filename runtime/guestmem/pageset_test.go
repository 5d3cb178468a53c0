package guestmem

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestPageSetAgainstMap compares every operation with a plain map.
func TestPageSetAgainstMap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	random := func() (*PageSet, map[int64]bool) {
		s, m := new(PageSet), map[int64]bool{}
		for range r.IntN(12) {
			first, count := r.Int64N(700), r.Int64N(150)
			s.AddRange(first, count)
			for n := first; n < first+count; n++ {
				m[n] = true
			}
		}
		return s, m
	}
	check := func(what string, s *PageSet, m map[int64]bool) {
		t.Helper()
		if s.Len() != int64(len(m)) || s.Bytes() != s.Len()*PageBytes {
			t.Fatalf("%s: got %d pages, want %d", what, s.Len(), len(m))
		}
		seen, last := int64(0), int64(-2)
		for first, count := range s.Runs() {
			if first <= last {
				t.Fatalf("%s: run at %d follows or touches one that ends at %d", what, first, last)
			}
			for n := first; n < first+count; n++ {
				if !m[n] {
					t.Fatalf("%s: page %d is in no set", what, n)
				}
			}
			seen, last = seen+count, first+count
		}
		if seen != s.Len() {
			t.Fatalf("%s: runs hold %d pages, want %d", what, seen, s.Len())
		}
		for n := int64(-1); n < 1000; n++ {
			if s.Has(n) != m[n] {
				t.Fatalf("%s: Has(%d) is %v", what, n, s.Has(n))
			}
		}
		data, err := s.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		var back PageSet
		if err := back.UnmarshalBinary(data); err != nil || !back.Equal(s) || !s.Equal(&back) {
			t.Fatalf("%s: decoded set differs (%v)", what, err)
		}
	}
	for range 300 {
		a, am := random()
		b, bm := random()
		check("set", a, am)
		union, um := a.Clone(), map[int64]bool{}
		union.Union(b)
		less, lm := a.Clone(), map[int64]bool{}
		less.Subtract(b)
		for n := range am {
			um[n] = true
			if !bm[n] {
				lm[n] = true
			}
		}
		for n := range bm {
			um[n] = true
		}
		check("union", union, um)
		check("difference", less, lm)
		check("operand", b, bm)
		if a.Equal(b) != (len(am) == len(bm) && less.Len() == 0) {
			t.Fatal("Equal is wrong")
		}
	}
}

func TestPageSetDecodeRefuses(t *testing.T) {
	for what, data := range map[string][]byte{
		"empty":               {},
		"version":             {2, 0, 0},
		"half a run":          {1, 5},
		"endless varint":      {1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"beyond the last":     {1, 0x80, 0x80, 0x80, 0x80, 0x01, 0},
		"overflow":            {1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0},
		"touching runs":       {1, 3, 0, 0, 0},
		"more than one TiB":   {1, 0, 0x80, 0x80, 0x80, 0x80, 0x01},
		"second run too long": {1, 0, 0, 1, 0xff, 0xff, 0xff, 0x7f},
	} {
		s := pagesOf(1, 2)
		if err := s.UnmarshalBinary(data); err == nil {
			t.Errorf("%s: decoded to %v", what, s)
		} else if !s.Equal(pagesOf(1, 2)) {
			t.Errorf("%s: the set was changed", what)
		}
	}
}

func FuzzPageSet(f *testing.F) {
	f.Add(pagesOf(0, 1, 5, 100, 4000, 1).marshal())
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, data []byte) {
		var s PageSet
		if s.UnmarshalBinary(data) != nil {
			return
		}
		var back PageSet
		again := s.marshal()
		if err := back.UnmarshalBinary(again); err != nil || !back.Equal(&s) {
			t.Fatalf("decoded set does not survive encoding: %v", err)
		}
		if !bytes.Equal(again, back.marshal()) {
			t.Fatal("the encoding of a set is not unique")
		}
	})
}
