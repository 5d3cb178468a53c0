package arrakis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/sietch-dev/sietch/runtime"
)

// SnapshotRef is a snapshot's tag as a REF that cannot be taken for a sandbox or
// branch; other REFs do too.
func SnapshotRef(ctx context.Context, engine runtime.Engine, id string) (string, error) {
	tags, err := engine.ListRefs(ctx, runtime.TagRef)
	if err != nil {
		return "", err
	}
	for _, t := range tags {
		if t.Name == id {
			return "tag/" + id, nil
		}
	}
	if _, err := engine.Show(ctx, id); err != nil {
		if errors.Is(err, runtime.ErrUsage) || errors.Is(err, runtime.ErrNotFound) {
			return "", notFound(fmt.Sprintf("snapshot %.100q does not exist", id), "sietch tag lists them")
		}
		return "", err
	}
	return id, nil
}

// Snapshot commits a machine and calls the commit id, or something of its name
// where id is empty. A name in use is refused before anything is done.
func Snapshot(ctx context.Context, engine runtime.Engine, name, id string) (string, error) {
	if id == "" {
		id = name[:min(len(name), 40)] + "-" + strings.ToLower(rand.Text()[:8])
	}
	// What can be known before is: a commit is no small thing.
	if runtime.ValidateName("snapshot", id) != nil {
		return "", usage(fmt.Sprintf("snapshotId %.100q does not match [a-z0-9][a-z0-9._-]{0,62}, or has two dots in a row", id), "")
	}
	for _, kind := range []runtime.RefKind{runtime.TagRef, runtime.BranchRef} {
		refs, err := engine.ListRefs(ctx, kind)
		if err != nil {
			return "", err
		}
		for _, t := range refs {
			if t.Name == id {
				return "", busy(fmt.Sprintf("a %s is called %s already", kind, id), "choose another snapshotId")
			}
		}
	}
	c, err := engine.Commit(ctx, runtime.CommitRequest{Name: name, Message: "snapshot " + id})
	if err != nil {
		return "", err
	}
	if _, err := engine.CreateRef(context.WithoutCancel(ctx), runtime.TagRef, id, c.ID); err != nil {
		return "", fmt.Errorf("tag commit %s: %w", c.ID, err)
	}
	return id, nil
}
