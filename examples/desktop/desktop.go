// Package desktop shows that a restore brings windows back: a browser on a
// display that VNC shows is driven by a VNC client through a forwarded port, and
// photographed before and after.
package desktop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"net"
	"regexp"
	"time"

	"github.com/sietch-dev/sietch/examples/tools"
	"github.com/sietch-dev/sietch/runtime/api/rfb"
)

// Port is where the display's VNC server listens in the sandbox.
const Port = 5901

// The flag of page.html, which fills the upper half of the display.
var (
	green = color.RGBA{0x1f, 0x6f, 0x43, 0xff}
	red   = color.RGBA{0xa3, 0x24, 0x2b, 0xff}
)

// Options of [Show].
type Options struct {
	Image    string // of the Dockerfile here
	Name     string // of the sandbox
	Patience time.Duration
	Say      func(format string, args ...any)
	// Photograph, when set, gets every picture with what it shows.
	Photograph func(what string, png []byte)
}

// Show does it all and fails where anything is not as it is to be. The sandbox is
// destroyed in any case.
func Show(ctx context.Context, t *tools.Tools, o Options) (err error) {
	ctx, cancel := context.WithTimeout(ctx, o.Patience)
	defer cancel()
	if _, err := t.Call(ctx, "start_sandbox", tools.Args{"name": o.Name, "image": o.Image, "cpus": 2, "memory_mib": 1024}); err != nil {
		return err
	}
	defer func() {
		_, gone := t.Call(context.WithoutCancel(ctx), "destroy_vm", tools.Args{"vm_name": o.Name})
		err = errors.Join(err, gone)
	}()
	port, err := t.Call(ctx, "forward_port", tools.Args{"vm_name": o.Name, "guest_port": Port})
	if err != nil {
		return err
	}
	s := show{Tools: t, Options: o, host: regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(port)}

	o.Say("the browser starts; its display is at vnc://%s", s.host)
	if _, err := s.until(ctx, "the page", func(m image.Image) bool { return flag(m, green) }); err != nil {
		return err
	}
	empty, err := s.look(ctx, "an empty page")
	if err != nil {
		return err
	}
	if err := s.drive(ctx, func(c *rfb.Client) error { return c.Type("written before", 200*time.Millisecond) }); err != nil {
		return err
	}
	before, err := s.still(ctx, "words on the page", func(m image.Image) bool { return flag(m, green) && differs(m, empty) > 100 })
	if err != nil {
		return err
	}
	snapshot, err := t.Call(ctx, "snapshot", tools.Args{"vm_name": o.Name})
	if err != nil {
		return err
	}

	o.Say("after the snapshot the page is changed")
	err = s.drive(ctx, func(c *rfb.Client) error {
		w, h := c.Size()
		return errors.Join(c.Click(w/2, h/4), c.Type(" and after", 200*time.Millisecond))
	})
	if err != nil {
		return err
	}
	if _, err := s.still(ctx, "another page", func(m image.Image) bool { return flag(m, red) }); err != nil {
		return err
	}

	if _, err := t.Call(ctx, "restore_snapshot", tools.Args{"vm_name": o.Name, "snapshot_id": snapshot}); err != nil {
		return err
	}
	after, err := s.until(ctx, "the page of before", func(m image.Image) bool { return flag(m, green) && differs(m, before) == 0 })
	if err != nil {
		if after != nil {
			err = fmt.Errorf("%w: %d pixels differ", err, differs(after, before))
		}
		return err
	}
	if _, err := s.look(ctx, "the page of before, restored"); err != nil {
		return err
	}
	o.Say("restored, the display shows what it showed, pixel by pixel")
	// The same page is alive: it goes on from there.
	if err := s.drive(ctx, func(c *rfb.Client) error { return c.Type("!", 0) }); err != nil {
		return err
	}
	if _, err := s.until(ctx, "the page goes on", func(m image.Image) bool { return flag(m, green) && differs(m, before) > 5 }); err != nil {
		return err
	}
	o.Say("and the browser goes on from there")
	return nil
}

type show struct {
	*tools.Tools
	Options
	host string // where the display is reached
}

// connect opens the display. A connection does not outlive a restore.
func (s *show) connect(ctx context.Context) (*rfb.Client, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", s.host)
	if err != nil {
		return nil, err
	}
	return rfb.Connect(ctx, conn, rfb.Options{})
}

func (s *show) drive(ctx context.Context, fn func(*rfb.Client) error) error {
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := fn(c); err != nil {
		return err
	}
	// The answer to a later question says that what came before was heard.
	_, err = c.Capture(ctx)
	return err
}

func (s *show) capture(ctx context.Context) (*image.RGBA, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	c, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Capture(ctx)
}

// until photographs until the display is as wanted.
func (s *show) until(ctx context.Context, what string, wanted func(image.Image) bool) (image.Image, error) {
	var last image.Image
	for {
		m, err := s.capture(ctx)
		if err == nil {
			last = m
			if wanted(m) {
				return m, nil
			}
		}
		select {
		case <-ctx.Done():
			return last, errors.Join(fmt.Errorf("wait for %s: %w", what, context.Cause(ctx)), err)
		case <-time.After(time.Second):
		}
	}
}

// still waits until the display is as wanted and no longer changes, and shows it.
func (s *show) still(ctx context.Context, what string, wanted func(image.Image) bool) (image.Image, error) {
	var before image.Image
	since := 0
	_, err := s.until(ctx, what, func(m image.Image) bool {
		if before != nil && wanted(m) && differs(m, before) == 0 {
			since++
		} else {
			since = 0
		}
		before = m
		return since == 3
	})
	if err != nil {
		return nil, err
	}
	_, err = s.look(ctx, what)
	return before, err
}

// look is the same by the tool, as an agent sees it.
func (s *show) look(ctx context.Context, what string) (image.Image, error) {
	data, err := s.Picture(ctx, "screenshot", tools.Args{"vm_name": s.Name})
	if err != nil {
		return nil, err
	}
	if s.Photograph != nil {
		s.Photograph(what, data)
	}
	return png.Decode(bytes.NewReader(data))
}

// flag says whether the upper half of the display has a colour, but for the place
// where a pointer may be.
func flag(m image.Image, want color.RGBA) bool {
	b := m.Bounds()
	wrong, all := 0, 0
	for y := b.Min.Y + 8; y < b.Min.Y+b.Dy()/2-8; y += 4 {
		for x := b.Min.X + 8; x < b.Max.X-8; x += 4 {
			all++
			if color.RGBAModel.Convert(m.At(x, y)) != want {
				wrong++
			}
		}
	}
	return all > 0 && wrong < all/50
}

// differs counts the pixels in which two pictures are not the same.
func differs(a, b image.Image) int {
	if a.Bounds() != b.Bounds() {
		return a.Bounds().Dx() * a.Bounds().Dy()
	}
	n := 0
	for y := a.Bounds().Min.Y; y < a.Bounds().Max.Y; y++ {
		for x := a.Bounds().Min.X; x < a.Bounds().Max.X; x++ {
			if color.RGBAModel.Convert(a.At(x, y)) != color.RGBAModel.Convert(b.At(x, y)) {
				n++
			}
		}
	}
	return n
}
