package wire

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"

	"github.com/sietch-dev/sietch/runtime/api/client"
)

// TrailerError is what an answer of bytes that was read to its end failed with on
// the way, for who asked with TE: trailers.
func TrailerError(resp *http.Response) error {
	said := resp.Trailer.Get("Sietch-Error")
	if said == "" {
		return nil
	}
	_, err := told[struct{}]([]byte(said))
	return err
}

// longestLine is where a line of a stream is not believed any more.
const longestLine = 64 << 20

// Objects gives the lines of an answer, each a JSON object; an error in one of
// them is the last. The answer is closed in the end.
func Objects[T any](resp *http.Response, err error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		r, err := Body(resp, err)
		if err != nil {
			yield(none, err)
			return
		}
		defer r.Close()
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, longestLine)
		for lines.Scan() {
			if len(lines.Bytes()) == 0 {
				continue
			}
			v, err := told[T](lines.Bytes())
			if !yield(v, err) || err != nil {
				return
			}
		}
		if err := lines.Err(); err != nil {
			yield(none, fmt.Errorf("read answer: %w", err))
		}
	}
}

// told reads one object of a stream, or the error that it says.
func told[T any](line []byte) (T, error) {
	var v T
	var failure struct {
		Error *client.ErrorBody `json:"error"`
	}
	if err := json.Unmarshal(line, &failure); err != nil {
		return v, fmt.Errorf("read answer: %w: %.80q", ErrProtocol, line)
	}
	if failure.Error != nil {
		return v, errorOf(failure.Error, 0, "")
	}
	if err := json.Unmarshal(line, &v); err != nil {
		return v, fmt.Errorf("read answer: %w", err)
	}
	return v, nil
}

// Messages gives the server-sent events of an answer whose name is one of only
// (none: all); one called error is the last.
func Messages[T any](r io.ReadCloser, only string) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		defer r.Close()
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, longestLine)
		var event string
		var data []byte
		for lines.Scan() {
			line := bytes.TrimSuffix(lines.Bytes(), []byte("\r"))
			name, value, _ := bytes.Cut(line, []byte(":"))
			value = bytes.TrimPrefix(value, []byte(" "))
			switch {
			case len(line) > 0 && string(name) == "event":
				event = string(value)
			case len(line) > 0 && string(name) == "data":
				data = append(data, value...)
			case len(line) == 0 && data != nil:
				if only == "" || event == only || event == "error" {
					v, err := told[T](data)
					if !yield(v, err) || err != nil {
						return
					}
				}
				event, data = "", nil
			}
		}
		if err := lines.Err(); err != nil {
			var none T
			yield(none, fmt.Errorf("read events: %w", err))
		}
	}
}

// Made reads progress, and in the end the image.
func Made[T any](progress io.Writer) func(*http.Response, error) (T, error) {
	return func(resp *http.Response, err error) (T, error) {
		var none T
		type line struct {
			Progress string
			Image    *T
		}
		for l, err := range Objects[line](resp, err) {
			switch {
			case err != nil:
				return none, err
			case l.Image != nil:
				return *l.Image, nil
			case progress != nil:
				if _, err := fmt.Fprintln(progress, l.Progress); err != nil {
					return none, err
				}
			}
		}
		return none, fmt.Errorf("make image: %w: it ended without one", ErrProtocol)
	}
}
