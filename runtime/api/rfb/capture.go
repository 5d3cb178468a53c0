package rfb

import (
	"context"
	"encoding/binary"
	"fmt"
	"image"
	"io"
)

// Encodings that are asked for.
const (
	encodingRaw  = 0
	encodingSize = -223
)

// Messages of a server.
const (
	messageUpdate = 0
	messageColors = 1
	messageBell   = 2
	messageCut    = 3
)

// Capture is a photograph of the display: every pixel is as the server had it
// after this was called.
func (c *Client) Capture(ctx context.Context) (*image.RGBA, error) {
	var f *frame
	err := c.bounded(ctx, func() error {
		f = newFrame(c.width, c.height)
		if err := c.request(); err != nil {
			return err
		}
		for f.missing > 0 {
			resized, err := c.message(f)
			if err != nil {
				return err
			}
			if resized {
				f = newFrame(c.width, c.height)
				if err := c.request(); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return f.RGBA, nil
}

// request asks for the whole display, changed or not.
func (c *Client) request() error {
	m := []byte{3, 0, 0, 0, 0, 0}
	m = binary.BigEndian.AppendUint16(m, uint16(c.width))
	return c.write(binary.BigEndian.AppendUint16(m, uint16(c.height)))
}

// message reads one message into f and tells whether the display has another
// size now, so that f is of no use any more.
func (c *Client) message(f *frame) (resized bool, err error) {
	kind, err := c.in.ReadByte()
	if err != nil {
		return false, fmt.Errorf("read message: %w", err)
	}
	switch kind {
	case messageUpdate:
		return c.update(f)
	case messageBell:
		return false, nil
	case messageColors: // means nothing with true colour, but may come
		var head struct {
			_    byte
			_, N uint16
		}
		if err := binary.Read(c.in, binary.BigEndian, &head); err != nil {
			return false, fmt.Errorf("read colours: %w", err)
		}
		return false, c.skip(6 * int64(head.N))
	case messageCut:
		var head struct {
			_ [3]byte
			N uint32
		}
		if err := binary.Read(c.in, binary.BigEndian, &head); err != nil {
			return false, fmt.Errorf("read cut text: %w", err)
		}
		return false, c.skip(int64(head.N))
	}
	return false, fmt.Errorf("message %d is not known", kind)
}

func (c *Client) skip(n int64) error {
	_, err := io.CopyN(io.Discard, c.in, n)
	return err
}

// update reads the rectangles of one update. Those after a change of size are
// read too, and lost.
func (c *Client) update(f *frame) (resized bool, err error) {
	var head struct {
		_ byte
		N uint16
	}
	if err := binary.Read(c.in, binary.BigEndian, &head); err != nil {
		return false, fmt.Errorf("read update: %w", err)
	}
	for range head.N {
		var r struct {
			X, Y, Width, Height uint16
			Encoding            int32
		}
		if err := binary.Read(c.in, binary.BigEndian, &r); err != nil {
			return resized, fmt.Errorf("read rectangle: %w", err)
		}
		switch r.Encoding {
		case encodingSize:
			if err := c.resize(int(r.Width), int(r.Height)); err != nil {
				return resized, err
			}
			f, resized = newFrame(c.width, c.height), true
		case encodingRaw:
			if err := f.read(c.in, int(r.X), int(r.Y), int(r.Width), int(r.Height)); err != nil {
				return resized, fmt.Errorf("read rectangle: %w", err)
			}
		default:
			return resized, fmt.Errorf("encoding %d was not asked for", r.Encoding)
		}
	}
	return resized, nil
}

// frame is a picture on its way.
type frame struct {
	*image.RGBA
	missing int // pixels that have not come yet, those with alpha 0
}

func newFrame(width, height int) *frame {
	return &frame{image.NewRGBA(image.Rect(0, 0, width, height)), width * height}
}

func (f *frame) read(in io.Reader, x, y, width, height int) error {
	if x+width > f.Rect.Dx() || y+height > f.Rect.Dy() {
		return fmt.Errorf("%d by %d pixels at %d,%d are outside of the display", width, height, x, y)
	}
	for row := y; row < y+height; row++ {
		at := f.PixOffset(x, row)
		line := f.Pix[at : at+4*width]
		for i := 3; i < len(line); i += 4 {
			if line[i] == 0 {
				f.missing--
			}
		}
		if _, err := io.ReadFull(in, line); err != nil {
			return err
		}
		for i := 3; i < len(line); i += 4 {
			line[i] = 0xff
		}
	}
	return nil
}
