package runtime

import (
	"context"
	"fmt"

	"github.com/docker/go-units"
)

// DefaultOvercommit is how many times the host's memory sandboxes may have
// together. They seldom use what they have, and forks share most of what they do.
const DefaultOvercommit = 10

// startBytes is what a machine needs of the host at once, its VMM included.
const startBytes = 64 << 20

// admit refuses more memory for running sandboxes than the host can stand.
func (e *Local) admit(ctx context.Context, more int64) error {
	global, err := e.lockSandboxes(ctx)
	if err != nil {
		return err
	}
	defer global.unlock()
	records, err := e.records()
	if err != nil {
		return err
	}
	return e.admitAmong(records, 1, more)
}

// admitAmong is admit for who holds lockSandboxes and has just read the records.
// Sandboxes of other data directories are not counted; what they use is, since
// it is not available any more.
func (e *Local) admitAmong(records []*record, n int, more int64) error {
	total, available, err := hostMemory()
	if err != nil {
		return err
	}
	var promised int64
	for _, r := range records {
		if r.Phase == creating || alive(r) {
			promised += r.Machine.memory()
		}
	}
	limit := int64(e.opts.Overcommit * float64(total))
	if promised+more > limit {
		return &Error{Kind: ErrHost,
			Message: fmt.Sprintf("the host's memory is promised already: running sandboxes have %s, %s more would be above %g times the %s there are",
				units.BytesSize(float64(promised)), units.BytesSize(float64(more)), e.opts.Overcommit, units.BytesSize(float64(total))),
			Hint: "stop some, make them smaller with sietch resize, or allow more with --overcommit RATIO"}
	}
	if need := int64(n) * startBytes; available < need {
		return &Error{Kind: ErrHost,
			Message: fmt.Sprintf("the host has %s of memory available and %s are needed to begin with", units.BytesSize(float64(available)), units.BytesSize(float64(need))),
			Hint:    "stop some sandboxes (sietch stats shows what they use), or take back what they have free: sietch reclaim NAME"}
	}
	return nil
}
