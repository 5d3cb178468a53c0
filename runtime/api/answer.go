package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"sync"
	"time"
)

// answer is the end of most handlers: what the engine returned, as JSON.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, status int, v any, err error) {
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, status, v)
}

// done answers a verb that has no result.
func (s *Server) done(w http.ResponseWriter, r *http.Request, err error) {
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	data, err := json.Marshal(filled(v))
	if err != nil { // nothing that the engine returns
		status, data = http.StatusInternalServerError, []byte(`{"error":{"code":"failed","message":"the answer cannot be written as JSON"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(data, '\n')) // a client that has gone is told nothing
}

// filled returns v with every list and map in it that is nil made empty: on the
// wire neither is ever null.
func filled(v any) any {
	if v == nil {
		return v
	}
	p := reflect.New(reflect.TypeOf(v))
	p.Elem().Set(reflect.ValueOf(v))
	fill(p.Elem())
	return p.Elem().Interface()
}

func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() && !optional(v.Type().Field(i)) {
				fill(f)
			}
		}
	case reflect.Slice:
		if v.IsNil() {
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
			return
		}
		if !composite(v.Type().Elem()) {
			return
		}
		// What the engine returned may be shared; the copy is not.
		own := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(own, v)
		v.Set(own)
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.Map:
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
	}
}

func composite(t reflect.Type) bool {
	return t.Kind() == reflect.Struct || t.Kind() == reflect.Slice
}

// optional is a field that is left out when it is empty.
func optional(f reflect.StructField) bool {
	tag := f.Tag.Get("json")
	return len(tag) > 10 && tag[len(tag)-10:] == ",omitempty"
}

// begin starts an answer whose length is not known; every write is sent at once.
func begin(w http.ResponseWriter, contentType string) io.Writer {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	f := flushing{w, http.NewResponseController(w)}
	f.control.Flush()
	return f
}

type flushing struct {
	w       io.Writer
	control *http.ResponseController
}

func (f flushing) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err != nil {
		return n, err
	}
	return n, f.control.Flush()
}

// lines is an answer of a JSON object a line. It begins with the first one, so
// that what fails before is an answer of its own.
type lines struct {
	w  http.ResponseWriter
	mu sync.Mutex
	to io.Writer
}

const ndjson = "application/x-ndjson"

func (l *lines) send(v any) error {
	data, err := json.Marshal(filled(v))
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.to == nil {
		l.to = begin(l.w, ndjson)
	}
	_, err = l.to.Write(append(data, '\n'))
	return err
}

func (l *lines) begun() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to != nil
}

// finish ends the stream: with the error as an answer or as the last line.
func (s *Server) finish(w http.ResponseWriter, r *http.Request, l *lines, err error) {
	switch {
	case err != nil && !l.begun():
		s.fail(w, r, err)
	case err != nil:
		if c := callOf(r); c != nil {
			c.err = err
		}
		l.send(failLine(err))
	case !l.begun():
		begin(w, ndjson)
	}
}

// serverEvents is an answer of server-sent events.
type serverEvents struct {
	mu sync.Mutex
	to io.Writer
}

// sseSilence is how long a stream of events may be silent: proxies and clients
// take longer for the end of the connection.
const sseSilence = 15 * time.Second

func newServerEvents(w http.ResponseWriter) *serverEvents {
	return &serverEvents{to: begin(w, "text/event-stream")}
}

func (e *serverEvents) send(id, event string, v any) error {
	data, err := json.Marshal(filled(v))
	if err != nil {
		return err
	}
	var text []byte
	if id != "" {
		text = append(text, "id: "+id+"\n"...)
	}
	text = append(text, "event: "+event+"\ndata: "...)
	text = append(append(text, data...), "\n\n"...)
	e.mu.Lock()
	defer e.mu.Unlock()
	_, err = e.to.Write(text)
	return err
}

// endEvents ends a stream of events: with the error that it ended with. That the
// server is about to end is one for the shell, to which the end of the stream is
// that of what it follows; others come back.
func (s *Server) endEvents(ctx context.Context, r *http.Request, out *serverEvents, err error) {
	c := callOf(r)
	switch gone := context.Cause(ctx); {
	case gone != nil && c.shell && errors.Is(gone, errShuttingDown):
		err = gone
	case gone != nil:
		return
	}
	if err != nil {
		c.err = err
		out.send("", "error", failLine(err))
	}
}

// keepAlive writes comments until stop is called; stop waits for it.
func (e *serverEvents) keepAlive() (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(sseSilence)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
				e.mu.Lock()
				io.WriteString(e.to, ":\n\n")
				e.mu.Unlock()
			}
		}
	}()
	return func() { close(end); <-ended }
}
