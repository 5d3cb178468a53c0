package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sietch-dev/sietch/runtime"
)

func TestFilled(t *testing.T) {
	zone := time.FixedZone("", 3600)
	type inner struct {
		List []string          `json:"list"`
		Map  map[string][]int  `json:"map"`
		Opt  []string          `json:"opt,omitempty"`
		Any  any               `json:"any"`
		Time time.Time         `json:"time"`
		Ptr  *runtime.Main     `json:"ptr"`
		Nil  *runtime.Main     `json:"nil"`
		Strs map[string]string `json:"strs"`
	}
	in := []inner{{
		Map: map[string][]int{"a": nil}, Any: []runtime.Port(nil),
		Time: time.Date(2025, 1, 1, 1, 0, 0, 0, zone), Ptr: &runtime.Main{Running: true},
	}}
	got, err := json.Marshal(filled(in))
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"list":[],"map":{"a":[]},"any":[],"time":"2025-01-01T00:00:00Z","ptr":{"running":true,"exit_code":null},"nil":null,"strs":{}}]`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if in[0].List != nil || in[0].Time.Location() != zone {
		t.Error("the value itself was changed")
	}
	if got, _ := json.Marshal(filled([]runtime.Commit(nil))); string(got) != "[]" {
		t.Errorf("no commits are %s", got)
	}
}

// TestExplain wants the worst of what an error is made of to decide, and the
// nearest hint to be shown.
func TestExplain(t *testing.T) {
	inner := &runtime.Error{Kind: runtime.ErrNotFound, Message: "chunk 12", Hint: "run sietch fsck"}
	tests := []struct {
		name string
		err  error
		want explained
	}{
		{"plain", errors.New("x"), explained{Code: "failed", Message: "x", exit: 1}},
		{"usage", usageErrorf("h", "x %d", 1), explained{Code: "usage", Message: "x 1", Hint: "h", exit: 2}},
		{"hint of the cause", fmt.Errorf("do: %w", &runtime.Error{Message: "outer", Err: inner}), explained{Code: "not_found", Message: "do: outer: chunk 12", Hint: "run sietch fsck", exit: 3}},
		{"damage shows as something missing", &runtime.Error{Kind: runtime.ErrCorrupt, Message: "commit ab", Err: inner}, explained{Code: "corrupt", Message: "commit ab: chunk 12", Hint: "run sietch fsck", exit: 5}},
		{"undo failed too", errors.Join(&runtime.Error{Kind: runtime.ErrBusy, Message: "port 80"}, errors.New("undo: x")), explained{Code: "busy", Message: "port 80\nundo: x", exit: 4}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := explain(t.Context(), tt.err); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestThroughReturnsTheFirstFailure(t *testing.T) {
	broken := errors.New("broken")
	all := func(r io.Reader) error { _, err := io.Copy(io.Discard, r); return err }
	endless := func(w io.Writer) error {
		for {
			if _, err := w.Write(make([]byte, 1024)); err != nil {
				return fmt.Errorf("write: %w", err)
			}
		}
	}
	tests := []struct {
		name  string
		write func(io.Writer) error
		read  func(io.Reader) error
		want  error
	}{
		{"both well", func(w io.Writer) error { _, err := io.WriteString(w, "x"); return err }, all, nil},
		{"writer", func(io.Writer) error { return broken }, func(r io.Reader) error { return fmt.Errorf("echo: %w", all(r)) }, broken},
		{"reader", endless, func(io.Reader) error { return broken }, broken},
		{"reader has enough", endless, func(r io.Reader) error { _, err := io.CopyN(io.Discard, r, 10); return err }, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := through(tt.write, tt.read); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestTable(t *testing.T) {
	var b strings.Builder
	p := &printer{out: &b}
	if err := p.table([]string{"A", "B", "C"}, [][]string{{"é", "", "x"}, {"long", "b", ""}}); err != nil {
		t.Fatal(err)
	}
	want := "A      B   C\né      -   x\nlong   b   -\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
