package runtime

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// The journal is a file of JSON lines in the data directory, to which whoever
// did something appends. When it has journalLimit bytes it becomes the old one,
// in place of the one before, and a new one begins: the last thousands of events
// are kept. Ids are given out beneath the lock of the journal, one after the
// other across processes, rotations and restarts. Nothing is synced: an event
// may be lost with the power, and a torn line is passed over.
const journalLimit = 4 << 20

// eventLimit bounds a line that is read.
const eventLimit = 64 << 10

func (l layout) journal() string    { return filepath.Join(l.data, "events.jsonl") }
func (l layout) oldJournal() string { return filepath.Join(l.data, "events.old.jsonl") }
func (l layout) journalLock() string {
	return filepath.Join(l.data, "events.lock")
}

// emit notes what has just happened. It comes after the fact, so it can only be
// said, not undone, when it fails.
func (e *Local) emit(ev Event) {
	if err := e.appendEvent(ev, journalLimit); err != nil {
		e.log.Warn("write event", "type", ev.Type, "err", err)
	}
}

func (l layout) appendEvent(ev Event, limit int64) (err error) {
	lock, err := waitLock(context.Background(), l.journalLock(), unix.LOCK_EX, 5*time.Second)
	if err != nil {
		return fmt.Errorf("lock journal: %w", err)
	}
	defer lock.unlock()
	st, err := os.Stat(l.journal())
	if err == nil && st.Size() >= limit {
		err = os.Rename(l.journal(), l.oldJournal())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("rotate journal: %w", err)
	}
	last, torn, err := l.lastEvent()
	if err != nil {
		return err
	}
	ev.ID, ev.Time = last+1, time.Now().UTC()
	line, err := json.Marshal(ev)
	if err != nil {
		return err
	}
	if torn {
		line = append([]byte("\n"), line...)
	}
	f, err := os.OpenFile(l.journal(), os.O_CREATE|os.O_APPEND|os.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.Write(append(line, '\n'))
	return err
}

// lastEvent returns the id of the newest event, 0 without one, and whether the
// journal ends within a line.
func (l layout) lastEvent() (id int64, torn bool, err error) {
	for i, path := range []string{l.journal(), l.oldJournal()} {
		tail, err := tailOf(path, 2*eventLimit)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, false, fmt.Errorf("read journal: %w", err)
		}
		torn = torn || i == 0 && len(tail) > 0 && tail[len(tail)-1] != '\n'
		for len(tail) > 0 {
			tail = bytes.TrimRight(tail, "\n")
			at := bytes.LastIndexByte(tail, '\n') + 1
			if ev, ok := parseEvent(tail[at:]); ok {
				return ev.ID, torn, nil
			}
			tail = tail[:at]
		}
	}
	return 0, torn, nil
}

func parseEvent(line []byte) (Event, bool) {
	var ev Event
	err := json.Unmarshal(line, &ev)
	return ev, err == nil && ev.ID > 0
}

// Events calls each for what is in the journal and, with Follow, for what is
// added to it, whoever does; then it returns nil when ctx ends.
func (e *Local) Events(ctx context.Context, q EventsRequest, each func(Event) error) error {
	if q.After < -1 {
		return usage("", "event id %d: not below -1", q.After)
	}
	if err := e.readable(); err != nil {
		return err
	}
	r := &journalReader{l: e.layout, last: q.After, each: each}
	if q.After < 0 {
		last, _, err := e.lastEvent()
		if err != nil {
			return err
		}
		r.last = last
	}
	if !q.Follow {
		return r.read()
	}
	if err := e.prepare(); err != nil {
		return err
	}
	return r.follow(ctx)
}

// journalReader reads on from the last event it has seen.
type journalReader struct {
	l    layout
	last int64
	each func(Event) error

	at   int64  // how much of the present journal was read
	file uint64 // its inode
}

// read calls each for all that is new. A rotation at any moment hides nothing:
// what the old journal has beyond the last event comes first.
func (r *journalReader) read() error {
	for {
		f, err := os.Open(r.l.journal())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read journal: %w", err)
		}
		var inode uint64
		var size int64
		if f != nil {
			var st unix.Stat_t
			if err := unix.Fstat(int(f.Fd()), &st); err != nil {
				f.Close()
				return fmt.Errorf("read journal: %w", err)
			}
			inode, size = st.Ino, st.Size
		}
		if f != nil && size < r.at {
			r.file = 0 // another that got the number of one long gone
		}
		if inode != r.file || f == nil {
			if err := r.readOld(); err != nil {
				f.Close()
				return err
			}
		}
		if f == nil {
			return nil
		}
		if inode != r.file {
			r.at, r.file = 0, inode
		}
		err = r.lines(f)
		f.Close()
		if err != nil {
			return err
		}
		// A rotation meanwhile has put another in its place.
		var now unix.Stat_t
		if unix.Stat(r.l.journal(), &now) != nil || now.Ino == inode {
			return nil
		}
	}
}

func (r *journalReader) readOld() error {
	f, err := os.Open(r.l.oldJournal())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read journal: %w", err)
	}
	defer f.Close()
	r.at = 0
	return r.lines(f)
}

// lines reads whole lines from r.at on.
func (r *journalReader) lines(f *os.File) error {
	if _, err := f.Seek(r.at, io.SeekStart); err != nil {
		return fmt.Errorf("read journal: %w", err)
	}
	in := bufio.NewReaderSize(f, eventLimit)
	for {
		line, err := in.ReadSlice('\n')
		switch {
		case err == nil, errors.Is(err, bufio.ErrBufferFull): // damaged
		case err == io.EOF:
			return nil // the rest is being written
		default:
			return fmt.Errorf("read journal: %w", err)
		}
		r.at += int64(len(line))
		if ev, ok := parseEvent(line); ok && ev.ID > r.last {
			r.last = ev.ID
			if err := r.each(ev); err != nil {
				return err
			}
		}
	}
}

// follow waits for the journal to change between reads.
func (r *journalReader) follow(ctx context.Context) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch journal: %w", err)
	}
	changes := os.NewFile(uintptr(fd), "inotify")
	defer changes.Close()
	// The directory, since the file may be another tomorrow.
	if _, err := unix.InotifyAddWatch(fd, r.l.data, unix.IN_MODIFY|unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
		return fmt.Errorf("watch journal: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { changes.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 4<<10)
	for {
		if err := r.read(); err != nil {
			return err
		}
		if _, err := changes.Read(buf); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("watch journal: %w", err)
		}
	}
}
