package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// argSpec is one argument of a command, as its ArgsUsage writes it. One text
// thus gives the usage line, the number of arguments and what a shell completes.
type argSpec struct {
	name     string   // as shown: IMAGE|REF
	kinds    []string // IMAGE, REF
	optional bool     // [REF]
	repeated bool     // NAME...
	guest    bool     // CMD...: the command to run in the guest, flags and all
}

// guestCommand is the placeholder of a guest command.
const guestCommand = "CMD"

// argsOf reads the arguments of a command from its ArgsUsage.
func argsOf(c *cli.Command) []argSpec {
	var specs []argSpec
	depth := 0 // of brackets around words; NAME[:TAG] has its own
	for word := range strings.FieldsSeq(c.ArgsUsage) {
		if rest, ok := strings.CutPrefix(word, "["); ok {
			word, depth = rest, depth+1
		}
		optional := depth > 0
		for strings.Count(word, "]") > strings.Count(word, "[") {
			word, depth = strings.TrimSuffix(word, "]"), depth-1
		}
		if word == "--" {
			continue
		}
		name, repeated := strings.CutSuffix(word, "...")
		specs = append(specs, argSpec{
			name:     name,
			kinds:    strings.Split(name, "|"),
			optional: optional,
			repeated: repeated,
			guest:    name == guestCommand,
		})
	}
	return specs
}

// text is a flag with a value. names are its long name and, after a comma, its
// short one; the placeholder stands in back quotes in usage.
func text(names, usage string) *cli.StringFlag {
	long, short, _ := strings.Cut(names, ",")
	return &cli.StringFlag{Name: long, Aliases: aliases(short), Usage: usage}
}

// texts is a flag that may be given many times.
func texts(names, usage string) *cli.StringSliceFlag {
	long, short, _ := strings.Cut(names, ",")
	return &cli.StringSliceFlag{Name: long, Aliases: aliases(short), Usage: usage, KeepSpace: true}
}

// toggle is a flag without a value.
func toggle(names, usage string) *cli.BoolFlag {
	long, short, _ := strings.Cut(names, ",")
	return &cli.BoolFlag{Name: long, Aliases: aliases(short), Usage: usage, DisableDefaultText: true}
}

func aliases(short string) []string {
	if short == "" {
		return nil
	}
	return []string{short}
}

func takesValue(f cli.Flag) bool {
	d, ok := f.(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}

func visible(f cli.Flag) bool {
	v, ok := f.(cli.VisibleFlag)
	return ok && v.IsVisible()
}

// described splits a flag's usage into its placeholder and the plain text. A
// placeholder at the beginning is not part of the text.
func described(f cli.Flag) (placeholder, usage string) {
	d, ok := f.(cli.DocGenerationFlag)
	if !ok {
		return "", ""
	}
	before, rest, _ := strings.Cut(d.GetUsage(), "`")
	name, after, ok := strings.Cut(rest, "`")
	switch {
	case !ok:
		return "VALUE", d.GetUsage()
	case before == "":
		return name, strings.TrimSpace(after)
	}
	return name, before + name + after
}

func placeholder(f cli.Flag) string {
	name, _ := described(f)
	return name
}

// hasName says whether a flag goes by a name.
func hasName(f cli.Flag, name string) bool { return slices.Contains(f.Names(), name) }

// rawCommand says whether a command takes its arguments as they are.
func rawCommand(c *cli.Command) bool { return c.SkipFlagParsing }
