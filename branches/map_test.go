package branches

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The tree of a map is a function of what it holds, however it was come by.
func TestMapRoundTrip(t *testing.T) {
	for _, tt := range []struct {
		name      string
		size      int64
		pageBytes int
		touched   int
	}{
		{"one page", 4096, 4096, 1},
		{"partial last page", 3*4096 + 100, 4096, 12},
		{"one leaf", 512 * 4096, 4096, 300},
		{"two levels", 64 << 20, 4096, 900},
		{"disk pages", 256 << 20, 16384, 300},
		{"three levels, sparse", 8 << 30, 4096, 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := testRand(t, 1)
			s := openStore(t, Options{})
			w := newWriter(t, s)
			sp := newSpace(tt.size, tt.pageBytes)
			sp.touch(r, tt.touched)
			m, st := writeMap(t, w, Map{}, sp, sp.all())
			if st.PagesChanged != int64(len(sp.pages)) {
				t.Errorf("got %d pages changed, want %d", st.PagesChanged, len(sp.pages))
			}
			// Twice more over the result, within the same writer and after it.
			for range 2 {
				before := sp.clone()
				changed := sp.touch(r, tt.touched/3+1)
				next, _ := writeMap(t, w, m, sp, sp.changes(changed))
				flush(t, w)
				whole, st := writeMap(t, w, Map{}, sp, sp.all())
				if whole != next {
					t.Fatalf("got %v over its parent, want %v as from scratch", next, whole)
				}
				if st.PagesNew != 0 {
					t.Errorf("stored %d pages again", st.PagesNew)
				}
				wantPages(t, s, next, sp)
				wantDiff(t, s, m, next, before, sp)
				m = next
			}
			if tt.size < 1<<30 {
				wantSpace(t, s, m, sp)
			}
			commit(t, w, diskCommit(m), Update{})
			wantClean(t, s)
		})
	}
}

func wantPages(t *testing.T, s *Store, m Map, sp *space) {
	t.Helper()
	var got []int64
	for p, err := range s.Pages(t.Context(), m) {
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(p.Data, sp.pages[p.Index]) {
			t.Fatalf("page %d differs", p.Index)
		}
		got = append(got, p.Index)
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(sp.pages)), got); diff != "" {
		t.Fatalf("pages (-want +got):\n%s", diff)
	}
}

func wantDiff(t *testing.T, s *Store, a, b Map, sa, sb *space) {
	t.Helper()
	differ := map[int64]bool{}
	for i, p := range sa.pages {
		if !bytes.Equal(p, sb.pages[i]) {
			differ[i] = true
		}
	}
	for i := range sb.pages {
		if sa.pages[i] == nil {
			differ[i] = true
		}
	}
	for _, pair := range [][2]Map{{a, b}, {b, a}} {
		var got []int64
		for i, err := range s.DiffMaps(t.Context(), pair[0], pair[1]) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, i)
		}
		if diff := cmp.Diff(slices.Sorted(maps.Keys(differ)), got); diff != "" {
			t.Fatalf("differing pages (-want +got):\n%s", diff)
		}
	}
}
