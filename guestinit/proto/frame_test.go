package proto

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestFrames(t *testing.T) {
	var wire bytes.Buffer
	w := NewFrameWriter(&wire)
	large := bytes.Repeat([]byte{0, 255}, MaxPayload/2)
	sent := []struct {
		t FrameType
		p []byte
	}{{FrameStdout, []byte("a")}, {FrameStdinEOF, nil}, {FrameStderr, large}, {FrameDone, nil}, {FrameStdin, bytes.Repeat([]byte("x"), 600)}}
	for _, f := range sent {
		if err := w.Send(f.t, f.p); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.SendBuffer(FrameData, append(make([]byte, FrameHeader), "tar"...)); err != nil {
		t.Fatal(err)
	}
	if err := w.SendUint32(FrameWindow, 1<<31+7); err != nil {
		t.Fatal(err)
	}
	r := NewFrameReader(&wire)
	for i, f := range sent {
		if typ, p, err := r.Next(); err != nil || typ != f.t || !bytes.Equal(p, f.p) {
			t.Errorf("frame %d: %q of %d bytes, %v", i, typ, len(p), err)
		}
	}
	if typ, p, err := r.Next(); err != nil || typ != FrameData || string(p) != "tar" {
		t.Errorf("got %q %q, %v", typ, p, err)
	}
	if _, p, err := r.Next(); err != nil {
		t.Error(err)
	} else if v, err := Uint32(p); err != nil || v != 1<<31+7 {
		t.Errorf("got %d, %v", v, err)
	}
	if _, _, err := r.Next(); err != io.EOF {
		t.Errorf("end: got %v", err)
	}
	if err := w.Send(FrameStdout, make([]byte, MaxPayload+1)); !errors.Is(err, ErrFrame) {
		t.Errorf("too large: got %v", err)
	}
	if wire.Len() > 0 {
		t.Error("a refused frame was written")
	}
	if rows, cols, err := Resize([]byte{1, 2, 3, 4}); err != nil || rows != 0x102 || cols != 0x304 {
		t.Errorf("got %x, %x, %v", rows, cols, err)
	}
}

func TestFramesCut(t *testing.T) {
	for _, s := range []string{"o", "o\x00\x00", "o\x00\x00\x02x", "o\x00\x00\x02"} {
		if _, _, err := NewFrameReader(strings.NewReader(s)).Next(); err != io.ErrUnexpectedEOF {
			t.Errorf("%q: got %v", s, err)
		}
	}
	if _, _, err := NewFrameReader(strings.NewReader("o\x01\x00\x01")).Next(); !errors.Is(err, ErrFrame) {
		t.Errorf("too large: got %v", err)
	}
}

func TestData(t *testing.T) {
	text := strings.Repeat("0123456789", 30000)
	var wire bytes.Buffer
	out := NewDataWriter(NewFrameWriter(&wire))
	for i := 0; i < len(text); i += 7001 {
		if _, err := io.WriteString(out, text[i:min(i+7001, len(text))]); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.End(); err != nil {
		t.Fatal(err)
	}
	whole := wire.Bytes()
	if overhead := len(whole) - len(text); overhead > FrameHeader*(len(text)/MaxPayload+2) {
		t.Errorf("%d bytes of headers", overhead)
	}
	read := func(wire string) (string, error) {
		b, err := io.ReadAll(NewDataReader(NewFrameReader(strings.NewReader(wire))))
		return string(b), err
	}
	if got, err := read(string(whole)); err != nil || got != text {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	if _, err := read(string(whole[:len(whole)-FrameHeader])); err != io.ErrUnexpectedEOF {
		t.Errorf("without an end: got %v", err)
	}
	body := `{"code":"no_space","message":"disk full"}`
	var failed *StreamError
	if got, err := read("a\x00\x00\x01xE\x00\x00" + string(rune(len(body))) + body); got != "x" || !errors.As(err, &failed) || failed.Code != CodeNoSpace || failed.Error() != "disk full" {
		t.Errorf("got %q, %v", got, err)
	}
	for _, s := range []string{"o\x00\x00\x00", "E\x00\x00\x01{", "n\x00\x00\x04\x00\x01\x00\x01", "n\x00\x00\x01x"} {
		if _, err := read(s); !errors.Is(err, ErrFrame) {
			t.Errorf("%q: got %v", s, err)
		}
	}
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte("o\x00\x00\x01xE\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewFrameReader(bytes.NewReader(b))
		var again bytes.Buffer
		w := NewFrameWriter(&again)
		for {
			typ, p, err := r.Next()
			if err != nil {
				break
			}
			if err := w.Send(typ, p); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.HasPrefix(b, again.Bytes()) {
			t.Errorf("%q became %q", b, again.Bytes())
		}
	})
}

// TestZeroes: long runs of zeroes cost next to nothing, when they may.
func TestZeroes(t *testing.T) {
	text := append(bytes.Repeat([]byte("x"), 100), make([]byte, 10<<20)...)
	text = append(text, "end"...)
	for _, allowed := range []bool{true, false} {
		var wire bytes.Buffer
		out := NewDataWriter(NewFrameWriter(&wire))
		out.Zeroes = allowed
		if _, err := out.Write(text); err != nil {
			t.Fatal(err)
		}
		if err := out.End(); err != nil {
			t.Fatal(err)
		}
		if small := wire.Len() < 200<<10; small != allowed {
			t.Errorf("allowed %v: %d bytes on the wire", allowed, wire.Len())
		}
		got, err := io.ReadAll(NewDataReader(NewFrameReader(&wire)))
		if err != nil || !bytes.Equal(got, text) {
			t.Errorf("allowed %v: got %d bytes, %v", allowed, len(got), err)
		}
	}
}
