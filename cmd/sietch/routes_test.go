package main

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

// verbs says by which operations of the API each command can be done without a
// shell. A new command fails the test below until it is here.
var verbs = map[string][]string{
	"build":           {"buildImage"},
	"image ls":        {"listImages"},
	"image inspect":   {"inspectImage"},
	"image rm":        {"removeImage"},
	"image tag":       {"tagImage"},
	"image pull":      {"pullImage"},
	"image bootstrap": {"bootstrapImage"},
	"image import":    {"importImage"},
	"image export":    {"exportImage"},

	"run":     {"runSandbox"},
	"ps":      {"listSandboxes"},
	"inspect": {"inspectSandbox"},
	"logs":    {"sandboxLogs"},
	"exec":    {"exec", "execStream", "startProcess"},
	"cp":      {"readFile", "writeFile", "readTar", "writeTar"},
	"stats":   {"stats", "sandboxStats"},
	"resize":  {"resizeSandbox"},
	"reclaim": {"reclaimSandbox"},
	"pause":   {"pauseSandbox"},
	"resume":  {"resumeSandbox"},
	"stop":    {"stopSandbox"},
	"start":   {"startSandbox"},
	"rm":      {"removeSandbox"},

	"process ls":      {"listProcesses"},
	"process inspect": {"inspectProcess"},
	"process logs":    {"processOutput"},
	"process wait":    {"waitProcess"},
	"process kill":    {"signalProcess"},
	"process rm":      {"removeProcess"},

	"file ls":    {"listDir"},
	"file stat":  {"statPath"},
	"file mkdir": {"makeDir"},
	"file rm":    {"removePath"},
	"file watch": {"watchPath"},

	"port ls":  {"listPorts"},
	"port add": {"addPort"},
	"port rm":  {"removePort"},

	"commit":   {"commit"},
	"branch":   {"listBranches", "createBranch", "renameBranch", "deleteBranch"},
	"tag":      {"listTags", "createTag", "deleteTag"},
	"checkout": {"checkout"},
	"fork":     {"fork"},
	"log":      {"log"},
	"show":     {"show"},
	"reflog":   {"reflog"},

	"gc":   {"gc"},
	"fsck": {"fsck"},
	"du":   {"du"},

	"events":  {"events"},
	"doctor":  {"doctor"},
	"version": {"version"},
}

// shellOnly are commands that are of no use over HTTP, with the reason.
var shellOnly = map[string]string{
	"serve":        "it is what answers",
	"mcp":          "a server has it at /mcp, which is another protocol's",
	"token create": "who may come in is decided on the host alone",
	"token ls":     "as create",
	"token rm":     "as create",
	"completion":   "it is for a shell",
	"help":         "the API's help is its document",
}

// serverOnly are operations without a command, with the reason.
var serverOnly = map[string]string{
	"metrics": "for Prometheus", "healthz": "for probes", "readyz": "for probes",
	"openapi": "the document", "proxy": "for HTTP clients",
	"cancelCall": "Ctrl-C", "dialPort": "for programs; the shell has port add",
}

// TestEveryVerbHasARoute holds the shell's commands against the API's document,
// both ways.
func TestEveryVerbHasARoute(t *testing.T) {
	document, err := os.ReadFile("../../runtime/api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	operations := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^      operationId: (\w+)$`).FindAllStringSubmatch(string(document), -1) {
		operations[m[1]] = false
	}
	if len(operations) < 60 {
		t.Fatalf("only %d operations found: does the pattern still fit?", len(operations))
	}
	e := newEnv(func(context.Context, runtime.Options) (runtime.Engine, error) { panic("not asked for") })
	var seen []string
	var visit func(prefix string, commands []*cli.Command)
	visit = func(prefix string, commands []*cli.Command) {
		for _, c := range commands {
			if c.Hidden {
				continue
			}
			if len(c.Subcommands) > 0 {
				visit(prefix+c.Name+" ", c.Subcommands)
				continue
			}
			seen = append(seen, prefix+c.Name)
		}
	}
	visit("", commands(e))
	for _, verb := range seen {
		if shellOnly[verb] == "" && len(verbs[verb]) == 0 {
			t.Errorf("sietch %s has no route: add one to runtime/api/openapi.yaml and to this table", verb)
		}
	}
	for verb, ids := range verbs {
		if !slices.Contains(seen, verb) {
			t.Errorf("there is no command %s", verb)
		}
		for _, id := range ids {
			if _, ok := operations[id]; !ok {
				t.Errorf("sietch %s: the document has no operation %s", verb, id)
			}
			operations[id] = true
		}
	}
	for id, used := range operations {
		if !used && serverOnly[id] == "" && !strings.HasPrefix(id, "arrakis") {
			t.Errorf("operation %s has no command: add one, or say here why not", id)
		}
	}
}
