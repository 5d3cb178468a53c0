package sietch_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/sietch-dev/sietch/runtime/api"
	"github.com/sietch-dev/sietch/sdk/go/sietch"
)

// TestMain gives the examples, which find their server by the environment, one
// whose machines are played.
func TestMain(m *testing.M) {
	s, err := api.New(api.Options{Engine: newMachines()})
	if err != nil {
		log.Fatal(err)
	}
	web := httptest.NewServer(s)
	os.Setenv("SIETCH_URL", web.URL)
	code := m.Run()
	s.Drain()
	web.Close()
	os.Exit(code)
}

func Example() {
	ctx := context.Background()
	c, err := sietch.New(sietch.Options{})
	if err != nil {
		log.Fatal(err)
	}
	box, err := c.Run(ctx, sietch.RunRequest{From: "debian:bookworm", MemoryBytes: 512 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Remove(ctx, true)

	res, err := box.Exec(ctx, "echo", "hello")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(res.ExitCode, " ", res.Stdout)
	// Output: 0 hello
}

// A step that went wrong is undone: the sandbox goes back to where it was, in
// place.
func ExampleSandbox_Checkout() {
	ctx := context.Background()
	c, err := sietch.New(sietch.Options{})
	if err != nil {
		log.Fatal(err)
	}
	box, err := c.Run(ctx, sietch.RunRequest{From: "debian:bookworm"})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Remove(ctx, true)

	before, err := box.Commit(ctx, "before the upgrade")
	if err != nil {
		log.Fatal(err)
	}
	if err := box.WriteFile(ctx, "/etc/motd", strings.NewReader("broken\n"), 0o644); err != nil {
		log.Fatal(err)
	}
	if _, err := box.Checkout(ctx, before.Id); err != nil {
		log.Fatal(err)
	}
	motd, err := box.ReadFile(ctx, "/etc/motd")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", motd)
	// Output: hello
}

// Many attempts from one prepared machine; each is used as soon as it is ready.
func ExampleSandbox_ForkEach() {
	ctx := context.Background()
	c, err := sietch.New(sietch.Options{})
	if err != nil {
		log.Fatal(err)
	}
	box, err := c.Run(ctx, sietch.RunRequest{From: "debian:bookworm", Name: "base"})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Remove(ctx, true)

	for attempt, err := range box.ForkEach(ctx, sietch.ForkRequest{N: 3}) {
		if err != nil {
			log.Fatal(err)
		}
		res, err := attempt.Exec(ctx, "echo", "tried in", attempt.Name)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(res.Stdout)
		attempt.Remove(ctx, true)
	}
	// Output:
	// tried in base-1
	// tried in base-2
	// tried in base-3
}

// Output as it is written, and input at the same time.
func ExampleSandbox_ExecStream() {
	ctx := context.Background()
	c, err := sietch.New(sietch.Options{})
	if err != nil {
		log.Fatal(err)
	}
	box, err := c.Run(ctx, sietch.RunRequest{From: "debian:bookworm"})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Remove(ctx, true)

	run, err := box.ExecStream(ctx, sietch.ExecStart{Args: []string{"cat"}, Stdin: true})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		fmt.Fprintln(run, "one")
		fmt.Fprintln(run, "two")
		run.CloseStdin()
	}()
	exit, err := run.Copy(os.Stdout, os.Stderr)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("exit code", exit.Code)
	// Output:
	// one
	// two
	// exit code 0
}

// What went wrong is found by its code; the message and the hint are for people.
func ExampleError() {
	c, err := sietch.New(sietch.Options{})
	if err != nil {
		log.Fatal(err)
	}
	_, err = c.Sandbox("no-such").Inspect(context.Background())
	if errors.Is(err, sietch.NotFound) {
		fmt.Println(err)
	}
	// Output: no sandbox no-such (hint: sietch ps -a lists them)
}
