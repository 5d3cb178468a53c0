package arrakis

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/sietch-dev/sietch/runtime"
)

// Statuses are what [SetStatus] takes; the last two mean the third.
var Statuses = []string{"stopped", "paused", "resume", "resumed", "running"}

// SetStatus stops, pauses or resumes a machine.
func SetStatus(ctx context.Context, engine runtime.Engine, name, status string) error {
	switch status {
	case "stopped":
		return engine.Stop(ctx, runtime.StopRequest{Name: name})
	case "paused":
		return engine.Pause(ctx, name)
	case "resume", "resumed", "running":
		return engine.Resume(ctx, name)
	}
	return usage(fmt.Sprintf("status %.40q is not stopped, paused or resume", status), "")
}

// DestroyAll removes every machine that engine shows, a few at a time, and goes
// on after a failure. It returns the names of those that are gone.
func DestroyAll(ctx context.Context, engine runtime.Engine) ([]string, error) {
	boxes, err := engine.List(ctx, true)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var failed []error
	gone := []string{}
	var all errgroup.Group
	all.SetLimit(8)
	for _, b := range boxes {
		all.Go(func() error {
			err := engine.Remove(ctx, b.Name, true)
			mu.Lock()
			defer mu.Unlock()
			if err != nil && !errors.Is(err, runtime.ErrNotFound) {
				failed = append(failed, err)
			} else {
				gone = append(gone, b.Name)
			}
			return nil
		})
	}
	all.Wait()
	return gone, errors.Join(failed...)
}
