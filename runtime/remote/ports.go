package remote

import (
	"context"
	"io"
	"net/http"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api/client"
	"github.com/sietch-dev/sietch/runtime/api/wire"
)

func portRequest(p runtime.Port) client.PortRequest {
	return client.PortRequest{HostIp: p.HostIP, Host: int(p.Host), Guest: int(p.Guest), Protocol: client.PortRequestProtocol(p.Protocol)}
}

// AddPort forwards one more port.
func (e *Engine) AddPort(ctx context.Context, name string, p runtime.Port) (runtime.Port, error) {
	return about[runtime.Port](ctx, e, name, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.AddPort(ctx, name, nil, portRequest(p), with)
	})
}

// RemovePort ends a forwarding.
func (e *Engine) RemovePort(ctx context.Context, name string, p runtime.Port) error {
	return to(ctx, e, name, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		q := &client.RemovePortParams{HostIp: p.HostIP, Protocol: client.RemovePortParamsProtocol(p.Protocol)}
		return e.api.RemovePort(ctx, name, int(p.Host), q, with)
	})
}

// DialPort connects to a TCP port of the guest.
func (e *Engine) DialPort(ctx context.Context, name string, port uint16) (io.ReadWriteCloser, error) {
	if err := sandbox(name); err != nil {
		return nil, err
	}
	c, err := wire.DialPort(ctx, e.calls, name, port)
	if err != nil {
		return nil, e.execFailed(ctx, err)
	}
	return c, nil
}

// Events tells what happens in the data directory; it returns nil when ctx ends.
func (e *Engine) Events(ctx context.Context, r runtime.EventsRequest, each func(runtime.Event) error) error {
	return follow(ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.Events(ctx, &client.EventsParams{After: &r.After, Follow: &r.Follow}, with)
	}, "", nil, each)
}
