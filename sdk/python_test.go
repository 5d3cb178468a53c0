package sdk

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/runtime/testlane"
)

// TestPython builds the wheel, installs it into an environment that is the
// test's own, and runs its suite there: formatting and types, then everything
// against a server whose machines are real where this host can run some.
func TestPython(t *testing.T) {
	testlane.Need(t, testlane.Python)
	project, err := filepath.Abs("python")
	if err != nil {
		t.Fatal(err)
	}
	env := newEnvironment(t)

	// What comes from PyPI first: when it is not to be had, that says nothing of
	// the project.
	env.packages(t, project, "test", "check")

	t.Run("wheel", func(t *testing.T) {
		env.install(t, project)
		// It is whole without the tree that it was made of.
		out := env.run(t, os.TempDir(), "python", "-c", "import sietch, importlib.resources as r; assert r.files('sietch').joinpath('py.typed').is_file(); print(sietch.__version__)")
		if !regexp.MustCompile(`^\d+\.\d+\.\d+\n$`).MatchString(out) {
			t.Errorf("the installed package says its version is %q", out)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	t.Run("ruff", func(t *testing.T) {
		env.run(t, project, "ruff", "check", "--no-cache", ".")
		env.run(t, project, "ruff", "format", "--no-cache", "--check", ".")
	})
	t.Run("mypy", func(t *testing.T) {
		env.run(t, project, "mypy", "--cache-dir", filepath.Join(env.dir, "mypy"))
	})
	t.Run("units", func(t *testing.T) {
		env.run(t, filepath.Join(project, "tests"), "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not machines", ".")
	})
	t.Run("machines", func(t *testing.T) {
		s := theServer(t)
		env.vars = append(env.vars, "SIETCH_TEST_MACHINES=1", "SIETCH_URL="+s.url, "SIETCH_TOKEN="+s.token, "SIETCH_TEST_SOCKET=unix://"+s.socket)
		env.run(t, filepath.Join(project, "tests"), "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5", "-m", "machines", ".")
	})
}

// environment is a Python of the test's own.
type environment struct {
	dir  string
	vars []string
}

func newEnvironment(t *testing.T) *environment {
	t.Helper()
	e := &environment{dir: t.TempDir()}
	e.vars = append(os.Environ(), "PATH="+filepath.Join(e.dir, "venv/bin")+":"+os.Getenv("PATH"), "PYTHONDONTWRITEBYTECODE=1", "PYTHONWARNINGS=default")
	// Not of whoever runs the test.
	for _, name := range []string{"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "SIETCH_URL", "SIETCH_TOKEN", "SIETCH_DATA_DIR"} {
		e.vars = append(e.vars, name+"=")
	}
	e.run(t, e.dir, "python3", "-m", "venv", "venv")
	return e
}

// packages installs what the project's extras and its build name.
func (e *environment) packages(t *testing.T, project string, extras ...string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(project, "pyproject.toml"))
	if err != nil {
		t.Fatal(err)
	}
	var wanted []string
	for _, key := range append([]string{"requires", "dependencies"}, extras...) {
		list := regexp.MustCompile(`(?ms)^` + key + ` = \[(.*?)\]$`).FindSubmatch(data)
		if list == nil {
			t.Fatalf("pyproject.toml has no list %s", key)
		}
		for _, m := range regexp.MustCompile(`"([^"]+)"`).FindAllSubmatch(list[1], -1) {
			wanted = append(wanted, string(m[1]))
		}
	}
	args := append([]string{"-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "2"}, wanted...)
	if out, err := e.command(t, e.dir, "python", args...); err != nil {
		testlane.Miss(t, testlane.PyPI, errors.New(strings.TrimSpace(out)))
	}
}

// install builds the wheel and installs it, asking nobody.
func (e *environment) install(t *testing.T, project string) {
	t.Helper()
	// A copy: building writes beside the sources.
	source := filepath.Join(e.dir, "source")
	if err := os.CopyFS(source, os.DirFS(project)); err != nil {
		t.Fatal(err)
	}
	e.run(t, e.dir, "python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "-w", "dist", source)
	wheels, err := filepath.Glob(filepath.Join(e.dir, "dist/sietch-*-py3-none-any.whl"))
	if err != nil || len(wheels) != 1 {
		t.Fatalf("got wheels %q (%v), want one for every Python 3", wheels, err)
	}
	e.run(t, e.dir, "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheels[0])
}

// run runs a program of the environment, which must succeed.
func (e *environment) run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	out, err := e.command(t, dir, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	if strings.HasSuffix(name, "python") && len(args) > 1 && args[1] == "pytest" {
		t.Log(out)
	}
	return out
}

func (e *environment) command(t *testing.T, dir, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	if own := filepath.Join(e.dir, "venv/bin", name); name != "python3" {
		name = own
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, e.vars
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}
