package runtime

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Logs copies what console and main process have said; with Follow, goes on
// until ctx ends or the sandbox does.
func (e *Local) Logs(ctx context.Context, q LogsRequest, w io.Writer) error {
	if err := e.readable(); err != nil {
		return err
	}
	r, err := e.find(q.Name)
	if err != nil {
		return err
	}
	var names []string
	switch q.Source {
	case "", "all":
		names = []string{"console.log", "main.log"}
	case "console", "main":
		names = []string{q.Source + ".log"}
	default:
		return usage("use all, console or main", "log source %q is not known", q.Source)
	}
	var open []*os.File
	defer func() {
		for _, f := range open {
			f.Close()
		}
	}()
	for _, n := range names {
		path := filepath.Join(e.sandbox(r.ID), n)
		f, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		open = append(open, f)
		if q.Tail > 0 {
			if err := seekTail(f, q.Tail); err != nil {
				return err
			}
		}
		if _, err := io.Copy(w, f); err != nil {
			return err
		}
	}
	if !q.Follow {
		return nil
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		// What is asked first decides: what a machine said before it ended is
		// still copied below.
		fresh, err := e.find(q.Name)
		gone := err != nil || !alive(fresh)
		for _, f := range open {
			if _, err := io.Copy(w, f); err != nil {
				return err
			}
		}
		if gone {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// seekTail puts the file position before the last n lines.
func seekTail(f *os.File, n int) error {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	buf := make([]byte, 32<<10)
	at, lines := end, 0
	for at > 0 {
		size := min(at, int64(len(buf)))
		at -= size
		if _, err := f.ReadAt(buf[:size], at); err != nil {
			return err
		}
		for i := size - 1; i >= 0; i-- {
			if buf[i] != '\n' || at+i == end-1 {
				continue
			}
			if lines++; lines == n {
				_, err := f.Seek(at+i+1, io.SeekStart)
				return err
			}
		}
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}

// tailOf returns the last bytes of a file, beginning at a line.
func tailOf(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	from := max(0, end-limit)
	data, err := io.ReadAll(io.NewSectionReader(f, from, end-from))
	if err != nil || from == 0 {
		return data, err
	}
	if _, rest, ok := bytes.Cut(data, []byte("\n")); ok {
		return rest, nil
	}
	return data, nil
}
