package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/guestinit/proto/tartree"
)

const (
	// maxWatches bounds the directories of one watch: each takes about a
	// kilobyte of the kernel's memory.
	maxWatches = 32 << 10

	watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_EXCL_UNLINK
)

// serveWatch tells changes of a path as they happen.
func (c *conn) serveWatch(req *request) bool {
	var r proto.WatchRequest
	if err := decodeFiles(req.body, &r, &r.Path); err != nil {
		return c.fail(err)
	}
	w, err := newWatcher(r)
	if err != nil {
		return c.fail(fileError(err))
	}
	defer w.file.Close()
	return c.serveRecords(func(ctx context.Context, fw *proto.FrameWriter) error {
		w.tell = func(e proto.FileEvent) error {
			if !utf8.ValidString(e.Path) {
				e.RawPath = []byte(e.Path)
			}
			return sendRecord(fw, e)
		}
		if err := w.tell(proto.FileEvent{}); err != nil {
			return err
		}
		stop := context.AfterFunc(ctx, func() { w.file.SetReadDeadline(time.Unix(1, 0)) })
		defer stop()
		return fileError(w.run())
	})
}

// watcher is one inotify instance. A directory that comes to be beneath a
// recursive watch is watched too, and what is in it by then is told as created:
// it may be told twice.
type watcher struct {
	file      *os.File
	fd        int
	path      string // as asked for
	recursive bool
	tell      func(proto.FileEvent) error

	root  int32            // its watch
	paths map[int32]string // of watched files and directories
}

func newWatcher(r proto.WatchRequest) (_ *watcher, err error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", r.Path, err)
	}
	w := &watcher{file: os.NewFile(uintptr(fd), "inotify"), fd: fd, path: filepath.Clean(r.Path), recursive: r.Recursive, paths: map[int32]string{}}
	defer func() {
		if err != nil {
			w.file.Close()
		}
	}()
	wd, err := unix.InotifyAddWatch(fd, w.path, watchMask)
	if err != nil {
		return nil, watchError(w.path, err)
	}
	w.root = int32(wd)
	w.paths[w.root] = w.path
	if fi, err := os.Stat(w.path); err == nil && fi.IsDir() && r.Recursive {
		return w, w.below(w.path, nil)
	}
	return w, nil
}

// watchError explains the one error whose text is about something else.
func watchError(path string, err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return coded(proto.CodeInvalid, "watch %s: no more watches are allowed (fs.inotify.max_user_watches)", path)
	}
	return fmt.Errorf("watch %s: %w", path, err)
}

// below watches the directories in a directory. With found, it is called for
// everything there. What vanishes meanwhile is nothing to watch.
func (w *watcher) below(dir string, found func(path string, isDir bool) error) error {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return nil
	}
	for {
		entries, err := f.ReadDir(256)
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if found != nil && !tartree.Temporary(e.Name()) {
				if err := found(path, e.IsDir()); err != nil {
					return err
				}
			}
			if !e.IsDir() || w.ofKernel(path, st.Dev) {
				continue
			}
			switch added, err := w.add(path); {
			case err != nil:
				return err
			case added:
				if err := w.below(path, found); err != nil {
					return err
				}
			}
		}
		if err != nil {
			return nil // the end, or it has gone
		}
	}
}

// add watches a directory. It reports false for one that is not there any more.
func (w *watcher) add(dir string) (bool, error) {
	if len(w.paths) >= maxWatches {
		return false, coded(proto.CodeInvalid, "watch %s: there are more than %d directories", w.path, maxWatches)
	}
	wd, err := unix.InotifyAddWatch(w.fd, dir, watchMask|unix.IN_ONLYDIR|unix.IN_DONT_FOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return false, nil
	case err != nil:
		return false, watchError(dir, err)
	}
	w.paths[int32(wd)] = dir
	return true, nil
}

