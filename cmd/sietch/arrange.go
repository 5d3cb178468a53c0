package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"
)

// line is a command line after sorting: where in it a flag stood no longer
// matters.
type line struct {
	path        []*cli.Command // from the first level down; empty when none is named
	global      []string       // --name=value
	local       []string
	args        []string
	json, quiet bool
	help        bool
}

// argv is the line in the one order that urfave/cli takes: it ends its flags at
// the first argument and knows global ones before the command only.
func (l line) argv(prog string) []string {
	argv := append([]string{prog}, l.global...)
	for _, c := range l.path {
		argv = append(argv, c.Name)
	}
	if n := len(l.path); n > 0 && rawCommand(l.path[n-1]) {
		return append(argv, l.args...)
	}
	return append(append(append(argv, l.local...), "--"), l.args...)
}

// arrange sorts a command line as getopt does: flags may stand after arguments,
// short ones may be joined (-it), a value may follow or be attached (-n4,
// --name=x), and "--" ends them. For a command that carries another one (exec,
// run), the flags end where that one begins.
//
// It returns what it understood also when there is an error, so that the error
// can be told the way the line asks for.
func arrange(app *cli.App, words []string) (line, error) {
	a := arranger{app: app}
	a.read(words)
	a.checkArgs()
	return a.line, a.wrong.err(a.hint())
}

type arranger struct {
	line
	app     *cli.App
	version bool
	unknown bool     // no such command: what follows means nothing
	ended   bool     // "--" was seen
	pending cli.Flag // the last word is a flag whose value is missing
	wrong   problems
}

func (a *arranger) command() *cli.Command {
	if len(a.path) == 0 {
		return nil
	}
	return a.path[len(a.path)-1]
}

func (a *arranger) read(words []string) {
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		switch {
		case a.command() != nil && rawCommand(a.command()):
			a.args = append([]string{word}, words...)
			return
		case word == "--":
			a.ended = true
			a.rest(words)
			return
		case len(word) > 1 && word[0] == '-':
			words = a.flag(word, words)
		case a.atGuestCommand():
			a.args = append(append(a.args, word), words...)
			return
		default:
			a.word(word)
		}
	}
	if a.version && len(a.path) == 0 {
		a.path = []*cli.Command{a.app.Command("version")}
	}
}

// rest takes what follows "--". A guest command may have a "--" of its own in
// front when the first one already stood before NAME.
func (a *arranger) rest(words []string) {
	for i, w := range words {
		if a.atGuestCommand() {
			if w == "--" && i > 0 {
				i++
			}
			a.args = append(a.args, words[i:]...)
			return
		}
		a.word(w)
	}
}

// atGuestCommand says whether the next word belongs to the command that runs in
// the guest.
func (a *arranger) atGuestCommand() bool {
	n := a.guestIndex()
	return n >= 0 && len(a.args) >= n
}

// inGuestCommand says whether that command has begun.
func (a *arranger) inGuestCommand() bool {
	n := a.guestIndex()
	return n >= 0 && len(a.args) > n
}

// guestIndex is how many arguments stand before a guest command, or -1.
func (a *arranger) guestIndex() int {
	c := a.command()
	if c == nil {
		return -1
	}
	return slices.IndexFunc(argsOf(c), func(s argSpec) bool { return s.guest })
}

// word takes a word that is no flag: a command's name or an argument.
func (a *arranger) word(word string) {
	commands := a.app.Commands
	if c := a.command(); c != nil {
		commands = c.Subcommands
	}
	if len(commands) == 0 || a.unknown {
		a.args = append(a.args, word)
		return
	}
	for _, c := range commands {
		if c.HasName(word) {
			a.path = append(a.path, c)
			return
		}
	}
	a.unknown = true
	a.wrong.add("%s is not a command%s", quote(strings.Join(append(names(a.path), word), " ")), didYouMean(word, visibleNames(commands)))
}

// flag takes one word that begins with "-" and returns the words it left over.
func (a *arranger) flag(word string, words []string) []string {
	if long, ok := strings.CutPrefix(word, "--"); ok {
		name, value, attached := strings.Cut(long, "=")
		f, global := a.find(name, false)
		if f == nil {
			a.unknownFlag("--" + name)
			return words
		}
		return a.set(f, global, "--"+name, value, attached, words)
	}
	for short := word[1:]; short != ""; {
		name := string([]rune(short)[0])
		short = short[len(name):]
		f, global := a.find(name, true)
		switch {
		case f == nil:
			a.unknownFlag("-" + name)
			return words
		case takesValue(f) && short != "":
			return a.set(f, global, "-"+name, strings.TrimPrefix(short, "="), true, words)
		case !takesValue(f) && short != "" && short[0] == '=':
			return a.set(f, global, "-"+name, short[1:], true, words)
		default:
			words = a.set(f, global, "-"+name, "", false, words)
		}
	}
	return words
}

