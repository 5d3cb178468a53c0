package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// saved is one full stop-and-save.
type saved struct {
	pause             time.Duration // the guest stood still
	bytes, compressed int64
}

// fullSave does to a running QEMU what is done without sietch: stop, write all
// of RAM and the devices through the migration stream to a file, sync, continue.
func fullSave(pid int) (saved, error) {
	q, err := monitorOf(pid)
	if err != nil {
		return saved{}, err
	}
	defer q.close()
	dump, err := os.CreateTemp("", "save-")
	if err != nil {
		return saved{}, err
	}
	defer os.Remove(dump.Name())
	defer dump.Close()
	// A jailed QEMU opens and connects to nothing: it is given its end.
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return saved{}, err
	}
	stream := os.NewFile(uintptr(ends[0]), "stream")
	defer stream.Close()
	err = q.give("stream", ends[1])
	if err := errors.Join(err, unix.Close(ends[1])); err != nil {
		return saved{}, err
	}

	// Unlimited: its usual limit would be measured instead.
	if err := q.do("migrate-set-parameters", map[string]any{"max-bandwidth": int64(1) << 40}); err != nil {
		return saved{}, err
	}
	written := make(chan error, 1)
	go func() {
		_, err := io.Copy(dump, stream)
		if err == nil {
			err = dump.Sync()
		}
		written <- err
	}()
	start := time.Now()
	if err := q.do("stop", nil); err != nil {
		return saved{}, err
	}
	if err := q.do("migrate", map[string]any{"uri": "fd:stream"}); err != nil {
		return saved{}, errors.Join(err, q.do("cont", nil))
	}
	err = <-written
	err = errors.Join(err, q.migrated(), q.do("cont", nil))
	s := saved{pause: time.Since(start)}
	if err != nil {
		return saved{}, err
	}
	if s.bytes, err = dump.Seek(0, io.SeekEnd); err != nil {
		return saved{}, err
	}
	if _, err := dump.Seek(0, io.SeekStart); err != nil {
		return saved{}, err
	}
	s.compressed, err = compressedSize(dump)
	return s, err
}

func compressedSize(r io.Reader) (int64, error) {
	var n counter
	w, err := zstd.NewWriter(&n)
	if err != nil {
		return 0, err
	}
	if _, err := io.Copy(w, r); err != nil {
		return 0, err
	}
	err = w.Close()
	return int64(n), err
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// monitorOf connects to the monitor of a QEMU process. Its command line names no
// path, the socket being handed down, so it is found among the process's own.
func monitorOf(pid int) (*qmp, error) {
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return nil, err
	}
	held := map[string]bool{}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil {
			if inode, ok := strings.CutPrefix(target, "socket:["); ok {
				held[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	// Unix sockets are listed in the network namespace they were made in.
	for _, list := range []string{"/proc/net/unix", fmt.Sprintf("/proc/%d/net/unix", pid)} {
		table, err := os.ReadFile(list)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(table)) {
			// Num RefCount Protocol Flags Type St Inode Path
			f := strings.Fields(line)
			if len(f) != 8 || !held[f[6]] {
				continue
			}
			if q, err := dialQMP(f[7]); err == nil {
				return q, nil
			}
		}
	}
	return nil, fmt.Errorf("process %d has no QMP monitor that answers", pid)
}

// qmp is a monitor connection; one command at a time.
type qmp struct {
	conn *net.UnixConn
	dec  *json.Decoder
}

func dialQMP(path string) (*qmp, error) {
	dialed, err := net.DialTimeout("unix", path, 5*time.Second)
	if err != nil {
		return nil, err
	}
	conn := dialed.(*net.UnixConn)
	conn.SetDeadline(time.Now().Add(5 * time.Minute))
	q := &qmp{conn, json.NewDecoder(conn)}
	var greeting struct{ QMP json.RawMessage }
	if err := q.dec.Decode(&greeting); err != nil || greeting.QMP == nil {
		conn.Close()
		return nil, fmt.Errorf("greet monitor: %w", err)
	}
	if err := q.do("qmp_capabilities", nil); err != nil {
		conn.Close()
		return nil, err
	}
	return q, nil
}

func (q *qmp) close() { q.conn.Close() }

func (q *qmp) do(command string, arguments any) error { return q.ask(command, arguments, nil) }

func (q *qmp) ask(command string, arguments, answer any) error {
	return q.send(command, arguments, answer, nil)
}

// give hands a descriptor over, under a name.
func (q *qmp) give(name string, fd int) error {
	return q.send("getfd", map[string]any{"fdname": name}, nil, unix.UnixRights(fd))
}

// send asks with what goes beside the bytes of the request.
func (q *qmp) send(command string, arguments, answer any, beside []byte) error {
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	data, err := json.Marshal(request)
	if err == nil {
		_, _, err = q.conn.WriteMsgUnix(data, beside, nil)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	for {
		var reply struct {
			Return json.RawMessage
			Error  *struct{ Desc string }
		}
		if err := q.dec.Decode(&reply); err != nil {
			return fmt.Errorf("%s: %w", command, err)
		}
		switch {
		case reply.Error != nil:
			return fmt.Errorf("%s: %s", command, reply.Error.Desc)
		case reply.Return == nil:
			continue // an event
		case answer != nil:
			return json.Unmarshal(reply.Return, answer)
		}
		return nil
	}
}

// migrated waits until QEMU says that the stream is complete.
func (q *qmp) migrated() error {
	for {
		var info struct {
			Status string
			Desc   string `json:"error-desc"`
		}
		if err := q.ask("query-migrate", nil, &info); err != nil {
			return err
		}
		switch info.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			return fmt.Errorf("migrate: %s %s", info.Status, info.Desc)
		}
		time.Sleep(time.Millisecond)
	}
}
