package qemu

import (
	"context"

	"github.com/sietch-dev/sietch/runtime/vmm"
)

// DumpMemory has QEMU write guest-physical memory from 0 on to a file.
func DumpMemory(ctx context.Context, m vmm.Machine, file string, size int64) error {
	m.(*machine).mu.Lock()
	defer m.(*machine).mu.Unlock()
	return m.(*machine).monitor(ctx, func(q *qmp) error {
		return q.run(ctx, "pmemsave", map[string]any{"val": 0, "size": size, "filename": file}, nil, nil)
	})
}
