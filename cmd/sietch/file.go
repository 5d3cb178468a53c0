package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

func fileCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:     "file",
		Category: groupSandboxes,
		Usage:    "look at, make, remove and watch files in a sandbox",
		Description: `The sandbox needs no programs for it. A path is written NAME:/path, as for cp,
which moves files in and out.`,
		Subcommands: []*cli.Command{
			fileLsCommand(e),
			fileStatCommand(e),
			fileMkdirCommand(e),
			fileRmCommand(e),
			fileWatchCommand(e),
		},
	}
}

// guestPath reads NAME:/path.
func guestPath(word string) (endpoint, error) {
	p, err := parseEndpoint(word)
	if err == nil && p.guest == "" {
		err = fmt.Errorf("%s is not NAME:/path", quote(word))
	}
	if err != nil {
		return p, usageErrorf("see sietch file --help", "%v", err)
	}
	return p, nil
}

// onFile finds path and engine for a verb.
func onFile(ctx context.Context, e *env, word string, do func(runtime.Engine, endpoint) error) error {
	p, err := guestPath(word)
	if err != nil {
		return err
	}
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	return do(engine, p)
}

func fileLsCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:        "ls",
		Aliases:     []string{"list"},
		Usage:       "list a directory",
		ArgsUsage:   "NAME:PATH",
		Description: "By name, hidden ones too. With -q, names alone.\n\nExamples:\nsietch file ls box:/etc",
		Action: func(c *cli.Context) error {
			return runFileLs(c.Context, e, c.Args().First())
		},
	}
}

func runFileLs(ctx context.Context, e *env, word string) error {
	return onFile(ctx, e, word, func(engine runtime.Engine, p endpoint) error {
		list, err := engine.ListDir(ctx, p.guest, p.path)
		switch {
		case err != nil:
			return err
		case e.json:
			return e.document(list)
		}
		return fileTable(e, list)
	})
}

func fileTable(e *env, list []runtime.PathStat) error {
	var rows [][]string
	var all []string
	for _, f := range list {
		name := fileText(f.Name)
		all = append(all, name)
		if f.LinkTarget != "" {
			name += " -> " + fileText(f.LinkTarget)
		}
		rows = append(rows, []string{modeText(f.Mode), fmt.Sprintf("%d:%d", f.UID, f.GID), fmt.Sprint(f.SizeBytes), f.Modified.UTC().Format("2006-01-02T15:04:05Z"), name})
	}
	if e.quiet {
		return e.names(all)
	}
	return e.table([]string{"MODE", "OWNER", "SIZE", "MODIFIED", "NAME"}, rows)
}

// fileText is a name from a guest, harmless to a terminal.
func fileText(name string) string {
	if strings.ContainsFunc(name, func(c rune) bool { return !strconv.IsPrint(c) }) {
		return quote(name)
	}
	return name
}

// modeText is st_mode as ls writes it.
func modeText(mode uint32) string {
	kinds := map[uint32]byte{0o040000: 'd', 0o120000: 'l', 0o020000: 'c', 0o060000: 'b', 0o010000: 'p', 0o140000: 's'}
	b := []byte("-rwxrwxrwx")
	if k, ok := kinds[mode&0o170000]; ok {
		b[0] = k
	}
	for i := range 9 {
		if mode&(0o400>>i) == 0 {
			b[1+i] = '-'
		}
	}
	for _, s := range []struct {
		bit    uint32
		at     int
		letter byte
	}{{0o4000, 3, 's'}, {0o2000, 6, 's'}, {0o1000, 9, 't'}} {
		switch {
		case mode&s.bit == 0:
		case b[s.at] == '-':
			b[s.at] = s.letter - 'a' + 'A'
		default:
			b[s.at] = s.letter
		}
	}
	return string(b)
}

func fileStatCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:        "stat",
		Usage:       "describe a path, as JSON",
		ArgsUsage:   "NAME:PATH",
		Description: "Prints one JSON document, with and without --json. A link is described itself.\n\nExamples:\nsietch file stat box:/etc/passwd",
		Action: func(c *cli.Context) error {
			return onFile(c.Context, e, c.Args().First(), func(engine runtime.Engine, p endpoint) error {
				st, err := engine.StatPath(c.Context, p.guest, p.path)
				if err != nil {
					return err
				}
				return e.document(st)
			})
		},
	}
}

func fileMkdirCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:        "mkdir",
		Usage:       "make directories",
		ArgsUsage:   "NAME:PATH...",
		Description: "Owned by root, whoever the sandbox's commands run as.\n\nExamples:\nsietch file mkdir -p box:/srv/data/in",
		Flags: []cli.Flag{
			toggle("parents,p", "make those above too; one that is there is no error"),
			text("mode,m", "give it the mode `OCTAL` (default: 755)"),
		},
		Action: func(c *cli.Context) error {
			return runFileMkdir(c.Context, e, c.Args().Slice(), c.String("mode"), c.Bool("parents"))
		},
	}
}

func runFileMkdir(ctx context.Context, e *env, words []string, octal string, parents bool) error {
	mode := uint64(0o755)
	if octal != "" {
		var err error
		if mode, err = strconv.ParseUint(octal, 8, 12); err != nil {
			return usageErrorf("see sietch file mkdir --help", "--mode: %s is not an octal mode, such as 750", quote(octal))
		}
	}
	return eachOf(ctx, words, func(word string) error {
		return onFile(ctx, e, word, func(engine runtime.Engine, p endpoint) error {
			return engine.MakeDir(ctx, p.guest, p.path, uint32(mode), parents)
		})
	})
}

func fileRmCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:        "rm",
		Usage:       "remove files",
		ArgsUsage:   "NAME:PATH...",
		Description: "Files and empty directories.\n\nExamples:\nsietch file rm box:/tmp/a\nsietch file rm -r box:/srv/data",
		Flags:       []cli.Flag{toggle("recursive,r", "and all that is in them")},
		Action: func(c *cli.Context) error {
			return runFileRm(c.Context, e, c.Args().Slice(), c.Bool("recursive"))
		},
	}
}

func runFileRm(ctx context.Context, e *env, words []string, recursive bool) error {
	return eachOf(ctx, words, func(word string) error {
		return onFile(ctx, e, word, func(engine runtime.Engine, p endpoint) error {
			if err := engine.RemovePath(ctx, p.guest, p.path, recursive); err != nil {
				return err
			}
			return e.removed(word)
		})
	})
}

func fileWatchCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "watch",
		Usage:     "tell changes of a file or directory as they happen",
		ArgsUsage: "NAME:PATH",
		Description: `A line for each change, until it is interrupted: create, write, remove, rename
(the old name; the new one is a create), attributes, and overflow when changes
came too fast and some were not told. With --json an object a line. A remark says
when watching has begun.

Examples:
sietch file watch -r box:/srv`,
		Flags: []cli.Flag{toggle("recursive,r", "all that is beneath it, too")},
		Action: func(c *cli.Context) error {
			return runFileWatch(c.Context, e, c.Args().First(), c.Bool("recursive"))
		},
	}
}

func runFileWatch(ctx context.Context, e *env, word string, recursive bool) error {
	return onFile(ctx, e, word, func(engine runtime.Engine, p endpoint) error {
		r := runtime.WatchRequest{Name: p.guest, Path: p.path, Recursive: recursive, Started: func() { e.remark("watching %s", word) }}
		return engine.WatchPath(ctx, r, func(ev runtime.FileEvent) error {
			if e.json {
				return e.object(ev)
			}
			name := fileText(ev.Path)
			if ev.IsDir {
				name += "/"
			}
			return e.line("%s  %s", ev.Op, name)
		})
	})
}
