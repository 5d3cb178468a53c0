package proto

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// DataWriter turns a byte stream into FrameData of full size.
type DataWriter struct {
	// Zeroes lets it send FrameZeroes: a file with holes is quick then.
	Zeroes bool

	fw  *FrameWriter
	buf []byte
}

// NewDataWriter writes frames to fw; Flush or End writes the last.
func NewDataWriter(fw *FrameWriter) *DataWriter {
	return &DataWriter{fw: fw, buf: make([]byte, FrameHeader, FrameHeader+MaxPayload)}
}

func (d *DataWriter) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 {
		n := min(len(p), cap(d.buf)-len(d.buf))
		d.buf = append(d.buf, p[:n]...)
		p = p[n:]
		if len(d.buf) == cap(d.buf) {
			if err := d.Flush(); err != nil {
				return total - len(p) - n, err
			}
		}
	}
	return total, nil
}

// Flush sends what is buffered.
func (d *DataWriter) Flush() error {
	if len(d.buf) == FrameHeader {
		return nil
	}
	payload := d.buf[FrameHeader:]
	var err error
	if d.Zeroes && payload[0] == 0 && bytes.Equal(payload[1:], payload[:len(payload)-1]) {
		err = d.fw.SendUint32(FrameZeroes, uint32(len(payload)))
	} else {
		err = d.fw.SendBuffer(FrameData, d.buf)
	}
	d.buf = d.buf[:FrameHeader]
	return err
}

// End sends what is buffered and the end of the stream.
func (d *DataWriter) End() error {
	if err := d.Flush(); err != nil {
		return err
	}
	return d.fw.Send(FrameEnd, nil)
}

// DataReader reads the bytes of a tar stream up to its FrameEnd: io.EOF for a
// plain end, a *StreamError for one that reports an error.
type DataReader struct {
	fr   *FrameReader
	left []byte
	err  error
}

// NewDataReader reads frames from fr.
func NewDataReader(fr *FrameReader) *DataReader { return &DataReader{fr: fr} }

func (d *DataReader) Read(p []byte) (int, error) {
	for len(d.left) == 0 && d.err == nil {
		d.left, d.err = d.next()
	}
	if len(d.left) == 0 {
		return 0, d.err
	}
	n := copy(p, d.left)
	d.left = d.left[n:]
	return n, nil
}

func (d *DataReader) next() ([]byte, error) {
	t, payload, err := d.fr.Next()
	switch {
	case err == io.EOF:
		return nil, io.ErrUnexpectedEOF
	case err != nil:
		return nil, err
	case t == FrameData:
		return payload, nil
	case t == FrameZeroes:
		n, err := Uint32(payload)
		if err != nil || n > MaxPayload {
			return nil, fmt.Errorf("%w: a run of %d zeroes", ErrFrame, n)
		}
		return zeroes[:n], nil
	case t != FrameEnd:
		return nil, fmt.Errorf("%w: frame %q inside a tar stream", ErrFrame, byte(t))
	case len(payload) == 0:
		return nil, io.EOF
	}
	e := new(StreamError)
	if err := json.Unmarshal(payload, &e.ErrorBody); err != nil {
		return nil, fmt.Errorf("%w: end of tar stream: %w", ErrFrame, err)
	}
	return nil, e
}

// zeroes is read, never written.
var zeroes [MaxPayload]byte

// StreamError is an error that ended a tar stream on the other side.
type StreamError struct{ ErrorBody }

func (e *StreamError) Error() string { return e.Message }
