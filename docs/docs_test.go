package docs

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the help texts of the binary into cli.md")

// pages are the documents of the project, relative to this folder.
func pages(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"*.md", "../*.md"} {
		some, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, some...)
	}
	if len(found) < 5 {
		t.Fatalf("only %q found: are the documents still here?", found)
	}
	return found
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestLinksResolve(t *testing.T) {
	for _, page := range pages(t) {
		for _, broken := range brokenLinks(page, read(t, page)) {
			t.Errorf("%s: %s", page, broken)
		}
	}
}

func TestBrokenLinksAreFound(t *testing.T) {
	text := "# A title: here\n[good](docs_test.go) [page](docs_test.go#x) [anchor](#a-title-here)\n" +
		"[web](https://example.org) ```[code](nowhere)```\n```\n[block](nowhere)\n```\n[gone](no-such.md) [no anchor](#nope)\n"
	want := []string{"no-such.md does not exist", "no heading for #nope"}
	if diff := cmp.Diff(want, brokenLinks("page.md", text)); diff != "" {
		t.Errorf("broken links (-want +got):\n%s", diff)
	}
}

var (
	fence   = regexp.MustCompile("(?ms)^```.*?^```|`[^`\n]*`|```[^\n]*```")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
)

// brokenLinks lists the links of a page that lead nowhere in this repository.
// Links to other hosts are not asked.
func brokenLinks(page, text string) []string {
	text = fence.ReplaceAllString(text, "")
	var broken []string
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		target := m[1]
		if strings.Contains(target, "://") {
			continue
		}
		file, anchor, _ := strings.Cut(target, "#")
		body := text
		if file != "" {
			data, err := os.ReadFile(filepath.Join(filepath.Dir(page), file))
			if err != nil {
				if st, statErr := os.Stat(filepath.Join(filepath.Dir(page), file)); statErr == nil && st.IsDir() {
					continue
				}
				broken = append(broken, file+" does not exist")
				continue
			}
			body = string(data)
		}
		if anchor != "" && (file == "" || strings.HasSuffix(file, ".md")) && !slices.Contains(anchors(body), anchor) {
			broken = append(broken, "no heading for #"+anchor)
		}
	}
	return broken
}

// anchors are the headings as web hosts of git repositories link them.
func anchors(text string) []string {
	var all []string
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		h := strings.Map(func(r rune) rune {
			switch {
			case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_':
				return r
			case r == ' ':
				return '-'
			}
			return -1
		}, strings.ToLower(m[1]))
		all = append(all, h)
	}
	return all
}

var (
	makeWord = regexp.MustCompile("(?m)(?:^|`)make(?: ([a-z][a-z-]*))?")
	target   = regexp.MustCompile(`(?m)^([a-z][a-z-]*):`)
)

// TestMakeTargets wants every `make x` of a document to be a target.
func TestMakeTargets(t *testing.T) {
	var targets []string
	for _, m := range target.FindAllStringSubmatch(read(t, "../Makefile"), -1) {
		targets = append(targets, m[1])
	}
	var named int
	for _, page := range pages(t) {
		for _, m := range makeWord.FindAllStringSubmatch(read(t, page), -1) {
			if m[1] == "" || m[1] == "sure" {
				continue
			}
			named++
			if !slices.Contains(targets, m[1]) {
				t.Errorf("%s: make %s is no target of the Makefile (%s)", page, m[1], strings.Join(targets, ", "))
			}
		}
	}
	if named == 0 {
		t.Error("no document names a make target: does the pattern still fit?")
	}
}

// TestReadmeCommands wants each sietch command line of the README to begin with
// a command that exists, and its long flags to be that command's own.
func TestReadmeCommands(t *testing.T) {
	bin := binary(t)
	line := regexp.MustCompile(`(?m)^sietch ([^#\n]*)`)
	var named int
	for _, m := range line.FindAllStringSubmatch(read(t, "../README.md"), -1) {
		named++
		words := strings.Fields(m[1])
		command := words[:1]
		if words[0] == "image" {
			command = words[:2]
		}
		help := helpText(t, bin, command...)
		for _, w := range words[len(command):] {
			if w == "--" {
				break
			}
			if name, ok := strings.CutPrefix(w, "--"); ok && !strings.Contains(help, "--"+strings.SplitN(name, "=", 2)[0]) {
				t.Errorf("README: sietch %s has no flag %s", strings.Join(command, " "), w)
			}
		}
	}
	if named < 5 {
		t.Errorf("the README shows %d command lines: does the pattern still fit?", named)
	}
}

