package sietch_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestDocument wants each block of Go in docs/sdk.md to be part of an example of
// this package, which runs.
func TestDocument(t *testing.T) {
	page, err := os.ReadFile("../../../docs/sdk.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	examples := plain(string(source))
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindAllSubmatch(page, -1)
	if len(blocks) < 3 {
		t.Fatalf("only %d blocks of Go found: does the pattern still fit?", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(examples, plain(string(b[1]))) {
			t.Errorf("no example has this:\n%s", b[1])
		}
	}
}

// plain is text without indentation and the checks of errors, which a page need
// not repeat.
func plain(text string) string {
	text = regexp.MustCompile(`(?m)^\s*if err != nil \{\n.*\n\s*\}\n`).ReplaceAllString(text, "")
	return strings.Join(strings.Fields(text), " ")
}
