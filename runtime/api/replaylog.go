package api

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/google/renameio/v2"
)

// replayLogBytes is how large the file may become before it is written anew with
// what still counts, which is at most half of it.
const replayLogBytes = 256 << 20

// replayLog is where calls with a key are noted, so that the next server knows
// of them: before a call begins, and how it ended. A call that has begun and not
// ended was cut off with its server. One server at a time has the file open.
type replayLog struct {
	path  string
	limit int64
	mu    sync.Mutex
	file  *os.File
	size  int64
}

// note is a line of it. The last one of a key counts.
type note struct {
	Key     string    `json:"key"`
	Request string    `json:"request"`
	At      time.Time `json:"at"`
	// Answer of a call that succeeded; Free: it failed, and the key is free again.
	// Neither: it began.
	Answer *notedAnswer `json:"answer,omitempty"`
	Free   bool         `json:"free,omitempty"`
}

type notedAnswer struct {
	Status int         `json:"status"`
	Header http.Header `json:"header,omitempty"`
	Body   []byte      `json:"body,omitempty"`
}

func noteOf(e *replay, at time.Time) note {
	n := note{Key: hex.EncodeToString(e.key[:]), Request: hex.EncodeToString(e.request[:]), At: at}
	if a := e.answer; a != nil {
		n.Answer = &notedAnswer{a.status, a.header, a.body}
	}
	return n
}

// replay is what a note says; nil when it says nothing that can be read.
func (n note) replay() *replay {
	e := &replay{at: n.At, done: make(chan struct{})}
	for text, to := range map[string]*[32]byte{n.Key: &e.key, n.Request: &e.request} {
		data, err := hex.DecodeString(text)
		if err != nil || len(data) != len(to) {
			return nil
		}
		*to = [32]byte(data)
	}
	close(e.done)
	if n.Answer == nil {
		e.interrupted = true
	} else {
		e.answer = &answered{n.Answer.Status, n.Answer.Header, n.Answer.Body}
		if e.answer.header == nil {
			e.answer.header = http.Header{}
		}
	}
	return e
}

// openReplayLog reads what the last server noted, oldest first. The end of a
// line that a dying host left half written is no damage.
func openReplayLog(dir string) (*replayLog, []*replay, error) {
	l := &replayLog{path: filepath.Join(dir, "calls.jsonl"), limit: replayLogBytes}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make directory of noted calls: %w", err)
	}
	old, err := readNotes(l.path)
	if err != nil {
		return nil, nil, err
	}
	return l, old, nil
}

func readNotes(path string) ([]*replay, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read noted calls: %w", err)
	}
	defer f.Close()
	var order []string
	last := map[string]note{}
	in := bufio.NewReader(f)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			break
		}
		var n note
		if json.Unmarshal(line, &n) != nil {
			continue
		}
		// It stands where it was noted last.
		order = append(order, n.Key)
		last[n.Key] = n
	}
	var list []*replay
	for _, key := range slices.Backward(order) {
		n, fresh := last[key]
		delete(last, key)
		if !fresh || n.Free {
			continue
		}
		if e := n.replay(); e != nil {
			list = append(list, e)
		}
	}
	slices.Reverse(list)
	return list, nil
}

// rewrite makes the file anew of what still counts.
func (l *replayLog) rewrite(notes []note) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	t, err := renameio.NewPendingFile(l.path, renameio.WithPermissions(0o600), renameio.WithExistingPermissions())
	if err != nil {
		return fmt.Errorf("note calls: %w", err)
	}
	defer t.Cleanup()
	w := bufio.NewWriter(t)
	enc := json.NewEncoder(w)
	for _, n := range notes {
		if err := enc.Encode(n); err != nil {
			return fmt.Errorf("note calls: %w", err)
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("note calls: %w", err)
	}
	if err := t.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("note calls: %w", err)
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("note calls: %w", err)
	}
	if l.file != nil {
		l.file.Close()
	}
	l.file = f
	if l.size, err = f.Seek(0, io.SeekEnd); err != nil {
		return fmt.Errorf("note calls: %w", err)
	}
	return nil
}

// write adds a note; lasting ones are on the disk when it returns.
func (l *replayLog) write(n note, lasting bool) error {
	data, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("note call: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return fmt.Errorf("note call: %w", fs.ErrClosed)
	}
	// A line that a full disk cut off ends here, at the latest.
	wrote, err := l.file.Write(append(data, '\n'))
	if err != nil {
		if wrote > 0 {
			l.file.Truncate(l.size)
		}
		return fmt.Errorf("note call: %w", err)
	}
	l.size += int64(wrote)
	if lasting {
		if err := l.file.Sync(); err != nil {
			return fmt.Errorf("note call: %w", err)
		}
	}
	return nil
}

func (l *replayLog) full() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.size > l.limit
}
