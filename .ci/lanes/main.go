// Command lanes reads `go test -json` and prints what a person wants of it: a
// line a package, every skip with its reason, the whole output of what failed,
// and the sums. It exits 1 when anything failed or no test ran at all.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// event is a line of test2json; see `go doc test2json`.
type event struct {
	Action     string
	Package    string
	Test       string
	Elapsed    float64
	Output     string
	ImportPath string // of a build event
}

// A test is slow from slowSeconds on, and the slowest are named.
const (
	slowSeconds = 10
	slowest     = 12
)

type key struct{ pkg, test string }

func main() {
	ok, err := report(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "lanes:", err)
		os.Exit(1)
	}
	if !ok {
		os.Exit(1)
	}
}

// report copies the digest of r to w and tells whether all is well.
func report(r io.Reader, w io.Writer) (bool, error) {
	var (
		output                  = map[key][]string{}
		build                   = map[string][]string{}
		passed, failed, skipped int
		broken                  int // packages that failed outside any test
		failedIn                = map[string]bool{}
		slow                    []event
	)
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprint(w, string(line)) // go itself, such as a download
			} else {
				k := key{e.Package, e.Test}
				switch e.Action {
				case "build-output":
					build[e.ImportPath] = append(build[e.ImportPath], e.Output)
				case "build-fail":
					fmt.Fprint(w, strings.Join(build[e.ImportPath], ""))
				case "output":
					if !noise(e.Output) {
						output[k] = append(output[k], e.Output)
					}
				case "pass", "skip", "fail":
					if e.Elapsed >= slowSeconds && e.Test != "" && !strings.Contains(e.Test, "/") {
						slow = append(slow, e)
					}
					switch {
					case e.Test == "" && e.Action == "pass":
						fmt.Fprintf(w, "ok    %s %.1fs\n", e.Package, e.Elapsed)
					case e.Test == "" && e.Action == "skip":
						// A package with no test files.
					case e.Test == "":
						if !failedIn[e.Package] {
							broken++
						}
						fmt.Fprintf(w, "FAIL  %s %.1fs\n%s", e.Package, e.Elapsed, strings.Join(output[k], ""))
						// What was running when the process died.
						for other, text := range output {
							if other.pkg == e.Package && other.test != "" {
								fmt.Fprintf(w, "  unfinished: %s\n%s", other.test, strings.Join(text, ""))
							}
						}
					case e.Action == "pass":
						passed++
					case e.Action == "skip":
						skipped++
						fmt.Fprintf(w, "skip  %s %s: %s\n", e.Package, e.Test, reason(output[k]))
					case e.Action == "fail":
						failed++
						failedIn[e.Package] = true
						fmt.Fprintf(w, "FAIL  %s %s %.1fs\n%s", e.Package, e.Test, e.Elapsed, strings.Join(output[k], ""))
					}
					delete(output, k)
				}
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return false, fmt.Errorf("read test events: %w", err)
		}
	}
	slices.SortStableFunc(slow, func(a, b event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	for _, e := range slow[:min(len(slow), slowest)] {
		fmt.Fprintf(w, "slow  %s %s %.1fs\n", e.Package, e.Test, e.Elapsed)
	}
	failed += broken
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	return failed == 0 && passed > 0, nil
}

// noise tells the marks of go test apart from what tests print.
func noise(line string) bool {
	for _, mark := range []string{"=== RUN", "=== PAUSE", "=== CONT", "=== NAME", "PASS\n", "ok  \t"} {
		if strings.HasPrefix(line, mark) {
			return true
		}
	}
	return false
}

// reason is what t.Skip was given: the first indented line, less its position.
func reason(lines []string) string {
	for _, l := range lines {
		if strings.HasPrefix(strings.TrimLeft(l, " "), "--- ") {
			continue
		}
		l = strings.TrimSpace(l)
		if _, after, ok := strings.Cut(l, ".go:"); ok {
			if _, text, ok := strings.Cut(after, ": "); ok {
				return text
			}
		}
		if l != "" {
			return l
		}
	}
	return "no reason given"
}
