package guestboot

import (
	"context"
	"fmt"
)

func ensure(ctx context.Context, o Options) (Guest, error) {
	return Guest{}, fmt.Errorf("fetch guest kernel: %w", ErrMirror)
}

func find(ctx context.Context, o Options, d Digests) (Guest, error) {
	return Guest{}, fmt.Errorf("find guest kernel %s: %w", d.Kernel, ErrNotFound)
}

func withConfig(base, dst string, config []byte) error { return fmt.Errorf("write initramfs: not yet") }
