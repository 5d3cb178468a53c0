package proto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// A stream is what a connection carries after the 101 answer to an upgrade
// request: frames in both directions until the host has sent [FrameDone]. Then
// the connection speaks HTTP again, so one connection serves any number of
// execs. A frame is a type byte, the payload's length in three bytes, big
// endian, and the payload.
//
// Exec: the guest sends FrameStarted, then FrameStdout and FrameStderr as
// output appears, and FrameExit last. The host sends FrameStdin within the
// window the guest has granted, FrameStdinEOF, FrameResize and FrameSignal at
// any time. Without the window a process that does not read its stdin would
// keep a signal or the loss of the client from being noticed behind it.
//
// Tar: the sender of the archive sends FrameData and then FrameEnd; the guest
// always ends the stream with a FrameEnd of its own, which may come early. Since
// revision 1, FrameZeroes may stand for a FrameData.
//
// Records: the guest sends FrameRecord, FrameOffset and FrameData and FrameEnd
// last. The host sends nothing but FrameDone, and goes to end the stream early.

// Upgrade tokens.
const (
	UpgradeExec = "sietch-exec"
	UpgradeTar  = "sietch-tar"
	// UpgradeRecords is for answers that are long, or come little by little.
	UpgradeRecords = "sietch-records"
)

// VersionHeader carries [Version] in every request and answer, RevisionHeader
// [Revision] in every answer.
const (
	VersionHeader  = "Sietch-Version"
	RevisionHeader = "Sietch-Revision"
)

// FrameType says what a frame is.
type FrameType byte

const (
	// Host to guest.
	FrameStdin    FrameType = 'i' // bytes for stdin
	FrameStdinEOF FrameType = 'z' // no more stdin
	FrameResize   FrameType = 'r' // rows and columns, two bytes each
	FrameSignal   FrameType = 's' // signal number, one byte, for the process group
	FrameDone     FrameType = 'd' // the guest's last frame was seen; HTTP again

	// Guest to host.
	FrameStarted FrameType = 'p' // pid, four bytes
	FrameStdout  FrameType = 'o'
	FrameStderr  FrameType = 'e'
	FrameWindow  FrameType = 'w' // four bytes: so many more bytes of stdin may be sent
	FrameExit    FrameType = 'x' // ExitStatus as JSON; the last frame
	FrameRecord  FrameType = 'j' // one JSON value; which, the route says
	FrameOffset  FrameType = 'f' // eight bytes: where in the output the next FrameData begins

	// Both.
	FrameData   FrameType = 'a' // bytes of a tar stream, or of output
	FrameZeroes FrameType = 'n' // four bytes: so many bytes of a tar stream, up to MaxPayload, all zero
	FrameEnd    FrameType = 'E' // end of a stream of tar or records: nothing, or an ErrorBody as JSON
)

const (
	// FrameHeader is the size of a frame's header.
	FrameHeader = 4
	// MaxPayload is the largest payload either side may send.
	MaxPayload = 64 << 10
	// StdinWindow is how many bytes of stdin the host may have under way when
	// a stream starts.
	StdinWindow = 256 << 10
)

// ErrFrame is wrapped by errors about bytes that are not frames.
var ErrFrame = errors.New("malformed stream")

// A FrameReader reads frames. Not safe for concurrent use.
type FrameReader struct {
	r    io.Reader
	head [FrameHeader]byte
	buf  []byte
}

// NewFrameReader reads from r, which is best buffered.
func NewFrameReader(r io.Reader) *FrameReader { return &FrameReader{r: r} }

// Next returns the next frame. The payload is valid until the following call.
// The error is io.EOF only between frames.
func (f *FrameReader) Next() (FrameType, []byte, error) {
	if _, err := io.ReadFull(f.r, f.head[:]); err != nil {
		return 0, nil, err
	}
	n := int(f.head[1])<<16 | int(f.head[2])<<8 | int(f.head[3])
	if n > MaxPayload {
		return 0, nil, fmt.Errorf("%w: frame %q of %d bytes", ErrFrame, f.head[0], n)
	}
	if n > cap(f.buf) {
		// Most streams only ever see small frames; those that carry data get
		// the full size at once.
		size := 512
		if n > size {
			size = MaxPayload
		}
		f.buf = make([]byte, size)
	}
	p := f.buf[:n]
	if _, err := io.ReadFull(f.r, p); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return FrameType(f.head[0]), p, nil
}

// A FrameWriter writes whole frames, each with one Write. Safe for concurrent
// use.
type FrameWriter struct {
	mu    sync.Mutex
	w     io.Writer
	small []byte
}

// NewFrameWriter writes to w, unbuffered.
func NewFrameWriter(w io.Writer) *FrameWriter { return &FrameWriter{w: w} }

// Send writes a frame with a copy of payload.
func (f *FrameWriter) Send(t FrameType, payload []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.small = append(append(f.small[:0], 0, 0, 0, 0), payload...)
	return f.send(t, f.small)
}

// SendBuffer writes a frame without copying: buf[FrameHeader:] is the payload,
// and the bytes before it are overwritten.
func (f *FrameWriter) SendBuffer(t FrameType, buf []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.send(t, buf)
}

func (f *FrameWriter) send(t FrameType, buf []byte) error {
	n := len(buf) - FrameHeader
	if n > MaxPayload {
		return fmt.Errorf("%w: frame %q of %d bytes", ErrFrame, byte(t), n)
	}
	binary.BigEndian.PutUint32(buf, uint32(n))
	buf[0] = byte(t)
	_, err := f.w.Write(buf)
	return err
}

// SendUint32 writes a frame of one number.
func (f *FrameWriter) SendUint32(t FrameType, v uint32) error {
	return f.Send(t, binary.BigEndian.AppendUint32(nil, v))
}

// Uint32 is the payload of FrameStarted and FrameWindow.
func Uint32(payload []byte) (uint32, error) {
	if len(payload) != 4 {
		return 0, fmt.Errorf("%w: %d bytes for a number", ErrFrame, len(payload))
	}
	return binary.BigEndian.Uint32(payload), nil
}

// Offset is the payload of FrameOffset.
func Offset(payload []byte) (int64, error) {
	if len(payload) != 8 || payload[0] > 127 {
		return 0, fmt.Errorf("%w: %d bytes for an offset", ErrFrame, len(payload))
	}
	return int64(binary.BigEndian.Uint64(payload)), nil
}

// Resize is the payload of FrameResize.
func Resize(payload []byte) (rows, cols uint16, err error) {
	v, err := Uint32(payload)
	return uint16(v >> 16), uint16(v), err
}
