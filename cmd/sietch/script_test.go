package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api"
	"github.com/sietch-dev/sietch/runtime/remote"
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
	if os.Getenv("SIETCH_TEST_SERVER") != "" {
		e.find = func(ctx context.Context, dir string) (runtime.Engine, error) { return overServer(ctx, e, dir) }
	}
	return run(e, os.Args)
}

// overServer is the fake behind a server of the data directory, in this process,
// as the shell talks to one.
func overServer(ctx context.Context, e *env, dir string) (runtime.Engine, error) {
	f, err := openFake(ctx, e.options)
	if err != nil {
		return nil, err
	}
	serve, stop := context.WithCancel(context.WithoutCancel(ctx))
	began, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- api.Serve(serve, api.Options{Engine: f, Version: "test"}, api.Listen{DataDir: dir, Listening: func([]string, string) { close(began) }})
	}()
	select {
	case <-began:
	case err := <-ended:
		stop()
		return nil, err
	}
	engine, err := remote.Open(ctx, remote.Options{DataDir: dir, Version: "test"})
	if err != nil {
		stop()
		return nil, errors.Join(err, <-ended)
	}
	return &served{engine, func() error { stop(); return errors.Join(<-ended, f.Close()) }}, nil
}

// served is an engine whose server ends with it.
type served struct {
	*remote.Engine
	end func() error
}

func (s *served) Close() error { return errors.Join(s.Engine.Close(), s.end()) }

func TestScripts(t *testing.T) { runScripts(t, "") }

// TestScriptsOverServer runs the same scripts with a server between shell and
// engine: nothing of what they see may differ.
func TestScriptsOverServer(t *testing.T) { runScripts(t, "1") }

func runScripts(t *testing.T, server string) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("SIETCH_DATA_DIR", env.WorkDir+"/data")
			env.Setenv("TZ", "UTC")
			env.Setenv("NO_COLOR", "")
			env.Setenv("SIETCH_TEST_SERVER", server)
			return os.Mkdir(env.WorkDir+"/data", 0o700)
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