// find looks a flag up: the command's own first, then the global ones.
func (a *arranger) find(name string, short bool) (f cli.Flag, global bool) {
	if short != (len(name) == 1) {
		return nil, false
	}
	if c := a.command(); c != nil {
		for _, f := range c.Flags {
			if hasName(f, name) {
				return f, false
			}
		}
	}
	for _, f := range a.app.Flags {
		if hasName(f, name) && (len(a.path) == 0 || name != "version") {
			return f, true
		}
	}
	return nil, false
}

func (a *arranger) set(f cli.Flag, global bool, shown, value string, attached bool, words []string) []string {
	if takesValue(f) {
		if !attached {
			if len(words) == 0 {
				a.pending = f
				a.wrong.add("%s needs a value: %s", shown, placeholder(f))
				return nil
			}
			value, words = words[0], words[1:]
		}
	} else {
		on := true
		if attached {
			var err error
			if on, err = strconv.ParseBool(value); err != nil {
				a.wrong.add("%s takes no value, or true or false, not %s", shown, quote(value))
			}
		}
		value = strconv.FormatBool(on)
		a.note(f, global, on)
	}
	word := "--" + f.Names()[0] + "=" + value
	if global {
		a.global = append(a.global, word)
	} else {
		a.local = append(a.local, word)
	}
	return words
}

// note remembers the flags that this package itself acts on.
func (a *arranger) note(f cli.Flag, global, on bool) {
	if !global {
		return
	}
	switch f.Names()[0] {
	case "json":
		a.json = on
	case "quiet":
		a.quiet = on
	case "help":
		a.help = on
	case "version":
		a.version = on
	}
}

func (a *arranger) unknownFlag(shown string) {
	if a.unknown {
		return
	}
	flags, of := a.app.Flags, a.app.Name
	if c := a.command(); c != nil {
		flags, of = append(slices.Clone(c.Flags), flags...), of+" "+strings.Join(names(a.path), " ")
	}
	var known []string
	for _, f := range flags {
		for _, n := range f.Names() {
			if len(n) > 1 && visible(f) && (len(a.path) == 0 || n != "version") {
				known = append(known, "--"+n)
			}
		}
	}
	advice := ""
	if slices.Equal(names(a.path), []string{"run"}) {
		advice = elsewhere(shown)
	}
	if advice == "" {
		advice = didYouMean(shown, known)
	}
	a.wrong.add("%s has no flag %s%s", of, shown, advice)
}

// elsewhere answers flags of run that people know from container tools.
func elsewhere(flag string) string {
	switch flag {
	case "-d", "--detach":
		return ": it returns once the machine is ready, which runs on"
	case "-i", "-t", "--interactive", "--tty":
		return ": enter the machine with sietch exec -it NAME -- sh"
	case "--rm":
		return ": remove the machine with sietch rm, or give it a life with --ttl"
	case "-v", "--volume", "--mount":
		return ": copy files with sietch cp, in both directions"
	case "--entrypoint":
		return ": name the command behind --"
	}
	return ""
}

// checkArgs holds the arguments against what the command says it takes.
func (a *arranger) checkArgs() {
	c := a.command()
	if c == nil || len(c.Subcommands) > 0 || rawCommand(c) || a.unknown {
		return
	}
	var least, most int
	for _, s := range argsOf(c) {
		if !s.optional {
			least++
		}
		if most++; s.repeated {
			most = len(a.args)
			break
		}
	}
	switch n := len(a.args); {
	case n < least:
		a.wrong.add("%s needs %s", c.Name, argsOf(c)[n].name)
	case n > most && most == 0:
		a.wrong.add("%s takes no argument: %s", c.Name, quote(a.args[0]))
	case n > most:
		a.wrong.add("%s takes %s: %s is too much", c.Name, count(most, "argument"), quote(a.args[most]))
	}
	for i, s := range argsOf(c) {
		if s.guest {
			break
		}
		if i < len(a.args) && a.args[i] == "" {
			a.wrong.add("%s is empty", s.name)
		}
	}
}

func (a *arranger) hint() string {
	if c := a.command(); c != nil && !a.unknown {
		return fmt.Sprintf("usage: %s (see %s %s --help)", synopsis(a.app, a.path), a.app.Name, strings.Join(names(a.path), " "))
	}
	return "see " + a.app.Name + " --help"
}

func names(path []*cli.Command) []string {
	var all []string
	for _, c := range path {
		all = append(all, c.Name)
	}
	return all
}

func visibleNames(commands []*cli.Command) []string {
	var all []string
	for _, c := range commands {
		if !c.Hidden {
			all = append(all, c.Names()...)
		}
	}
	return all
}
