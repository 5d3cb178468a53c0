package main

import (
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	tests := []struct {
		name   string
		in     string
		ok     bool
		wanted []string
	}{
		{
			name: "pass and skip",
			in: `{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.1}
{"Action":"output","Package":"p","Test":"TestB","Output":"=== RUN   TestB\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:7: lane kvm is missing: no vmx\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p","Elapsed":0.2}
`,
			ok:     true,
			wanted: []string{"skip  p TestB: lane kvm is missing: no vmx", "ok    p 0.2s", "1 passed, 0 failed, 1 skipped"},
		},
		{
			name: "failing test",
			in: `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: got 1 want 2\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
`,
			wanted: []string{"got 1 want 2", "0 passed, 1 failed, 0 skipped"},
		},
		{
			name: "panic outside a test's end",
			in: `{"Action":"output","Package":"p","Test":"TestA","Output":"panic: test timed out\n"}
{"Action":"pass","Package":"q","Test":"TestQ"}
{"Action":"fail","Package":"p"}
`,
			wanted: []string{"unfinished: TestA", "panic: test timed out", "1 passed, 1 failed, 0 skipped"},
		},
		{
			name: "does not build",
			in: `{"ImportPath":"p","Action":"build-output","Output":"p.go:1: undefined: x\n"}
{"ImportPath":"p","Action":"build-fail"}
{"Action":"fail","Package":"p","FailedBuild":"p"}
`,
			wanted: []string{"undefined: x", "0 passed, 1 failed, 0 skipped"},
		},
		{
			name: "slow tests, the slowest first, without their parts",
			in: `{"Action":"pass","Package":"p","Test":"TestA","Elapsed":11}
{"Action":"pass","Package":"p","Test":"TestB/part","Elapsed":12.5}
{"Action":"pass","Package":"p","Test":"TestB","Elapsed":12.5}
`,
			ok:     true,
			wanted: []string{"slow  p TestB 12.5s\nslow  p TestA 11.0s\n3 passed"},
		},
		{name: "nothing ran", in: "", wanted: []string{"0 passed, 0 failed, 0 skipped"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			ok, err := report(strings.NewReader(tt.in), &out)
			if err != nil {
				t.Fatal(err)
			}
			if ok != tt.ok {
				t.Errorf("ok: got %t want %t", ok, tt.ok)
			}
			for _, w := range tt.wanted {
				if !strings.Contains(out.String(), w) {
					t.Errorf("got:\n%s\nwant in it: %s", out.String(), w)
				}
			}
		})
	}
}
