package runtime

import (
	"context"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/runtime/agent"
)

// CopyIn writes a tar stream beneath a directory of the guest.
func (e *Local) CopyIn(ctx context.Context, q CopyInRequest, tar io.Reader) error {
	return e.onPath(ctx, q.Name, q.Path, "copy to", func(c *agent.Client) error {
		return c.Put(ctx, agent.PutRequest{Path: q.Path}, tar)
	})
}

// CopyOut reads a file or directory of the guest as a tar stream.
func (e *Local) CopyOut(ctx context.Context, q CopyOutRequest, tar io.Writer) error {
	return e.onPath(ctx, q.Name, q.Path, "copy", func(c *agent.Client) error {
		return c.Get(ctx, agent.GetRequest{Path: q.Path, FollowLink: q.FollowLink}, tar)
	})
}

// StatPath describes a path of the guest; a link at its end is not followed.
func (e *Local) StatPath(ctx context.Context, name, path string) (PathStat, error) {
	var st proto.FileStat
	err := e.onPath(ctx, name, path, "look at", func(c *agent.Client) (err error) {
		st, err = c.Stat(ctx, path)
		return err
	})
	if err != nil {
		return PathStat{}, err
	}
	return pathView(st), nil
}

// ListDir lists a directory of the guest by name; a link at its end is followed.
func (e *Local) ListDir(ctx context.Context, name, path string) ([]PathStat, error) {
	list := []PathStat{}
	err := e.onPath(ctx, name, path, "list", func(c *agent.Client) error {
		all, err := c.List(ctx, path)
		for _, f := range all {
			list = append(list, pathView(f))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b PathStat) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// MakeDir makes a directory in the guest.
func (e *Local) MakeDir(ctx context.Context, name, path string, mode uint32, parents bool) error {
	if mode&^0o7777 != 0 {
		return usage("", "mode %#o is more than permissions", mode)
	}
	return e.onPath(ctx, name, path, "make directory", func(c *agent.Client) error {
		return c.MakeDir(ctx, proto.MakeDirRequest{Path: path, Mode: mode, Parents: parents})
	})
}

// RemovePath removes a path of the guest.
func (e *Local) RemovePath(ctx context.Context, name, path string, recursive bool) error {
	return e.onPath(ctx, name, path, "remove", func(c *agent.Client) error {
		return c.Remove(ctx, proto.RemoveRequest{Path: path, Recursive: recursive})
	})
}

// WatchPath tells changes of a path of the guest; it returns nil when ctx ends.
func (e *Local) WatchPath(ctx context.Context, q WatchRequest, each func(FileEvent) error) error {
	var enough error
	err := e.onPath(ctx, q.Name, q.Path, "watch", func(c *agent.Client) error {
		return c.Watch(ctx, proto.WatchRequest{Path: q.Path, Recursive: q.Recursive}, q.Started, func(v proto.FileEvent) error {
			enough = each(FileEvent{Path: v.Path, Op: v.Op, IsDir: v.IsDir})
			return enough
		})
	})
	switch {
	case enough != nil:
		return enough
	case ctx.Err() != nil:
		return nil
	}
	return err
}

// onPath runs fn with a client of the sandbox's guest.
func (e *Local) onPath(ctx context.Context, name, path, what string, fn func(*agent.Client) error) error {
	if err := absolute(path); err != nil {
		return err
	}
	c, err := e.guest(ctx, name)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.failed(ctx, what+" "+path, fn(c.Client))
}

func absolute(path string) error {
	switch {
	case !strings.HasPrefix(path, "/"):
		return usage("give a path that begins with /", "guest path %.200q is not absolute", path)
	case strings.ContainsRune(path, 0):
		return usage("", "guest path %.200q contains a NUL byte", path)
	case !utf8.ValidString(path):
		return usage("a tar of the directory above carries every name: sietch cp", "guest path %.200q is not UTF-8", path)
	}
	return nil
}

func pathView(st proto.FileStat) PathStat {
	return PathStat{Name: st.Name, SizeBytes: st.Size, Mode: st.Mode, UID: st.UID, GID: st.GID,
		Modified: st.MTime, LinkTarget: st.LinkTarget, IsDir: st.IsDir()}
}
