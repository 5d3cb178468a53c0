package rfb

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// Sentinels of [Connect].
var (
	ErrNotRFB   = errors.New("no RFB server")
	ErrPassword = errors.New("the server wants a password, or another one")
)

// Bounds of what a server may claim.
const (
	maxPixels = 7680 * 4320
	maxText   = 64 << 10
)

// Client is a connection to a server.
type Client struct {
	conn          io.ReadWriteCloser
	in            *bufio.Reader
	width, height int
	name          string
}

// Options of [Connect].
type Options struct {
	Password string // for security type VNC; only its first eight bytes count
}

// Connect does the handshake on a connection, which it owns from then on: it is
// closed when this fails or ctx ends, and by Close. Other viewers stay.
func Connect(ctx context.Context, conn io.ReadWriteCloser, o Options) (*Client, error) {
	c := &Client{conn: conn, in: bufio.NewReaderSize(conn, 64<<10)}
	err := c.bounded(ctx, func() error {
		if err := c.greet(o); err != nil {
			return err
		}
		return c.begin()
	})
	if err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

// Size is that of the display in pixels, as last heard.
func (c *Client) Size() (width, height int) { return c.width, c.height }

// Name is what the server calls the display.
func (c *Client) Name() string { return c.name }

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// bounded runs fn, which blocks on the connection, and closes that when ctx ends.
func (c *Client) bounded(ctx context.Context, fn func() error) error {
	stop := context.AfterFunc(ctx, func() { c.conn.Close() })
	err := fn()
	if !stop() && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// begin is what follows the handshake: the display's measures, and how its
// pixels are to come.
func (c *Client) begin() error {
	if err := c.write([]byte{1}); err != nil { // ClientInit: shared
		return err
	}
	var head struct {
		Width, Height uint16
		Format        [16]byte
		NameBytes     uint32
	}
	if err := binary.Read(c.in, binary.BigEndian, &head); err != nil {
		return fmt.Errorf("read display: %w", err)
	}
	if err := c.resize(int(head.Width), int(head.Height)); err != nil {
		return err
	}
	name, err := c.text(head.NameBytes)
	if err != nil {
		return fmt.Errorf("read name of display: %w", err)
	}
	c.name = name
	return c.write([]byte{
		0, 0, 0, 0, // SetPixelFormat: bytes R, G, B and one that is nothing
		32, 24, 0, 1, // bits, depth, little-endian, true colour
		0, 255, 0, 255, 0, 255, 0, 8, 16, // maxima and shifts
		0, 0, 0,
		2, 0, 0, 2, // SetEncodings: two
		0, 0, 0, encodingRaw,
		0xff, 0xff, 0xff, 0x21, // -223, the display's size changed
	})
}

func (c *Client) resize(width, height int) error {
	if width == 0 || height == 0 || width*height > maxPixels {
		return fmt.Errorf("display of %d by %d pixels: not between 1 and %d", width, height, maxPixels)
	}
	c.width, c.height = width, height
	return nil
}

// Key presses or lets go of a key, which is a keysym of X11: for Latin-1 the
// character itself.
func (c *Client) Key(keysym uint32, down bool) error {
	m := []byte{4, flag(down), 0, 0}
	return c.write(binary.BigEndian.AppendUint32(m, keysym))
}

// Type strikes the keys of a text of printable ASCII, with a while between them
// for servers whose programs poll.
func (c *Client) Type(text string, between time.Duration) error {
	for _, r := range text {
		if r < ' ' || r > '~' {
			return fmt.Errorf("type %q: only printable ASCII can be typed", r)
		}
		if err := errors.Join(c.Key(uint32(r), true), c.Key(uint32(r), false)); err != nil {
			return err
		}
		time.Sleep(between)
	}
	return nil
}

// Point moves the pointer; bit 0 of buttons is the left one.
func (c *Client) Point(x, y int, buttons byte) error {
	if x < 0 || y < 0 || x >= c.width || y >= c.height {
		return fmt.Errorf("point at %d,%d: not on a display of %d by %d", x, y, c.width, c.height)
	}
	m := []byte{5, buttons}
	m = binary.BigEndian.AppendUint16(m, uint16(x))
	return c.write(binary.BigEndian.AppendUint16(m, uint16(y)))
}

// Click moves the pointer, presses its left button and lets it go.
func (c *Client) Click(x, y int) error {
	return errors.Join(c.Point(x, y, 0), c.Point(x, y, 1), c.Point(x, y, 0))
}

func (c *Client) write(b []byte) error {
	if _, err := c.conn.Write(b); err != nil {
		return fmt.Errorf("write to RFB server: %w", err)
	}
	return nil
}

// text reads a string of a length that the server claims.
func (c *Client) text(n uint32) (string, error) {
	if n > maxText {
		return "", fmt.Errorf("text of %d bytes: more than %d", n, maxText)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(c.in, b)
	return string(b), err
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}
