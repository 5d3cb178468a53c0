package guestmem

import (
	"context"
	"fmt"
)

// addressRange is a part of the VMM's address space.
type addressRange struct{ start, bytes uint64 }

// Discard gives the host memory behind pages back and returns the bytes given
// back. The pages read as the memory file from then on, so their contents must
// mean nothing to the guest: the caller makes sure that nothing there uses them.
// The file itself is not touched, nor what other processes that map it see;
// VMMs' own ballooning punches holes into it, which is why they have none here.
//
// The guest may be running. The next [Tracker.Collect] reports the pages as
// changed. It is not to be called between a Collect and its Recollect.
func (m *Memory) Discard(ctx context.Context, pages *PageSet) (int64, error) {
	if err := m.check(pages); err != nil {
		return 0, fmt.Errorf("discard guest memory of process %d: %w", m.target.PID, err)
	}
	var ranges []addressRange
	for first, count := range pages.Runs() {
		for _, r := range m.regions {
			from, to := max(first, r.page), min(first+count, r.page+r.count)
			if from < to {
				ranges = append(ranges, addressRange{r.addr + uint64(from-r.page)*PageBytes, uint64(to-from) * PageBytes})
			}
		}
	}
	given := int64(0)
	err := injectDontNeed(ctx, m.target.PID, ranges, func(r addressRange) { given += int64(r.bytes) })
	if err == nil && !m.alive() {
		err = ErrGone
	}
	if err != nil {
		return given, fmt.Errorf("discard guest memory of process %d: %w", m.target.PID, err)
	}
	return given, nil
}
