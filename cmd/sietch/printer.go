package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// printer writes results to out and everything else to err.
type printer struct {
	out, err    io.Writer
	json, quiet bool
	color       bool // out is a terminal that wants colours
	errTerminal bool
	now         func() time.Time
}

func newPrinter(out, err *os.File) *printer {
	return &printer{
		out:         output{out},
		err:         err,
		color:       term.IsTerminal(int(out.Fd())) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb",
		errTerminal: term.IsTerminal(int(err.Fd())),
		now:         time.Now,
	}
}

// output is stdout. When its reader has gone, as that of `sietch log | head` has,
// the command ends as if by SIGPIPE, without a word; but not in the middle of
// what it does, which is why the signal itself is caught.
type output struct{ file *os.File }

func (o output) Write(b []byte) (int, error) {
	n, err := o.file.Write(b)
	if errors.Is(err, syscall.EPIPE) {
		err = exitStatus(exitPipe)
	}
	return n, err
}

// Fd lets others find out whether it is a terminal.
func (o output) Fd() uintptr { return o.file.Fd() }

// document prints the one JSON document that answers a query.
func (p *printer) document(v any) error {
	data, err := json.MarshalIndent(filled(v), "", "  ")
	if err != nil {
		return fmt.Errorf("print JSON: %w", err)
	}
	return p.line("%s", data)
}

// object prints one object of a stream on a line of its own.
func (p *printer) object(v any) error {
	data, err := json.Marshal(filled(v))
	if err != nil {
		return fmt.Errorf("print JSON: %w", err)
	}
	return p.line("%s", data)
}

// result prints v as a document under --json, else text.
func (p *printer) result(v any, text string) error {
	if p.json {
		return p.document(v)
	}
	return p.line("%s", text)
}

func (p *printer) line(format string, args ...any) error {
	return p.write(fmt.Sprintf(format, args...) + "\n")
}

func (p *printer) write(s string) error {
	if _, err := io.WriteString(p.out, s); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}

// remark says something that is not the result.
func (p *printer) remark(format string, args ...any) {
	if p.quiet {
		return
	}
	text := fmt.Sprintf(format, args...)
	if p.json {
		if line, err := json.Marshal(map[string]string{"note": text}); err == nil {
			fmt.Fprintf(p.err, "%s\n", line)
		}
		return
	}
	fmt.Fprintf(p.err, "sietch: %s\n", text)
}

// names prints one name a line, what a list is under --quiet.
func (p *printer) names(all []string) error {
	var b strings.Builder
	for _, n := range all {
		b.WriteString(n)
		b.WriteByte('\n')
	}
	return p.write(b.String())
}

// table prints plain columns, each as wide as its widest cell. An empty cell
// becomes "-", so that columns can be counted.
func (p *printer) table(header []string, rows [][]string) error {
	all := append([][]string{header}, rows...)
	widths := make([]int, len(header))
	for _, row := range all {
		for i := range row {
			if row[i] == "" {
				row[i] = "-"
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	var b strings.Builder
	for _, row := range all {
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+3))
			}
		}
		b.WriteByte('\n')
	}
	return p.write(b.String())
}

// Colours of a terminal, used as git uses them.
const (
	yellow = "33"
	green  = "1;32"
	cyan   = "1;36"
	red    = "1;31"
	bold   = "1"
)

func (p *printer) paint(color, s string) string {
	if !p.color || s == "" {
		return s
	}
	return "\x1b[" + color + "m" + s + "\x1b[m"
}
