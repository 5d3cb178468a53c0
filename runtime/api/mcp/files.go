package mcp

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sietch-dev/sietch/runtime/api/arrakis"
	"github.com/sietch-dev/sietch/runtime/api/guestfile"
)

// Bounds of files.
const (
	maxUpload    = 8 << 20
	maxPath      = 4095
	downloadPage = 256 << 10 // when a length is not given
	maxDownload  = 1 << 20
	maxPicture   = 4 << 20
)

type (
	uploadIn struct {
		VMName   string `json:"vm_name" jsonschema:"name of the sandbox"`
		Path     string `json:"path" jsonschema:"path of the file in the sandbox; relative ones begin in /tmp/server_files"`
		Content  string `json:"content" jsonschema:"the file's content, 8 MiB at most"`
		Encoding string `json:"encoding,omitempty" jsonschema:"base64 when content is that; empty: it is the text itself"`
	}
	downloadIn struct {
		VMName string `json:"vm_name" jsonschema:"name of the sandbox"`
		Path   string `json:"path" jsonschema:"path of the file in the sandbox; relative ones begin in /tmp/server_files"`
		Offset int64  `json:"offset,omitempty" jsonschema:"first byte to read"`
		Length int64  `json:"length,omitempty" jsonschema:"bytes to read, 1048576 at most; 0: 262144"`
	}
)

func (t *tools) addFiles(s *sdk.Server) {
	add(s, "upload_file", "Write a file", "Writes a file in a sandbox, with the directories above it. A file that is there is replaced.",
		hints{destructive: true, idempotent: true}, t.upload)
	add(s, "download_file", "Read a file", "Reads a file of a sandbox. Pictures come as pictures, other binary content as a blob. "+
		"Long files come in parts: the answer says with which offset to go on.",
		hints{readOnly: true}, t.download)
}

// checkPath refuses what names no file.
func checkPath(p string) error {
	switch {
	case p == "" || strings.HasSuffix(p, "/") || path.Clean("/"+p) == "/":
		return usage(fmt.Sprintf("path %.100q is not that of a file", p), "")
	case len(p) > maxPath:
		return usage(fmt.Sprintf("path of %d bytes: more than %d", len(p), maxPath), "")
	case strings.ContainsRune(p, 0):
		return usage("path holds a NUL", "")
	}
	return nil
}

func (t *tools) upload(ctx context.Context, r *sdk.CallToolRequest, in uploadIn) (*sdk.CallToolResult, any, error) {
	if err := checkPath(in.Path); err != nil {
		return nil, nil, err
	}
	content := in.Content
	switch in.Encoding {
	case "":
	case "base64":
		data, err := base64.StdEncoding.DecodeString(content)
		if err != nil {
			return nil, nil, usage("content is not base64", "")
		}
		content = string(data)
	default:
		return nil, nil, usage(fmt.Sprintf("encoding %.40q is not base64", in.Encoding), "leave it out for text")
	}
	if len(content) > maxUpload {
		return nil, nil, usage(fmt.Sprintf("content of %d bytes: more than %d", len(content), maxUpload), "write it in parts and join them with run_command, or let the sandbox fetch it")
	}
	p := begin(ctx, r, "writing", 0)
	defer p.stop()
	to := arrakis.Path(in.Path)
	err := guestfile.Write(ctx, t.engine(ctx), in.VMName, guestfile.File{Path: to, Mode: 0o644, SizeBytes: int64(len(content)), Parents: true}, strings.NewReader(content))
	if err != nil {
		return nil, nil, err
	}
	return text(fmt.Sprintf("wrote %d bytes to %s", len(content), to)), nil, nil
}

func (t *tools) download(ctx context.Context, r *sdk.CallToolRequest, in downloadIn) (*sdk.CallToolResult, any, error) {
	if err := checkPath(in.Path); err != nil {
		return nil, nil, err
	}
	if in.Offset < 0 || in.Length < 0 || in.Length > maxDownload {
		return nil, nil, usage(fmt.Sprintf("offset %d or length %d: not 0 or more, or more than %d", in.Offset, in.Length, maxDownload), "")
	}
	p := begin(ctx, r, "reading", 0)
	defer p.stop()
	w := &window{skip: in.Offset, limit: in.Length}
	err := guestfile.Read(ctx, t.engine(ctx), in.VMName, arrakis.Path(in.Path), w.open)
	if err != nil && !errors.Is(err, errEnough) {
		return nil, nil, err
	}
	result := content(in, w)
	end := in.Offset + int64(len(w.data))
	switch {
	case in.Offset > w.size:
		result.Content = append(result.Content, &sdk.TextContent{Text: fmt.Sprintf("[the file ends before, at %d]", w.size)})
	case end < w.size:
		result.Content = append(result.Content, &sdk.TextContent{Text: fmt.Sprintf("[bytes %d to %d of %d; go on with offset %d]", in.Offset, end, w.size, end)})
	}
	return result, nil, nil
}

// content is what was read as the kind of content that it is. A part of a text
// ends with a whole character.
func content(in downloadIn, w *window) *sdk.CallToolResult {
	if w.size > in.Offset+int64(len(w.data)) {
		w.data = wholeCharacters(w.data)
	}
	if utf8.Valid(w.data) {
		return text(string(w.data))
	}
	kind := http.DetectContentType(w.data)
	whole := in.Offset == 0 && int64(len(w.data)) == w.size
	switch kind {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
		if whole {
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.ImageContent{Data: w.data, MIMEType: kind}}}
		}
	}
	if !whole {
		kind = "application/octet-stream"
	}
	uri := url.URL{Scheme: "sietch", Host: in.VMName, Path: arrakis.Path(in.Path)}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.EmbeddedResource{
		Resource: &sdk.ResourceContents{URI: uri.String(), MIMEType: kind, Blob: w.data},
	}}}
}

// wholeCharacters leaves out the beginning of a character at the end.
func wholeCharacters(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if last := b[len(b)-i]; utf8.RuneStart(last) {
			if !utf8.FullRune(b[len(b)-i:]) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}

// errEnough ends the reading of a file of which no more is wanted.
var errEnough = errors.New("enough was read")

// window keeps a part of what is written to it.
type window struct {
	skip, limit int64
	size        int64 // of the whole file
	data        []byte
}

// open learns the size: a picture is worth a larger window, if it fits whole.
func (w *window) open(size int64) io.Writer {
	w.size = size
	if w.limit == 0 {
		w.limit = downloadPage
		if w.skip == 0 && size <= maxPicture {
			return &pictureOrPage{w}
		}
	}
	return w
}

func (w *window) Write(p []byte) (int, error) {
	n := len(p)
	if past := min(w.skip, int64(len(p))); past > 0 {
		w.skip -= past
		p = p[past:]
	}
	room := w.limit - int64(len(w.data))
	w.data = append(w.data, p[:min(int64(len(p)), room)]...)
	if int64(len(w.data)) == w.limit {
		return n, errEnough
	}
	return n, nil
}

// pictureOrPage decides by the first bytes how much is wanted.
type pictureOrPage struct{ w *window }

func (p *pictureOrPage) Write(b []byte) (int, error) {
	if len(p.w.data) == 0 && strings.HasPrefix(http.DetectContentType(b), "image/") {
		p.w.limit = maxPicture
	}
	return p.w.Write(b)
}
