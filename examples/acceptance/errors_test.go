package acceptance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sietch-dev/sietch/runtime/testlane"
)

// TestScripts runs testdata/script: what the command line says before any
// machine is involved. `code N sietch …` runs a command that must end with N.
func TestScripts(t *testing.T) {
	needBinary(t)
	testlane.Need(t, testlane.Root)
	bin := t.TempDir() // with nothing else in it that a script could call
	if err := os.Symlink(binary, filepath.Join(bin, "sietch")); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", bin+":"+os.Getenv("PATH"))
			env.Setenv("SIETCH_DATA_DIR", filepath.Join(env.WorkDir, "data"))
			env.Setenv("NO_COLOR", "1")
			env.Setenv("HOME", env.WorkDir)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 2 {
					ts.Fatalf("usage: code N COMMAND…")
				}
				want, err := strconv.Atoi(args[0])
				ts.Check(err)
				got := 0
				if err := ts.Exec(args[1], args[2:]...); err != nil {
					var exit *exec.ExitError
					if !errors.As(err, &exit) {
						ts.Fatalf("%v", err)
					}
					got = exit.ExitCode()
				}
				if got != want {
					ts.Fatalf("exit code %d, want %d", got, want)
				}
			},
		},
	})
}

// TestNames wants every bad name refused before anything happens, wherever a
// name is taken. NUL cannot be said on a command line at all.
func TestNames(t *testing.T) {
	needBinary(t)
	testlane.Need(t, testlane.Root)
	bad := []string{
		"../x", "..", ".", "/etc/passwd", "a/b", "Upper", "-dash", ".dot", "_under", "with space",
		"new\nline", "ünicode", "semi;colon", "$(touch x)", strings.Repeat("a", 64),
	}
	for _, command := range [][]string{
		{"run", "--name", "NAME", "small"},
		{"fork", "-n", "1", "--name", "NAME", "some"},
		{"branch", "--", "NAME", "some"},
		{"tag", "--", "NAME", "some"},
	} {
		for _, name := range bad {
			t.Run(command[0]+" "+name, func(t *testing.T) {
				r := &repo{dir: filepath.Join(t.TempDir(), "data")}
				args := make([]string, len(command))
				for i, a := range command {
					args[i] = strings.ReplaceAll(a, "NAME", name)
				}
				if strings.HasPrefix(name, "-") && args[1] != "--" {
					for i, a := range args {
						if a == "--name" {
							args = append(append(args[:i:i], "--name="+name), args[i+2:]...)
							break
						}
					}
				}
				r.fails(t, 2, nil, args...)
				entries, err := os.ReadDir(r.dir)
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Fatal(err)
				}
				for _, e := range entries {
					if e.Name() == "sandboxes" {
						if some, _ := os.ReadDir(filepath.Join(r.dir, "sandboxes")); len(some) > 0 {
							t.Errorf("a refused name left %v", some)
						}
					}
				}
			})
		}
	}
	// The longest name there is.
	r := &repo{dir: filepath.Join(t.TempDir(), "data")}
	r.fails(t, 3, []string{"no-such-image"}, "run", "--name", strings.Repeat("a", 63), "no-such-image")
}

// TestErrors is what a user meets when something is wrong, and that it costs the
// machines that are there nothing.
func TestErrors(t *testing.T) {
	r := apart(t)
	name := r.runSmall(t)
	defer r.remove(t, name)
	c := r.commit(t, name, "base")
	broken, unreachable := t.TempDir(), t.TempDir()
	write(t, filepath.Join(broken, "Dockerfile"), "FROM scratch\nCOPY . /\nRUNN true\n")
	write(t, filepath.Join(unreachable, "Dockerfile"), "FROM 127.0.0.1:1/none:latest\n")

	tests := []struct {
		name  string
		code  int
		words []string
		args  []string
	}{
		{"unknown image", 3, []string{"nosuch", "hint"}, []string{"run", "nosuch"}},
		{"unknown sandbox", 3, []string{"nosuch"}, []string{"exec", "nosuch", "--", "true"}},
		{"unknown ref", 3, []string{"nosuch"}, []string{"fork", "nosuch"}},
		{"unknown ref of a checkout", 3, []string{"nosuch"}, []string{"checkout", name, "nosuch"}},
		{"ancestor that is not there", 3, []string{name + "~9"}, []string{"show", name + "~9"}},
		{"prefix too short", 3, nil, []string{"show", c.ID[:3]}},
		{"name in use", 4, []string{name, "hint"}, []string{"run", "--name", name, "small"}},
		{"image in use", 4, []string{"small"}, []string{"image", "rm", "small"}},
		{"broken Dockerfile", 1, []string{"RUNN"}, []string{"build", "--progress", "quiet", broken}},
		{"no Dockerfile", 2, []string{"Dockerfile"}, []string{"build", "--progress", "quiet", t.TempDir()}},
		{"unreachable registry in FROM", 1, []string{"127.0.0.1:1"}, []string{"build", "--progress", "quiet", unreachable}},
		{"unreachable registry in pull", 1, []string{"127.0.0.1:1"}, []string{"image", "pull", "127.0.0.1:1/none:latest"}},
		{"running sandbox without force", 4, []string{name, "hint"}, []string{"rm", name}},
		{"memory that is no size", 2, []string{"much"}, []string{"run", "--memory", "much", "small"}},
		{"port twice", 2, nil, []string{"run", "-p", "9001:80", "-p", "9001:81", "small"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r.fails(t, tt.code, tt.words, tt.args...)
			// With --json the same, as an object.
			res := r.try(t, append([]string{"--json"}, tt.args...)...)
			var e errorInfo
			lines := strings.Split(strings.TrimSpace(res.stderr), "\n")
			if err := json.Unmarshal([]byte(lines[len(lines)-1]), &e); err != nil || e.Error.Code == "" || e.Error.Message == "" {
				t.Errorf("no error object (%v): %s", err, res)
			}
			if res.code != tt.code {
				t.Errorf("with --json another exit code, want %d: %s", tt.code, res)
			}
		})
	}

	port := freePort(t)
	taken := r.runSmall(t, "-p", fmt.Sprintf("127.0.0.1:%d:80", port))
	t.Run("port in use", func(t *testing.T) {
		r.fails(t, 4, []string{strconv.Itoa(port)}, "run", "-p", fmt.Sprintf("127.0.0.1:%d:80", port), "small")
	})
	r.remove(t, taken)

	if got := len(r.all(t)); got != 1 {
		t.Errorf("%d sandboxes after all these errors, want the one that was there", got)
	}
	if got := r.in(t, name, "echo alive"); got != "alive" {
		t.Errorf("the machine that was there says %q", got)
	}
}

