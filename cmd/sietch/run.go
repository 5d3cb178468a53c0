package main

import (
	"context"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

func runCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "run",
		Category:  groupSandboxes,
		Usage:     "create a sandbox and start it",
		ArgsUsage: "IMAGE|REF [-- CMD...]",
		Description: `Boots an image as a microVM, or brings a commit back to life as a new sandbox,
and returns when the first exec would succeed. CMD replaces the CMD of the image;
a commit goes on with what it was doing, and takes a CMD with --from-disk only.
Prints the sandbox's name.

Sizes have binary units: 512M, 4G, 1.5GiB. Ports are forwarded from the host,
for TCP unless /udp is added.

Examples:
sietch run --name box debian:bookworm
sietch run --memory 2G --cpus 2 -p 127.0.0.1:8080:80 -e TOKEN agent
sietch run --name again v1
sietch run --from-disk main~3 -- sleep 60`,
		Flags: []cli.Flag{
			text("name", "call it `NAME` (default: made up)"),
			text("cpus", "give it `N` virtual CPUs"),
			text("memory", "give it `SIZE` of RAM"),
			text("disk", "give it `SIZE` of writable disk"),
			texts("publish,p", "`[IP:]HOST:GUEST` forward port HOST of the host; repeatable"),
			texts("env,e", "set the variable `K=V`; K alone takes it from the environment; repeatable"),
			texts("env-file", "set the variables in `FILE`, lines of K=V; repeatable"),
			text("workdir,w", "start in directory `DIR`"),
			text("user,u", "run as `USER[:GROUP]`"),
			text("network", "`nat|none` what it can reach: the world through the host, or nothing (default: nat)"),
			texts("label", "attach the label `K=V`; repeatable"),
			text("message,m", "commit it with message `MSG` as soon as it is ready"),
			text("ttl", "remove it after `DURATION`, running or not; copies made of it stay"),
			toggle("from-disk", "boot a commit's disk cold instead of restoring its memory"),
			toggle("nested", "let it run virtual machines of its own"),
		},
		Action: func(c *cli.Context) error {
			o := runOptions{
				from: c.Args().First(), args: c.Args().Tail(), name: c.String("name"),
				cpus: c.String("cpus"), memory: c.String("memory"), disk: c.String("disk"),
				ports: c.StringSlice("publish"), env: c.StringSlice("env"), envFiles: c.StringSlice("env-file"),
				ttl: c.String("ttl"), workdir: c.String("workdir"), user: c.String("user"), network: c.String("network"),
				labels: c.StringSlice("label"), message: c.String("message"), fromDisk: c.Bool("from-disk"), nested: c.Bool("nested"),
			}
			o.has = c.IsSet
			return runRun(c.Context, e, o)
		},
	}
}

type runOptions struct {
	from, name, cpus, memory, disk, ttl, workdir, user, network, message string
	args, ports, env, envFiles, labels                                   []string
	fromDisk, nested                                                     bool
	has                                                                  func(flag string) bool // was it given
}

func runRun(ctx context.Context, e *env, o runOptions) error {
	request, err := o.request(e)
	if err != nil {
		return err
	}
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	sandbox, err := engine.Run(ctx, request)
	if err != nil {
		return err
	}
	if sandbox.Timing != nil {
		e.verbose("ready in %.0f ms", sandbox.Timing.ReadyMS)
	}
	return e.result(sandbox, sandbox.Name)
}

func (o runOptions) request(e *env) (runtime.RunRequest, error) {
	var wrong problems
	r := runtime.RunRequest{
		Name: o.name, From: o.from, WorkingDir: o.workdir, User: o.user, Network: o.network,
		Message: o.message, FromDisk: o.fromDisk, Nested: o.nested,
	}
	if len(o.args) > 0 {
		r.Args = o.args
	}
	var err error
	if o.has("cpus") {
		r.CPUs, err = parseCount(o.cpus, 1)
		wrong.note("--cpus", err)
	}
	if o.has("memory") {
		r.MemoryBytes, err = parseSize(o.memory)
		wrong.note("--memory", err)
	}
	if o.has("disk") {
		r.DiskBytes, err = parseSize(o.disk)
		wrong.note("--disk", err)
	}
	if o.has("ttl") {
		r.TTL, err = parseDuration(o.ttl)
		wrong.note("--ttl", err)
	}
	r.Ports = parsePorts(o.ports, "-p", &wrong)
	r.Env = append(e.parseEnvFiles(o.envFiles, &wrong), e.parseEnv("-e", o.env, &wrong)...)
	r.Labels = parsePairs("--label", o.labels, &wrong)
	// The engine would take an empty text for "not given".
	for _, f := range [][2]string{{"name", o.name}, {"workdir", o.workdir}, {"user", o.user}, {"message", o.message}} {
		if o.has(f[0]) && f[1] == "" {
			wrong.add("--%s is empty", f[0])
		}
	}
	switch {
	case !o.has("network"):
		r.Network = runtime.NetworkNAT
	case !slices.Contains([]string{runtime.NetworkNAT, runtime.NetworkNone}, o.network):
		wrong.add("--network: %s is not nat or none", quote(o.network))
	case o.network == runtime.NetworkNone && len(o.ports) > 0:
		wrong.add("-p: a sandbox with --network none has no ports to forward to")
	}
	return r, wrong.err("see sietch run --help")
}
