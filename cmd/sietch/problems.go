package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sietch-dev/sietch/runtime"
)

// problems gathers what is wrong with a request, so that one run tells all.
type problems struct{ lines []string }

func (p *problems) add(format string, args ...any) {
	p.lines = append(p.lines, fmt.Sprintf(format, args...))
}

// note adds an error under the name of the flag that it came from.
func (p *problems) note(flag string, err error) {
	if err != nil {
		p.add("%s: %v", flag, err)
	}
}

// err is nil when nothing is wrong.
func (p *problems) err(hint string) error {
	if len(p.lines) == 0 {
		return nil
	}
	return &usageError{lines: p.lines, hint: hint}
}

// usageError is a command line that cannot be meant. Nothing was done.
type usageError struct {
	lines []string // one a mistake
	hint  string
}

func (e *usageError) Error() string { return strings.Join(e.lines, "\n") }

// Unwrap makes it the same kind as a request that the engine refuses.
func (e *usageError) Unwrap() error { return runtime.ErrUsage }

func usageErrorf(hint, format string, args ...any) error {
	return &usageError{lines: []string{fmt.Sprintf(format, args...)}, hint: hint}
}

// quote shows a text of the user's so that spaces and control characters in it
// are seen.
func quote(s string) string { return strconv.Quote(s) }

// count is a number and its noun: "1 argument", "2 arguments".
func count[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// didYouMean offers the known word that is nearest to a mistyped one, if one is
// near at all: two edits make another word of a short one, unless they complete it.
func didYouMean(word string, known []string) string {
	letters := func(s string) int { return len(strings.Trim(s, "-")) }
	best, least := "", 3
	for _, k := range known {
		d := distance(word, k)
		if d > 1 && letters(word) < 6 && !(letters(word) > 0 && strings.HasPrefix(k, word)) {
			continue
		}
		if d < least && d < letters(k) {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// distance counts the single-letter edits and swaps between two words
// (optimal string alignment).
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}