// ofKernel reports whether a directory shows kernel state, which changes
// without telling anybody.
func (w *watcher) ofKernel(dir string, dev uint64) bool {
	var st unix.Stat_t
	if unix.Lstat(dir, &st) != nil || st.Dev == dev {
		return false
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return tartree.KernelFiles(fd)
}

// run tells events until the path itself has gone, or reading fails: closing or
// a deadline ends it.
func (w *watcher) run() error {
	buf := make([]byte, 16<<10)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			return fmt.Errorf("watch %s: %w", w.path, cause(err))
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			wd := int32(binary.NativeEndian.Uint32(b))
			mask := binary.NativeEndian.Uint32(b[4:])
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
			name, _, _ := bytes.Cut(b[unix.SizeofInotifyEvent:size], []byte{0})
			if err := w.event(wd, mask, string(name)); err != nil {
				return err
			}
			b = b[size:]
		}
	}
}

func (w *watcher) event(wd int32, mask uint32, name string) error {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		if w.recursive {
			// Directories may be among what was not told.
			if err := w.below(w.path, nil); err != nil {
				return err
			}
		}
		return w.tell(proto.FileEvent{Path: w.path, Op: proto.OpOverflow})
	}
	path, known := w.paths[wd]
	if !known {
		return nil // of a directory that has gone
	}
	if tartree.Temporary(name) {
		return nil // of it there is what it will be called
	}
	isDir := mask&unix.IN_ISDIR != 0
	if name == "" {
		return w.itself(wd, mask, path, isDir)
	}
	path = filepath.Join(path, name)
	op := ""
	switch {
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		op = proto.OpCreate
	case mask&unix.IN_DELETE != 0:
		op = proto.OpRemove
	case mask&unix.IN_MOVED_FROM != 0:
		op = proto.OpRename
	case mask&unix.IN_MODIFY != 0:
		op = proto.OpWrite
	case mask&unix.IN_ATTRIB != 0:
		op = proto.OpAttributes
	default:
		return nil
	}
	if err := w.tell(proto.FileEvent{Path: path, Op: op, IsDir: isDir}); err != nil {
		return err
	}
	if !isDir || !w.recursive {
		return nil
	}
	switch op {
	case proto.OpRename:
		w.leave(path)
	case proto.OpCreate:
		if added, err := w.add(path); err != nil || !added {
			return err
		}
		return w.below(path, func(path string, isDir bool) error {
			return w.tell(proto.FileEvent{Path: path, Op: proto.OpCreate, IsDir: isDir})
		})
	}
	return nil
}

// itself is an event of a watched thing rather than of an entry of it. Those of
// directories beneath the top are told by their parents.
func (w *watcher) itself(wd int32, mask uint32, path string, isDir bool) error {
	if mask&unix.IN_IGNORED != 0 {
		delete(w.paths, wd)
	}
	if wd != w.root {
		return nil
	}
	e := proto.FileEvent{Path: path, IsDir: isDir}
	switch {
	case mask&unix.IN_DELETE_SELF != 0:
		e.Op = proto.OpRemove
	case mask&unix.IN_MOVE_SELF != 0:
		e.Op = proto.OpRename
	case mask&unix.IN_MODIFY != 0:
		e.Op = proto.OpWrite
	case mask&unix.IN_ATTRIB != 0:
		e.Op = proto.OpAttributes
	case mask&(unix.IN_IGNORED|unix.IN_UNMOUNT) != 0:
		return coded(proto.CodeNotFound, "watch %s: it is not there any more", path)
	default:
		return nil
	}
	if err := w.tell(e); err != nil {
		return err
	}
	if e.Op == proto.OpRemove || e.Op == proto.OpRename {
		return coded(proto.CodeNotFound, "watch %s: it is not there any more", path)
	}
	return nil
}

// leave ends the watches of a directory that was moved away. Where it was moved
// to, if that is watched, it is found anew.
func (w *watcher) leave(dir string) {
	for wd, path := range w.paths {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			delete(w.paths, wd)
			unix.InotifyRmWatch(w.fd, uint32(wd))
		}
	}
}
