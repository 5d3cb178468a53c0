package runtime

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/branches"
)

// expiry is when a sandbox made now with that time to live goes; nil for none.
func expiry(ttl time.Duration) *time.Time {
	if ttl <= 0 {
		return nil
	}
	at := time.Now().Add(ttl).UTC()
	return &at
}

func (r *record) expired(now time.Time) bool { return r.Expires != nil && !now.Before(*r.Expires) }

// Expire removes the sandboxes whose time is up, running or not, and returns
// their names. One that another command is changing goes with that command or
// the next. Without a caller, every command that makes or changes a sandbox
// does the same to what it meets.
func (e *Local) Expire(ctx context.Context) (removed []string, err error) {
	if err := e.readable(); err != nil {
		return nil, err
	}
	all, err := e.records()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, r := range all {
		if r.Phase != settled || !r.expired(time.Now()) {
			continue
		}
		gone, err := e.expireOne(ctx, r.ID)
		if err != nil {
			errs = append(errs, fmt.Errorf("remove expired sandbox %s: %w", r.Name, err))
		}
		if gone {
			removed = append(removed, r.Name)
		}
	}
	return removed, errors.Join(errs...)
}

func (e *Local) expireOne(ctx context.Context, id string) (gone bool, err error) {
	if err := e.prepare(); err != nil {
		return false, err
	}
	lock, err := tryLock(filepath.Join(e.sandbox(id), "lock"), unix.LOCK_EX)
	if err != nil {
		return false, nil
	}
	defer lock.unlock()
	r, err := e.load(id)
	if err != nil || r.Phase != settled || !r.expired(time.Now()) {
		return false, nil // somebody was faster
	}
	err = e.destroy(ctx, r)
	return err == nil, err
}

// commitText is a commit's id, "" for none.
func commitText(id branches.Hash) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}
