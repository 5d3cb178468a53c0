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

// ListenTCP has QEMU listen on a port of its own choice, and stop that again.
func ListenTCP(ctx context.Context, m vmm.Machine) error {
	m.(*machine).mu.Lock()
	defer m.(*machine).mu.Unlock()
	address := map[string]any{"type": "inet", "data": map[string]any{"host": "127.0.0.1", "port": "0", "numeric": true}}
	return m.(*machine).monitor(ctx, func(q *qmp) error {
		err := q.run(ctx, "chardev-add", map[string]any{"id": "tcp", "backend": map[string]any{
			"type": "socket", "data": map[string]any{"addr": address, "server": true, "wait": false}}}, nil, nil)
		if err != nil {
			return err
		}
		return q.run(ctx, "chardev-remove", map[string]any{"id": "tcp"}, nil, nil)
	})
}
