package main

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"
)

func testApp() *cli.App { return newApp(&env{printer: newPrinter(os.Stdout, os.Stderr)}) }

func TestArrange(t *testing.T) {
	tests := []struct{ in, want string }{
		{"ps -a", "ps --all=true --"},
		{"ps", "ps --"},
		{"--json ps", "--json=true ps --"},
		{"ps --json -aq", "--json=true --quiet=true ps --all=true --"},
		{"commit box -m hello", "commit --message=hello -- box"},
		{"commit box -mhello", "commit --message=hello -- box"},
		{"commit box -m=hello", "commit --message=hello -- box"},
		{"commit box -m -x", "commit --message=-x -- box"},
		{"commit box --message=a=b", "commit --message=a=b -- box"},
		{"commit --label a=1 box --label b=2", "commit --label=a=1 --label=b=2 -- box"},
		{"commit -- -box", "commit -- -box"},
		{"log -n3 --oneline main --graph", "log --max-count=3 --oneline=true --graph=true -- main"},
		{"fork -qn8 box", "--quiet=true fork --count=8 -- box"},
		{"image ls -q", "--quiet=true image ls --"},
		{"image --json rm a b", "--json=true image rm -- a b"},
		{"image list", "image ls --"},
		{"cp - box:/x", "cp -- - box:/x"},
		{"exec -it box sh -c ls", "exec --interactive=true --tty=true -- box sh -c ls"},
		{"exec box -- ls --json", "exec -- box ls --json"},
		{"exec box -it -- ls", "exec --interactive=true --tty=true -- box ls"},
		{"exec -- box -- ls -- x", "exec -- box ls -- x"},
		{"exec box -- -- x", "exec -- box -- x"},
		{"exec --json box ls -q", "--json=true exec -- box ls -q"},
		{"exec -itw /srv box ls", "exec --interactive=true --tty=true --workdir=/srv -- box ls"},
		{"run img", "run -- img"},
		{"run img --name x -- cmd --name y", "run --name=x -- img cmd --name y"},
		{"branch -d x", "branch --delete=true -- x"},
		{"ps --all=false --json=0", "--json=false ps --all=false --"},
		{"--version", "--version=true version --"},
		{"buildkit-engine --root /x -- -y", "buildkit-engine --root /x -- -y"},
	}
	for _, tt := range tests {
		got, err := arrange(testApp(), strings.Fields(tt.in))
		if err != nil {
			t.Errorf("%s: %v", tt.in, err)
			continue
		}
		if diff := cmp.Diff("sietch "+tt.want, strings.Join(got.argv("sietch"), " ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.in, diff)
		}
	}
}

func TestArrangeErrors(t *testing.T) {
	tests := []struct{ in, want string }{
		{"-x ps", "sietch has no flag -x"},
		{"ps -x -y", "sietch ps has no flag -x\nsietch ps has no flag -y"},
		{"ps -ax", "sietch ps has no flag -x"},
		{"ps --version", "sietch ps has no flag --version"},
		{"ps -all", "sietch ps has no flag -l"},
		{"run -d small", "sietch run has no flag -d: it returns once the machine is ready, which runs on"},
		{"run --rm small", "sietch run has no flag --rm: remove the machine with sietch rm, or give it a life with --ttl"},
		{"run -it small", "sietch run has no flag -i: enter the machine with sietch exec -it NAME -- sh"},
		{"run -v a:b small", "sietch run has no flag -v: copy files with sietch cp, in both directions"},
		{"ps --a", "sietch ps has no flag --a; did you mean --all?"},
		{"exec box --detatch -- ls", "sietch exec has no flag --detatch; did you mean --detach?"},
		{"chekout a b", `"chekout" is not a command; did you mean checkout?`},
		{"xyzzy --frobnicate a", `"xyzzy" is not a command`},
		{"run --name", "--name needs a value: NAME\nrun needs IMAGE|REF"},
		{"checkout box", "checkout needs REF"},
		{"image tag a", "tag needs NAME[:TAG]"},
		{"image import", "import needs FILE|DIR|-"},
		{"log a b", `log takes 1 argument: "b" is too much`},
		{"gc x", `gc takes no argument: "x"`},
	}
	for _, tt := range tests {
		_, err := arrange(testApp(), strings.Fields(tt.in))
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s: got %v, want %s", tt.in, err, tt.want)
		}
	}
}

// TestDefinitions holds every command against the rules of the project.
func TestDefinitions(t *testing.T) {
	app := testApp()
	global := map[string]bool{}
	for _, f := range app.Flags {
		for _, n := range f.Names() {
			global[n] = true
		}
	}
	forEach(app.Commands, func(c *cli.Command) {
		if c.Usage == "" || strings.HasSuffix(c.Usage, ".") {
			t.Errorf("%s: usage %q", c.Name, c.Usage)
		}
		if c.Hidden || len(c.Subcommands) > 0 {
			return
		}
		if !strings.Contains(c.Description, "\nExamples:\nsietch ") && !strings.Contains(c.Description, "\nExamples:\n") {
			t.Errorf("%s has no example", c.Name)
		}
		for _, f := range c.Flags {
			for _, n := range f.Names() {
				if global[n] {
					t.Errorf("%s: flag %s is a global one", c.Name, n)
				}
			}
			if value, about := described(f); about == "" || takesValue(f) && value == "VALUE" {
				t.Errorf("%s: flag %s says nothing about itself or its value", c.Name, f.Names()[0])
			}
		}
	})
	for _, line := range strings.Split(reference(app), "\n") {
		if strings.ContainsRune(line, '\t') || len([]rune(line)) > 86 {
			t.Errorf("help line too long or with a tab: %q", line)
		}
	}
}

// TestExamplesParse runs every example of the help through the argument sorting.
func TestExamplesParse(t *testing.T) {
	app := testApp()
	forEach(app.Commands, func(c *cli.Command) {
		_, examples, _ := strings.Cut(c.Description, "Examples:\n")
		for _, line := range strings.Split(examples, "\n") {
			_, words, ok := strings.Cut(line, "sietch ")
			if !ok {
				continue
			}
			words = strings.NewReplacer("$(sietch ps -aq)", "box", `"`, "").Replace(words)
			words, _, _ = strings.Cut(words, "|")
			words, _, _ = strings.Cut(words, ">")
			words = strings.TrimSuffix(strings.TrimSpace(words), ")")
			fields := strings.Fields(words)
			if len(fields) > 3 && fields[0] == "commit" { // a message of several words
				continue
			}
			if _, err := arrange(testApp(), fields); err != nil {
				t.Errorf("%s: example %q: %v", c.Name, line, err)
			}
		}
	})
}

func TestDidYouMean(t *testing.T) {
	known := []string{"ps", "pause", "commit", "checkout", "logs", "--all"}
	for word, want := range map[string]string{
		"psa": "; did you mean ps?", "comit": "; did you mean commit?", "chekcout": "; did you mean checkout?", "p": "; did you mean ps?",
		"zz": "", "merge": "", "": "", "bogus": "", "push": "", "--": "",
		"lgos": "; did you mean logs?", "cmomti": "; did you mean commit?", "--a": "; did you mean --all?", "pau": "; did you mean pause?",
	} {
		if got := didYouMean(word, known); got != want {
			t.Errorf("didYouMean(%q) = %q, want %q", word, got, want)
		}
	}
}
