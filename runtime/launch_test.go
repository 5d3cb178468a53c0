package runtime

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/sietch-dev/sietch/runtime/vmm"
)

// awaited is a machine as start waits for it.
type awaited struct {
	vmm.Machine
	done   chan struct{}
	paused bool
}

func (m awaited) Done() <-chan struct{}                { return m.done }
func (m awaited) Paused(context.Context) (bool, error) { return m.paused, nil }

func TestWaitEndsWithMachine(t *testing.T) {
	for _, tc := range []struct {
		name         string
		gone, paused bool
		want         error
	}{
		{"gone", true, false, vmm.ErrGone},
		{"stands still", false, true, syscall.ENOSPC},
		{"runs", false, false, context.DeadlineExceeded},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := awaited{done: make(chan struct{}), paused: tc.paused}
				if tc.gone {
					close(m.done)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*lookForStill)
				defer cancel()
				ctx, stop := whileItRuns(ctx, m)
				defer stop()
				<-ctx.Done()
				if got := context.Cause(ctx); !errors.Is(got, tc.want) {
					t.Errorf("the wait ended with %v, want %v", got, tc.want)
				}
			})
		})
	}
}
