package builder

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/moby/buildkit/client"
	"github.com/moby/buildkit/solver/errdefs"
	"github.com/moby/buildkit/util/progress/progressui"
	"golang.org/x/sync/errgroup"
)

// display shows the progress of a build.
type display struct {
	mode string
	out  io.Writer
}

func (d display) check() error {
	modes := []string{"", "auto", "plain", "rawjson", "quiet"}
	if !slices.Contains(modes, d.mode) {
		return fmt.Errorf("%q is none of auto, plain, rawjson, quiet", d.mode)
	}
	return nil
}

// watch runs solve and shows what it reports. The display ends when the reports
// do, also when ctx is cancelled: the last lines are those that say why.
func (d display) watch(ctx context.Context, solve func(context.Context, chan *client.SolveStatus) (*client.SolveResponse, error)) (*client.SolveResponse, error) {
	out := d.out
	if out == nil {
		out = os.Stderr
	}
	ui, err := progressui.NewDisplay(out, progressui.DisplayMode(d.mode))
	if err != nil {
		return nil, fmt.Errorf("show progress: %w", err)
	}
	status := make(chan *client.SolveStatus)
	var (
		g        errgroup.Group
		resp     *client.SolveResponse
		warnings []client.VertexWarning
	)
	g.Go(func() error {
		var err error
		resp, err = solve(ctx, status) // closes status
		return err
	})
	var shown error
	g.Go(func() error {
		warnings, shown = ui.UpdateFrom(context.WithoutCancel(ctx), status)
		for range status { // a display that gave up must not block the build
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if shown != nil {
		return nil, fmt.Errorf("show progress: %w", shown)
	}
	if d.mode == "" || d.mode == "auto" || d.mode == "plain" {
		printWarnings(out, warnings)
	}
	return resp, nil
}

// ShowProgress shows, as a build at a terminal does, the reports of one that runs
// elsewhere with the progress rawjson: a JSON object a line. It returns when
// there are no more.
func ShowProgress(out *os.File, reports io.Reader) error {
	ui, err := progressui.NewDisplay(out, progressui.AutoMode)
	if err != nil {
		return fmt.Errorf("show progress: %w", err)
	}
	status := make(chan *client.SolveStatus)
	var g errgroup.Group
	g.Go(func() error {
		defer close(status)
		in := json.NewDecoder(reports)
		for {
			var s client.SolveStatus
			switch err := in.Decode(&s); {
			case errors.Is(err, io.EOF):
				return nil
			case err != nil:
				return fmt.Errorf("show progress: %w", err)
			}
			status <- &s
		}
	})
	warnings, shown := ui.UpdateFrom(context.Background(), status)
	for range status {
	}
	if err := errors.Join(g.Wait(), shown); err != nil {
		return err
	}
	printWarnings(out, warnings)
	return nil
}

// printWarnings lists what the frontend found fault with.
func printWarnings(w io.Writer, warnings []client.VertexWarning) {
	if len(warnings) == 0 {
		return
	}
	fmt.Fprintf(w, "\n %d warning(s):\n", len(warnings))
	for _, x := range warnings {
		fmt.Fprintf(w, " - %s\n", x.Short)
		for _, line := range x.Detail {
			fmt.Fprintf(w, "   %s\n", line)
		}
		if x.URL != "" {
			fmt.Fprintf(w, "   more: %s\n", x.URL)
		}
		if x.SourceInfo != nil && len(x.Range) > 0 {
			var b bytes.Buffer
			src := errdefs.Source{Info: x.SourceInfo, Ranges: x.Range}
			if src.Print(&b) == nil {
				w.Write(b.Bytes())
			}
		}
	}
}

// printSources writes the lines of the Dockerfile an error is about.
func printSources(w io.Writer, err error) {
	for _, s := range errdefs.Sources(err) {
		// Writing to memory does not fail.
		_ = s.Print(w)
	}
}

// buildError is a build that failed because of its Dockerfile.
type buildError struct {
	where string
	lines string
	cause error
}

func (e *buildError) Error() string {
	cause := strings.TrimPrefix(e.cause.Error(), "failed to solve: ")
	if e.lines == "" {
		return fmt.Sprintf("build %s: %s", e.where, cause)
	}
	return fmt.Sprintf("build %s: %s\n%s", e.where, cause, strings.TrimRight(e.lines, "\n"))
}

// Unwrap makes errors.Is find ErrDockerfile, where lines of the file are to
// blame.
func (e *buildError) Unwrap() []error {
	if e.lines != "" {
		return []error{ErrDockerfile, e.cause}
	}
	return []error{e.cause}
}

var _ error = (*buildError)(nil)
