package mcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/png"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api/rfb"
)

type screenshotIn struct {
	VMName   string `json:"vm_name" jsonschema:"name of the sandbox"`
	Port     int    `json:"port,omitempty" jsonschema:"port of a VNC server in the sandbox; 0: look for one at 5900 to 5909, else photograph the X display"`
	Password string `json:"password,omitempty" jsonschema:"of the VNC server, if it wants one"`
	Display  string `json:"display,omitempty" jsonschema:"X display such as :0; empty: the first there is"`
}

const (
	vncFirst, vncLast = 5900, 5909
	vncPatience       = 20 * time.Second
	maxScreenshot     = 16 << 20
)

func (t *tools) addScreenshot(s *sdk.Server) {
	add(s, "screenshot", "Photograph the display", "A picture of what a sandbox's display shows: of its VNC server where it has one, else of its X display.",
		hints{readOnly: true}, t.screenshot)
}

func (t *tools) screenshot(ctx context.Context, r *sdk.CallToolRequest, in screenshotIn) (*sdk.CallToolResult, any, error) {
	if in.Port < 0 || in.Port > 65535 {
		return nil, nil, usage(fmt.Sprintf("port %d: not of 1 to 65535", in.Port), "")
	}
	p := begin(ctx, r, "photographing "+in.VMName, 0)
	defer p.stop()
	picture, err := t.photograph(ctx, in)
	if err != nil {
		return nil, nil, err
	}
	if len(picture) > maxScreenshot {
		return nil, nil, fmt.Errorf("the picture has %d bytes, more than %d", len(picture), maxScreenshot)
	}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.ImageContent{Data: picture, MIMEType: "image/png"}}}, nil, nil
}

func (t *tools) photograph(ctx context.Context, in screenshotIn) ([]byte, error) {
	if in.Port > 0 {
		return t.byVNC(ctx, in, uint16(in.Port))
	}
	if in.Display == "" {
		for port := uint16(vncFirst); port <= vncLast; port++ {
			picture, err := t.byVNC(ctx, in, port)
			// Nothing listens there, or something else does.
			if errors.Is(err, runtime.ErrState) && !errors.Is(err, runtime.ErrNotActive) || errors.Is(err, rfb.ErrNotRFB) {
				continue
			}
			return picture, err
		}
	}
	return t.byX(ctx, in)
}

// byVNC photographs the display of a VNC server in the guest.
func (t *tools) byVNC(ctx context.Context, in screenshotIn, port uint16) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, vncPatience)
	defer cancel()
	conn, err := t.engine(ctx).DialPort(ctx, in.VMName, port)
	if err != nil {
		return nil, err
	}
	c, err := rfb.Connect(ctx, conn, rfb.Options{Password: in.Password})
	if err != nil {
		return nil, fmt.Errorf("connect to VNC server at port %d of %s: %w", port, in.VMName, err)
	}
	defer c.Close()
	picture, err := c.Capture(ctx)
	if err != nil {
		return nil, fmt.Errorf("photograph the display at port %d of %s: %w", port, in.VMName, err)
	}
	return encode(picture)
}

func encode(picture image.Image) ([]byte, error) {
	var buf bytes.Buffer
	if err := png.Encode(&buf, picture); err != nil {
		return nil, fmt.Errorf("encode picture: %w", err)
	}
	return buf.Bytes(), nil
}

// photographLine writes a PNG of an X display, with whatever the guest has for
// it. The display is $1 or the first that there is; who may look at it is found
// out from those who do.
const photographLine = `display=$1
if [ -z "$display" ]; then
	for s in /tmp/.X11-unix/X*; do
		if [ -S "$s" ]; then display=:${s##*/X}; break; fi
	done
fi
if [ -z "$display" ]; then echo "there is no X display" >&2; exit 66; fi
DISPLAY=$display; export DISPLAY
if [ -z "${XAUTHORITY:-}" ]; then
	for e in /proc/[0-9]*/environ; do
		a=$(tr '\0' '\n' <"$e" 2>/dev/null | sed -n 's/^XAUTHORITY=//p' | head -n 1)
		if [ -n "$a" ] && [ -r "$a" ]; then XAUTHORITY=$a; export XAUTHORITY; break; fi
	done
fi
if command -v import >/dev/null; then exec import -silent -window root png:-; fi
if command -v maim >/dev/null; then exec maim --hidecursor; fi
t=$(mktemp -d) || exit 1
trap 'rm -rf "$t"' EXIT
if command -v scrot >/dev/null; then scrot "$t/p.png" && cat "$t/p.png"; exit; fi
if command -v xwd >/dev/null && command -v convert >/dev/null; then xwd -silent -root | convert xwd:- png:-; exit; fi
if command -v xwd >/dev/null && command -v ffmpeg >/dev/null; then xwd -silent -root >"$t/p.xwd" && ffmpeg -v error -i "$t/p.xwd" -f image2pipe -c:v png -; exit; fi
echo "nothing is installed that photographs $display" >&2
exit 69`

// byX photographs an X display by a program of the guest.
func (t *tools) byX(ctx context.Context, in screenshotIn) ([]byte, error) {
	picture, complaint := &bounded{limit: maxScreenshot + 1}, &bounded{limit: 4 << 10}
	status, err := t.engine(ctx).Exec(ctx, runtime.ExecRequest{
		Name: in.VMName, Args: []string{"/bin/sh", "-c", photographLine, "sh", in.Display}, User: "0", Timeout: vncPatience,
	}, runtime.ExecIO{Stdout: picture, Stderr: complaint})
	if err != nil {
		return nil, err
	}
	said := strings.TrimSpace(valid(complaint.buf.Bytes()))
	switch {
	case status.Code == 66:
		return nil, &runtime.Error{Kind: runtime.ErrState, Message: in.VMName + " has no display: no VNC server answers at 5900 to 5909, and " + said,
			Hint: "start one in it, such as Xvnc :1 -SecurityTypes None, or say at which port it listens"}
	case status.Code == 69:
		return nil, &runtime.Error{Kind: runtime.ErrState, Message: said, Hint: "install imagemagick, maim, scrot or a VNC server in the sandbox"}
	case status.Code != 0:
		return nil, &runtime.Error{Kind: runtime.ErrState, Message: fmt.Sprintf("photograph the display of %s: exit status %d: %s%s", in.VMName, status.Code, said, status.Error)}
	case !bytes.HasPrefix(picture.buf.Bytes(), []byte("\x89PNG\r\n\x1a\n")):
		return nil, &runtime.Error{Kind: runtime.ErrState, Message: fmt.Sprintf("photograph the display of %s: what came is no PNG: %s", in.VMName, said)}
	}
	return picture.buf.Bytes(), nil
}

// bounded keeps the beginning of what is written to it.
type bounded struct {
	limit int
	buf   bytes.Buffer
}

func (b *bounded) Write(p []byte) (int, error) {
	b.buf.Write(p[:max(0, min(len(p), b.limit-b.buf.Len()))])
	return len(p), nil
}
