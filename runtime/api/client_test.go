package api_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api"
	"github.com/sietch-dev/sietch/sdk/go/sietch"
)

// uppercase is an engine whose one sandbox knows one command.
type uppercase struct{ runtime.Engine }

func (uppercase) Inspect(_ context.Context, name string) (runtime.Sandbox, error) {
	if name != "box" {
		return runtime.Sandbox{}, &runtime.Error{Kind: runtime.ErrNotFound, Message: "sandbox " + name + " does not exist"}
	}
	return runtime.Sandbox{Name: name, State: runtime.Running, Head: runtime.Head{Branch: "box"}}, nil
}

func (uppercase) Exec(_ context.Context, _ runtime.ExecRequest, s runtime.ExecIO) (runtime.ExitStatus, error) {
	data, err := io.ReadAll(s.Stdin)
	fmt.Fprint(s.Stdout, strings.ToUpper(string(data)))
	return runtime.ExitStatus{Code: 3}, err
}

func (uppercase) Fork(_ context.Context, r runtime.ForkRequest, each func(runtime.Fork)) ([]runtime.Fork, error) {
	each(runtime.Fork{Name: r.Prefix + "-1"})
	return nil, &runtime.Error{Kind: runtime.ErrHost, Message: "no space left"}
}

// exampleServer stands for a server that `sietch serve` started.
func exampleServer() (url string, stop func()) {
	s, err := api.New(api.Options{Engine: uppercase{}})
	if err != nil {
		panic(err)
	}
	h := httptest.NewServer(s)
	return h.URL, h.Close
}

func Example_client() {
	url, stop := exampleServer()
	defer stop()
	ctx := context.Background()
	c, err := sietch.New(sietch.Options{URL: url})
	if err != nil {
		fmt.Println(err)
		return
	}
	box, err := c.Sandbox("box").Inspect(ctx)
	fmt.Println(box.Name, box.State, err)

	_, err = c.Sandbox("nobody").Inspect(ctx)
	fmt.Println(errors.Is(err, sietch.NotFound), err)
	// Output:
	// box running <nil>
	// true sandbox nobody does not exist
}

func Example_stream() {
	url, stop := exampleServer()
	defer stop()
	c, err := sietch.New(sietch.Options{URL: url})
	if err != nil {
		fmt.Println(err)
		return
	}
	run, err := c.Sandbox("box").ExecStream(context.Background(), sietch.ExecStart{Args: []string{"tr", "a-z", "A-Z"}, Stdin: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Fprintln(run, "hello")
	run.CloseStdin()
	exit, err := run.Copy(os.Stdout, nil)
	fmt.Println(exit.Code, err)
	// Output:
	// HELLO
	// 3 <nil>
}

func Example_fork() {
	url, stop := exampleServer()
	defer stop()
	c, err := sietch.New(sietch.Options{URL: url})
	if err != nil {
		fmt.Println(err)
		return
	}
	for copy, err := range c.ForkEach(context.Background(), sietch.ForkRequest{From: "box", N: 2, Prefix: "try"}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(copy.Name)
	}
	// Output:
	// try-1
	// no space left
}