// TestCommandReference holds cli.md against the help of the binary: a section
// for each command, its help text in a block, and no section for a command that
// is gone. With -update the blocks are written.
func TestCommandReference(t *testing.T) {
	bin := binary(t)
	got := read(t, "cli.md")
	want := got
	var commands [][]string
	walk(t, bin, nil, func(command []string, help string) {
		commands = append(commands, command)
		want = withHelp(want, command, help)
	})
	if len(commands) < 5 {
		t.Fatalf("only %d commands found in the help: does its layout still fit?", len(commands))
	}
	for _, m := range regexp.MustCompile(`(?m)^##+ (sietch.*)$`).FindAllStringSubmatch(got, -1) {
		if !slices.ContainsFunc(commands, func(c []string) bool { return title(c) == m[1] }) {
			t.Errorf("cli.md has a section %q, but there is no such command", m[1])
		}
	}
	if *update {
		// As the binary orders them; what comes before is written by hand.
		reference, err := exec.Command(bin, "docs", "cli").Output()
		if err != nil {
			t.Fatalf("sietch docs cli: %v", err)
		}
		intro, _, _ := strings.Cut(got, "## sietch\n")
		if err := os.WriteFile("cli.md", append([]byte(intro), reference...), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cli.md is not what the binary says; run make docs (-binary +cli.md):\n%s", diff)
	}
}

func TestWithHelp(t *testing.T) {
	const page = "# Ref\n\n## sietch a\n\nProse.\n\n```text\nold\n```\n\nMore.\n\n## sietch b\n\nOnly prose.\n"
	const want = "# Ref\n\n## sietch a\n\nProse.\n\n```text\nnew\n```\n\nMore.\n\n## sietch b\n\nOnly prose.\n\n```text\nb\n```\n\n## sietch c d\n\n```text\ncd\n```\n"
	got := withHelp(page, []string{"a"}, "new\n")
	got = withHelp(got, []string{"b"}, "b\n")
	got = withHelp(got, []string{"c", "d"}, "cd\n")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if again := withHelp(got, []string{"b"}, "b\n"); again != got {
		t.Errorf("a second time changes the page:\n%s", cmp.Diff(got, again))
	}
}

func title(command []string) string {
	return strings.Join(append([]string{"sietch"}, command...), " ")
}

// withHelp puts a command's help text into its section of the page, replacing
// the section's text block, and appends the section where there is none.
func withHelp(page string, command []string, help string) string {
	block := "```text\n" + strings.TrimRight(help, "\n") + "\n```\n"
	head := regexp.MustCompile(`(?m)^##+ ` + regexp.QuoteMeta(title(command)) + `$`).FindStringIndex(page)
	if head == nil {
		return strings.TrimRight(page, "\n") + "\n\n## " + title(command) + "\n\n" + block
	}
	end := len(page)
	if next := regexp.MustCompile(`(?m)^##+ `).FindStringIndex(page[head[1]:]); next != nil {
		end = head[1] + next[0]
	}
	section := page[head[1]:end]
	old := regexp.MustCompile("(?ms)^```text\n.*?^```\n").FindStringIndex(section)
	if old == nil {
		after := ""
		if end < len(page) {
			after = "\n"
		}
		section = strings.TrimRight(section, "\n") + "\n\n" + block + after
	} else {
		section = section[:old[0]] + block + section[old[1]:]
	}
	return page[:head[1]] + section + page[end:]
}

// walk visits every command that help shows, parents before children.
func walk(t *testing.T, bin string, command []string, visit func([]string, string)) {
	t.Helper()
	help := helpText(t, bin, command...)
	visit(command, help)
	for _, sub := range subcommands(help) {
		if sub != "help" {
			walk(t, bin, append(slices.Clone(command), sub), visit)
		}
	}
}

// subcommands reads the COMMANDS section of a help text.
func subcommands(help string) []string {
	_, rest, ok := strings.Cut(help, "\nCOMMANDS:\n")
	if !ok {
		return nil
	}
	var names []string
	for line := range strings.Lines(rest) {
		switch {
		case strings.TrimSpace(line) == "":
			return names
		case strings.HasSuffix(strings.TrimRight(line, "\n"), ":"): // a category
			continue
		}
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		names = append(names, strings.TrimSuffix(name, ","))
	}
	return names
}

func helpText(t *testing.T, bin string, command ...string) string {
	t.Helper()
	cmd := exec.Command(bin, append(slices.Clone(command), "--help")...)
	// Help must not depend on who asks, or where.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "NO_COLOR=1"}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s --help: %v\n%s", title(command), err, stderr.String())
	}
	// The version is the build's, not the reference's.
	text := regexp.MustCompile(`(?ms)^VERSION:\n.*?\n\n`).ReplaceAllString(string(out), "")
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.TrimRight(line, " \n"))
	}
	return strings.Join(lines, "\n") + "\n"
}

// binary is the sietch under test: SIETCH_BIN, or what make built.
func binary(t *testing.T) string {
	t.Helper()
	bin := os.Getenv("SIETCH_BIN")
	if bin == "" {
		bin = "../bin/sietch"
		if _, err := os.Stat(bin); err != nil {
			t.Skip("no bin/sietch here and SIETCH_BIN not set: run make")
		}
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Fatal(fmt.Errorf("SIETCH_BIN: %w", err))
	}
	return bin
}