// TestHostLacks takes something away from the host and wants to be told.
func TestHostLacks(t *testing.T) {
	r := apart(t)
	r.remove(t, r.runSmall(t)) // the kernel is there: what is missing below is the rest

	t.Run("qemu", func(t *testing.T) {
		bare := &repo{dir: r.dir, env: []string{"SIETCH_VMM=qemu", "PATH=" + t.TempDir()}}
		bare.fails(t, 1, []string{"qemu-system-x86_64", "hint", "apt"}, "run", "small")
	})

	t.Run("root", func(t *testing.T) {
		dir := t.TempDir()
		// Reachable for somebody else.
		for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
			if err := os.Chmod(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		bin := filepath.Join(dir, "sietch")
		if out, err := exec.Command("cp", binary, bin).CombinedOutput(); err != nil {
			t.Fatalf("copy: %v\n%s", err, out)
		}
		cmd := exec.Command("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", bin, "run", "small")
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "SIETCH_DATA_DIR=" + filepath.Join(dir, "data"), "HOME=/"}
		out, err := cmd.CombinedOutput()
		if exitCode(err) != 1 || !strings.Contains(string(out), "root") || !strings.Contains(string(out), "hint") {
			t.Errorf("as nobody: %v, want exit code 1 and a hint about root:\n%s", err, out)
		}
	})

	t.Run("a VMM that lives", func(t *testing.T) {
		fake := fakeQEMU(t, `echo "qemu: the sky is falling" >&2; exit 1`)
		dying := &repo{dir: r.dir, env: []string{"SIETCH_VMM=qemu", "PATH=" + fake + ":" + os.Getenv("PATH")}}
		dying.fails(t, 1, []string{"the sky is falling"}, "run", "--name", fresh("dead"), "small")
	})

	t.Run("a guest that answers", func(t *testing.T) {
		// The kernel finds no init and panics: what it says last is the reason.
		fake := fakeQEMU(t, `
args=()
while [ $# -gt 0 ]; do
	args+=("$1")
	if [ "$1" = -append ]; then args+=("$2 rdinit=/no/such/init"); shift; fi
	shift
done
exec "$real" "${args[@]}"`)
		limit := within(20 * time.Second)
		mute := &repo{dir: r.dir, env: []string{"SIETCH_VMM=qemu", "PATH=" + fake + ":" + os.Getenv("PATH"), "SIETCH_BOOT_TIMEOUT=" + limit.String()}}
		res := mute.fails(t, 1, []string{"Kernel panic"}, "run", "--name", fresh("mute"), "small")
		if res.took > 3*limit {
			t.Errorf("a boot time limit of %s took %s", limit, res.took)
		}
	})

	if left := r.all(t); len(left) != 0 {
		t.Errorf("left by failed runs: %+v", left)
	}
	if len(r.traces(t)) != 0 {
		r.cleanHost(t)
	}
}

// fakeQEMU puts a qemu into a directory for PATH: questions about itself go to
// the real one, a machine to be launched goes to body.
func fakeQEMU(t *testing.T, body string) string {
	t.Helper()
	real, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script := "#!/bin/bash\nreal=" + real + "\ncase \" $* \" in *memory-backend-file*) ;; *) exec \"$real\" \"$@\" ;; esac\n" + body + "\n"
	if err := os.WriteFile(filepath.Join(dir, "qemu-system-x86_64"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// checkPrivate wants everything in a data directory closed to others. What lies
// under a closed directory is closed too, so that alone is judged at the top;
// dumps and layers are judged themselves as well.
func checkPrivate(t *testing.T, dir string) {
	t.Helper()
	st, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm() != 0o700 {
		t.Errorf("data directory has mode %o, want 700", st.Mode().Perm())
	}
	for _, part := range []string{"sandboxes", "cache", "store"} {
		err := filepath.WalkDir(filepath.Join(dir, part), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				if errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				return err
			}
			if d.Type()&fs.ModeSymlink == 0 && info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s has mode %o: others may look", path, info.Mode().Perm())
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}
