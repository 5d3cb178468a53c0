package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api"
)

// TestMain lets the test binary be sietch itself, with the fake engine, so that
// scripts run the real main in a process of its own.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"sietch": func() { os.Exit(sietchWithFake()) },
	})
}

func sietchWithFake() int {
	e := newEnv(func(ctx context.Context, o runtime.Options) (runtime.Engine, error) { return openFake(ctx, o) })
	e.now = func() time.Time { return testNow }
	e.find = findServer
	return run(e, os.Args)
}

// serveFake serves the fake engine of a data directory, as sietch serve does the
// real one.
func serveFake(env *testscript.Env) error {
	dir := env.WorkDir + "/data"
	f, err := openFake(context.Background(), runtime.Options{DataDir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	began, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- api.Serve(ctx, api.Options{Engine: f, Version: thisBuild().Version}, api.Listen{DataDir: dir, Listening: func([]string, string) { close(began) }})
	}()
	env.Defer(func() { stop(); <-ended })
	select {
	case <-began:
		return os.Remove(dir + "/calls")
	case err := <-ended:
		ended <- nil
		return err
	}
}

func TestScripts(t *testing.T) { runScripts(t, false) }

// TestScriptsOverServer runs the same scripts with a server between shell and
// engine: nothing of what they see may differ.
func TestScriptsOverServer(t *testing.T) { runScripts(t, true) }

func runScripts(t *testing.T, server bool) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("SIETCH_DATA_DIR", env.WorkDir+"/data")
			env.Setenv("TZ", "UTC")
			env.Setenv("NO_COLOR", "")
			if err := os.Mkdir(env.WorkDir+"/data", 0o700); err != nil || !server {
				return err
			}
			return serveFake(env)
		},
		Condition: func(cond string) (bool, error) {
			if cond != "server" {
				return false, fmt.Errorf("no condition %q", cond)
			}
			return server, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":    exits,
			"calls":    calls,
			"converse": converse,
		},
		UpdateScripts: os.Getenv("UPDATE_SCRIPTS") != "",
	})
}

// exits CODE COMMAND… runs a command and wants it to end with that code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// calls puts what the engine was asked, since the last time, on stdout for cmp.
func calls(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: calls")
	}
	file := ts.MkAbs("data/calls")
	ts.Check(ts.Exec("grep", "-vxE", "Open|Close", file))
	ts.Check(os.Remove(file))
}
