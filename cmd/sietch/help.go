package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/urfave/cli/v2"
)

// helpWidth is where help texts wrap, whatever the terminal: the reference in
// docs is the same text.
const helpWidth = 80

func helpCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:        "help",
		Category:    groupOther,
		Usage:       "show help for a command",
		ArgsUsage:   "[COMMAND...]",
		Description: "The same as --help behind the command.\n\nExamples:\nsietch help image import",
		Action: func(c *cli.Context) error {
			app := newApp(e) // untouched by the flags of this line
			found, err := arrange(app, c.Args().Slice())
			if found.path == nil && c.Args().Present() {
				return err
			}
			return writeHelp(e.out, app, found.path)
		},
	}
}

// writeHelp prints the help of a command, or of all for an empty path.
func writeHelp(w io.Writer, app *cli.App, path []*cli.Command) error {
	_, err := io.WriteString(w, helpText(app, path))
	return err
}

func helpText(app *cli.App, path []*cli.Command) string {
	var h help
	usage, description, flags, commands := app.Usage, app.Description, app.Flags, app.Commands
	name := app.Name
	if n := len(path); n > 0 {
		c := path[n-1]
		usage, description, flags, commands = c.Usage, c.Description, c.Flags, c.Subcommands
		name += " " + strings.Join(names(path), " ")
	}
	h.section("NAME", name+" - "+usage)
	h.section("USAGE", synopsis(app, path))
	about, examples, _ := strings.Cut(description, "Examples:\n")
	h.section("DESCRIPTION", strings.TrimSpace(about))
	h.commands(commands)
	if len(path) == 0 {
		h.flags("GLOBAL OPTIONS", flags)
	} else {
		h.flags("OPTIONS", flags)
	}
	h.section("EXAMPLES", strings.TrimSpace(examples))
	if len(path) > 0 {
		h.section("GLOBAL OPTIONS", "See "+app.Name+" --help.")
	}
	return strings.TrimPrefix(h.b.String(), "\n")
}

// synopsis is the usage line of a command.
func synopsis(app *cli.App, path []*cli.Command) string {
	if len(path) == 0 {
		return app.Name + " [global options] COMMAND [options] [arguments]"
	}
	c := path[len(path)-1]
	parts := append([]string{app.Name}, names(path)...)
	switch {
	case c.UsageText != "":
		return strings.Join(parts, " ") + " " + c.UsageText
	case len(c.Subcommands) > 0:
		return strings.Join(append(parts, "COMMAND [options] [arguments]"), " ")
	}
	if len(c.Flags) > 0 {
		parts = append(parts, "[options]")
	}
	if c.ArgsUsage != "" {
		parts = append(parts, c.ArgsUsage)
	}
	return strings.Join(parts, " ")
}

type help struct{ b strings.Builder }

func (h *help) section(title, text string) {
	if text == "" {
		return
	}
	fmt.Fprintf(&h.b, "\n%s:\n", title)
	for line := range strings.SplitSeq(text, "\n") {
		h.b.WriteString(strings.TrimRight("   "+line, " ") + "\n")
	}
}

// commands lists the visible ones, by group where they have any.
func (h *help) commands(all []*cli.Command) {
	width := 0
	grouped := map[string][]*cli.Command{}
	for _, c := range all {
		if !c.Hidden {
			grouped[c.Category] = append(grouped[c.Category], c)
			width = max(width, len(c.Name))
		}
	}
	if len(grouped) == 0 {
		return
	}
	h.b.WriteString("\nCOMMANDS:\n")
	for _, group := range append([]string{""}, groups...) {
		indent := "   "
		if group != "" && len(grouped[group]) > 0 {
			fmt.Fprintf(&h.b, "   %s:\n", group)
			indent = "     "
		}
		for _, c := range grouped[group] {
			fmt.Fprintf(&h.b, "%s%-*s   %s\n", indent, width, c.Name, c.Usage)
		}
	}
}

// flags lists the visible ones, texts aligned unless the names are very long.
func (h *help) flags(title string, all []cli.Flag) {
	const widest = 30
	var left, right []string
	width := 0
	for _, f := range all {
		if !visible(f) {
			continue
		}
		l, r := flagHelp(f)
		left, right = append(left, l), append(right, r)
		if n := utf8.RuneCountInString(l); n <= widest {
			width = max(width, n)
		}
	}
	if len(left) == 0 {
		return
	}
	fmt.Fprintf(&h.b, "\n%s:\n", title)
	for i := range left {
		lines := wrap(right[i], helpWidth-width-6)
		fmt.Fprintf(&h.b, "   %-*s", width, left[i])
		if utf8.RuneCountInString(left[i]) > width {
			h.b.WriteString("\n" + strings.Repeat(" ", width+3))
		}
		h.b.WriteString("   " + strings.Join(lines, "\n"+strings.Repeat(" ", width+6)) + "\n")
	}
}

// flagHelp is "-m, --message MSG" and what it does.
func flagHelp(f cli.Flag) (left, right string) {
	var short, long string
	for _, n := range f.Names() {
		if len(n) == 1 {
			short = "-" + n
		} else {
			long = "--" + n
		}
	}
	switch {
	case short == "":
		left = "    " + long
	case long == "":
		left = short
	default:
		left = short + ", " + long
	}
	value, right := described(f)
	if takesValue(f) {
		left += " " + value
	}
	if d, ok := f.(cli.DocGenerationFlag); ok && takesValue(f) {
		if v := d.GetValue(); v != "" && !isList(f) {
			right += " (default: " + v + ")"
		}
		for _, v := range d.GetEnvVars() {
			right += " [$" + v + "]"
		}
	}
	return left, right
}

func isList(f cli.Flag) bool {
	s, ok := f.(cli.DocGenerationSliceFlag)
	return ok && s.IsSliceFlag()
}

// wrap breaks a text at spaces into lines of at most width characters.
func wrap(text string, width int) []string {
	lines := []string{""}
	for word := range strings.FieldsSeq(text) {
		last := &lines[len(lines)-1]
		switch {
		case *last == "":
			*last = word
		case utf8.RuneCountInString(*last)+1+utf8.RuneCountInString(word) > width:
			lines = append(lines, word)
		default:
			*last += " " + word
		}
	}
	return lines
}
