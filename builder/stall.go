package builder

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/moby/buildkit/client"
)

// errStalled: the upload of the context stopped moving. The protocol it uses has
// been seen to hang now and then (moby/buildkit#2950).
var errStalled = errors.New("the upload of the build context stalled")

// stallLimit is far longer than any pause of an upload that works: progress is
// reported with every packet.
const stallLimit = 90 * time.Second

// uploads follows the transfers of one build.
type uploads struct {
	moved map[string]time.Time // of each open transfer, when it last did
}

func (u *uploads) note(s *client.SolveStatus, now time.Time) {
	for _, v := range s.Statuses {
		if !strings.HasPrefix(v.ID, "transferring ") {
			continue
		}
		key := v.Vertex.String() + v.ID
		if v.Completed != nil {
			delete(u.moved, key)
			continue
		}
		if u.moved == nil {
			u.moved = map[string]time.Time{}
		}
		u.moved[key] = now
	}
	for _, v := range s.Vertexes {
		if v.Completed == nil {
			continue
		}
		for key := range u.moved {
			if strings.HasPrefix(key, v.Digest.String()) {
				delete(u.moved, key)
			}
		}
	}
}

func (u *uploads) stalled(now time.Time) bool {
	for _, t := range u.moved {
		if now.Sub(t) > stallLimit {
			return true
		}
	}
	return false
}

// guardUploads runs solve and passes on what it reports, but ends it with
// errStalled when an upload hangs.
func guardUploads(ctx context.Context, out chan *client.SolveStatus, solve func(context.Context, chan *client.SolveStatus) (*client.SolveResponse, error)) (*client.SolveResponse, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	in := make(chan *client.SolveStatus)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(out)
		var u uploads
		tick := time.NewTicker(5 * time.Second)
		defer tick.Stop()
		for {
			select {
			case s, ok := <-in:
				if !ok {
					return
				}
				u.note(s, time.Now())
				out <- s
			case <-tick.C:
				if u.stalled(time.Now()) {
					cancel(errStalled)
				}
			}
		}
	}()
	resp, err := solve(ctx, in) // closes in
	<-done
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return nil, errStalled
	}
	return resp, err
}
