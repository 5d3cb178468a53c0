package api_test

import (
	"context"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api"
	"github.com/sietch-dev/sietch/runtime/api/client"
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
	c, err := client.Connect(client.Options{URL: url, Token: os.Getenv("SIETCH_TOKEN")})
	if err != nil {
		fmt.Println(err)
		return
	}
	box, err := client.JSON[client.Sandbox](c.InspectSandbox(ctx, "box"))
	fmt.Println(box.Name, box.State, err)

	_, err = client.JSON[client.Sandbox](c.InspectSandbox(ctx, "nobody"))
	fmt.Println(client.Is(err, "not_found"), err)
	// Output:
	// box running <nil>
	// true sandbox nobody does not exist
}

func Example_stream() {
	url, stop := exampleServer()
	defer stop()
	c, err := client.Connect(client.Options{URL: url})
	if err != nil {
		fmt.Println(err)
		return
	}
	exit, err := c.Stream(context.Background(), "box", client.ExecStart{Args: []string{"tr", "a-z", "A-Z"}}, client.Streams{
		Stdin: strings.NewReader("hello\n"), Stdout: os.Stdout,
	})
	fmt.Println(exit.Code, err)
	// Output:
	// HELLO
	// 3 <nil>
}

func Example_fork() {
	url, stop := exampleServer()
	defer stop()
	c, err := client.Connect(client.Options{URL: url})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = c.ForkEach(context.Background(), client.ForkRequest{From: "box", N: 2, Prefix: "try"}, func(f client.Fork) error {
		fmt.Println(f.Name)
		return nil
	})
	fmt.Println(err)
	// Output:
	// try-1
	// no space left
}
