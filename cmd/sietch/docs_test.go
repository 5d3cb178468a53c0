package main

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestReference holds docs/cli.md, from its first command on, against the help
// texts. After a change: make docs.
func TestReference(t *testing.T) {
	page, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	_, got, ok := strings.Cut(string(page), "\n## sietch\n")
	if !ok {
		t.Fatal("docs/cli.md has no section for sietch itself")
	}
	if diff := cmp.Diff(reference(testApp()), "## sietch\n"+got); diff != "" {
		t.Errorf("docs/cli.md is not what the commands say (-commands +docs):\n%s", diff)
	}
}
