package agent

import (
	"context"
	"errors"
	"net/http"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// List describes what is in a directory, in no order.
func (c *Client) List(ctx context.Context, path string) ([]proto.FileStat, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	list := []proto.FileStat{}
	err := c.records(ctx, "/v1/files/list", proto.ListRequest{Path: path}, func(t proto.FrameType, payload []byte) error {
		if len(list) >= listLimit {
			return errors.New("the directory has more than a million entries")
		}
		var f proto.FileStat
		if err := record(t, payload, &f); err != nil {
			return err
		}
		// What JSON cannot carry comes apart.
		if f.RawName != nil {
			f.Name, f.RawName = string(f.RawName), nil
		}
		if f.RawTarget != nil {
			f.LinkTarget, f.RawTarget = string(f.RawTarget), nil
		}
		list = append(list, f)
		return nil
	})
	return list, err
}

// MakeDir makes a directory.
func (c *Client) MakeDir(ctx context.Context, req proto.MakeDirRequest) error {
	if err := checkPath(req.Path); err != nil {
		return err
	}
	return c.do(ctx, http.MethodPost, "/v1/files/mkdir", req, nil)
}

// Remove removes a path.
func (c *Client) Remove(ctx context.Context, req proto.RemoveRequest) error {
	if err := checkPath(req.Path); err != nil {
		return err
	}
	return c.do(ctx, http.MethodPost, "/v1/files/remove", req, nil)
}

// Watch calls each for every change of a path until ctx ends, the path has gone
// or each returns an error, which is returned. started, if set, is called once
// changes are being watched.
func (c *Client) Watch(ctx context.Context, req proto.WatchRequest, started func(), each func(proto.FileEvent) error) error {
	if err := checkPath(req.Path); err != nil {
		return err
	}
	return c.records(ctx, "/v1/files/watch", req, func(t proto.FrameType, payload []byte) error {
		var e proto.FileEvent
		if err := record(t, payload, &e); err != nil {
			return err
		}
		if e.Op == "" {
			if started != nil {
				started()
			}
			return nil
		}
		if e.RawPath != nil {
			e.Path, e.RawPath = string(e.RawPath), nil
		}
		return each(e)
	})
}
