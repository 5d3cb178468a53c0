package main

import (
	"strings"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	var all times
	for i := 20; i >= 1; i-- {
		all.add(time.Duration(i))
	}
	for _, tt := range []struct {
		q    float64
		want time.Duration
	}{{0.5, 10}, {0.95, 19}, {1, 20}, {0, 1}} {
		if got := quantile(all, tt.q); got != tt.want {
			t.Errorf("quantile %g: got %d want %d", tt.q, got, tt.want)
		}
	}
	if got := median(times(nil)); got != 0 {
		t.Errorf("median of nothing: got %d", got)
	}
}

func TestRatio(t *testing.T) {
	for _, tt := range []struct {
		ours, theirs int64
		want         string
	}{{10, 100, "1/10.0"}, {100, 10, "10.0 ×"}, {0, 10, "–"}, {10, 0, "–"}} {
		if got := ratio(tt.ours, tt.theirs); got != tt.want {
			t.Errorf("ratio(%d, %d): got %s want %s", tt.ours, tt.theirs, got, tt.want)
		}
	}
}

func TestPrint(t *testing.T) {
	f := figures{size: "512M", boot: times{time.Second}, fork: times{100 * time.Millisecond}, save: times{500 * time.Millisecond},
		exec:  execs{command: times{60 * time.Millisecond}, rest: times{15 * time.Millisecond}, guest: 10 * time.Millisecond},
		small: commits{pause: times{5 * time.Millisecond}, stored: []int64{2 << 20}}, saveZstd: []int64{40 << 20}}
	var out strings.Builder
	f.print(&out, 1)
	for _, want := range []string{
		"| fork to first exec, p50 | 100 ms | cold boot 1000 ms | 1/10.0 |",
		"| exec of true over REST, p50 | 15 ms | fork, exec and wait in the guest 10 ms | 1.5 × |",
		"| exec of true over REST, p50 | 15 ms | the command, process start included 60 ms | 1/4.0 |",
		"| commit, 2 MiB changed: pause | 5.0 ms | full save 500 ms | 1/100.0 |",
		"| commit, 2 MiB changed: stored | 2.0 MiB | full dump, zstd 40.0 MiB | 1/20.0 |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got:\n%s\nwant in it: %s", out.String(), want)
		}
	}
}
