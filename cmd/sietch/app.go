package main

import (
	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

// Groups of commands in the help, in this order.
const (
	groupImages    = "Images"
	groupSandboxes = "Sandboxes"
	groupHistory   = "History"
	groupStorage   = "Storage"
	groupOther     = "Other"
)

var groups = []string{groupImages, groupSandboxes, groupHistory, groupStorage, groupOther}

// newApp is the whole command line.
func newApp(e *env) *cli.App {
	app := &cli.App{
		Name:  "sietch",
		Usage: "git for running machines",
		Description: `Describe a machine with a Dockerfile, boot it as a microVM, and treat the
running machine as git treats a work tree: commit it, check an older commit
out, fork it eight ways and keep the one that worked. A commit is the whole
machine at one instant: memory, devices and the writable disk.

A REF names a commit. It is the name of a sandbox (its HEAD), else a branch, else
a tag, else an id or a unique prefix of one (4 digits or more); sandbox/NAME,
branch/NAME and tag/NAME leave no doubt. REF~n is its n-th ancestor, REF^n its
n-th parent, NAME@{n} where sandbox NAME was n moves ago.

stdout carries the result alone. Exit codes: 0 done, 1 failed, 2 wrong usage,
3 not found, 4 busy or moved, 5 corrupt, 130 interrupted; exec ends with the
code of its command.

Examples:
sietch image bootstrap debian:bookworm
sietch run --name box debian:bookworm
sietch exec box -- uname -a
sietch commit -m "a fresh machine" box
sietch fork -n 4 --name try box
sietch log --graph --oneline`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "data-dir", Usage: "keep images, sandboxes and history in `DIR`", Value: runtime.DefaultDataDir, EnvVars: []string{"SIETCH_DATA_DIR"}},
			&cli.StringFlag{Name: "vmm", Usage: "`auto|cloud-hypervisor|qemu` the program that runs the machines", Value: "auto", EnvVars: []string{"SIETCH_VMM"}},
			&cli.StringFlag{Name: "boot-timeout", Usage: "give up on a machine that does not answer within `DURATION`", Value: "2m", EnvVars: []string{"SIETCH_BOOT_TIMEOUT"}},
			toggle("json", "print results as JSON: one document for a query, one object a line for a stream; errors as JSON on stderr"),
			toggle("quiet,q", "no progress and remarks on stderr; lists print names or ids alone"),
			&cli.StringFlag{Name: "log-level", Usage: "`debug|info|warn|error` log from this level on, to stderr", Value: "warn"},
			toggle("version", "print the version"),
			toggle("help,h", "show help"),
		},
		Commands:                  commands(e),
		Before:                    e.globals,
		HideHelp:                  true,
		HideVersion:               true,
		DisableSliceFlagSeparator: true,
		// Errors are told in one place, after everything is closed.
		ExitErrHandler: func(*cli.Context, error) {},
		OnUsageError:   asUsageError,
	}
	forEach(app.Commands, func(c *cli.Command) {
		c.HideHelp = true
		c.OnUsageError = asUsageError
	})
	return app
}

func commands(e *env) []*cli.Command {
	return []*cli.Command{
		buildCommand(e),
		imageCommand(e),

		runCommand(e),
		psCommand(e),
		inspectCommand(e),
		logsCommand(e),
		execCommand(e),
		processCommand(e),
		cpCommand(e),
		fileCommand(e),
		portCommand(e),
		pauseCommand(e),
		resumeCommand(e),
		stopCommand(e),
		startCommand(e),
		rmCommand(e),

		commitCommand(e),
		branchCommand(e),
		tagCommand(e),
		checkoutCommand(e),
		forkCommand(e),
		logCommand(e),
		showCommand(e),
		reflogCommand(e),

		gcCommand(e),
		fsckCommand(e),
		duCommand(e),

		eventsCommand(e),
		serveCommand(e),
		mcpCommand(e),
		tokenCommand(e),
		doctorCommand(e),
		completionCommand(e),
		versionCommand(e),
		helpCommand(e),

		buildEngineCommand(),
		completeCommand(e),
		docsCommand(e),
	}
}

// forEach visits commands and those beneath them.
func forEach(commands []*cli.Command, visit func(*cli.Command)) {
	for _, c := range commands {
		visit(c)
		forEach(c.Subcommands, visit)
	}
}

// asUsageError takes what the flag parser found. arrange has refused unknown
// flags before, so this is about a value of the wrong type.
func asUsageError(c *cli.Context, err error, _ bool) error {
	return usageErrorf("see "+c.App.Name+" --help", "%v", err)
}

// buildEngineCommand is how this binary hosts the build engine in a process of
// its own; the engine's client starts it.
func buildEngineCommand() *cli.Command {
	return &cli.Command{
		Name:            runtime.BuildEngineCommand,
		Usage:           "host the build engine (started by build)",
		Hidden:          true,
		SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			return runtime.BuildEngineMain(c.Context, c.Args().Slice())
		},
	}
}
