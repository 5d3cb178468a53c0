package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"github.com/sietch-dev/sietch/runtime"
)

// document is openapi.yaml as far as requests are held against it: what it
// refuses never reaches a handler.
type document struct {
	spec       *openapi3.T
	operations map[string]operation // by pattern of the mux
}

// operation is one method of one path.
type operation struct {
	id      string
	route   *routers.Route
	body    *openapi3.Schema // of a JSON body; nil: none, or not JSON
	needed  bool             // the JSON body
	json    bool             // the body is JSON, or there is none
	lenient bool             // a route of Arrakis: what it does not know is ignored
	mutates bool
	open    bool // takes as long as it takes
}

// openEnded are the operations that stream, or wait for a command, a person or a
// network.
var openEnded = map[string]bool{
	"exec": true, "execStream": true, "waitProcess": true, "processOutput": true, "arrakisRunCommand": true,
	"buildImage": true, "pullImage": true, "bootstrapImage": true, "importImage": true, "exportImage": true,
	"sandboxLogs": true, "dialPort": true, "readFile": true, "writeFile": true, "readTar": true, "writeTar": true, "watchPath": true,
	"events": true, "gc": true, "fsck": true, "fork": true,
}

const mediaJSON = "application/json"

// theDocument is read once: it takes longer than all else that a server begins
// with.
var theDocument = sync.OnceValues(func() (*document, error) { return readDocument(Document) })

func readDocument(data []byte) (*document, error) {
	spec, err := openapi3.NewLoader().LoadFromData(data)
	if err != nil {
		return nil, err
	}
	d := &document{spec: spec, operations: map[string]operation{}}
	for path, item := range spec.Paths.Map() {
		for method, op := range item.Operations() {
			o := operation{
				id: op.OperationID, json: true, open: openEnded[op.OperationID],
				lenient: strings.HasPrefix(op.OperationID, "arrakis"),
				mutates: method != http.MethodGet && method != http.MethodHead,
				route:   &routers.Route{Spec: spec, Path: path, PathItem: item, Method: method, Operation: op},
			}
			if op.RequestBody != nil {
				media := op.RequestBody.Value.Content[mediaJSON]
				if o.json = media != nil; o.json {
					o.body, o.needed = media.Schema.Value, op.RequestBody.Value.Required
				}
			}
			d.operations[method+" "+path] = o
		}
	}
	return d, nil
}

func (d *document) operation(pattern string) operation { return d.operations[pattern] }

// filterOptions: defaults are the handlers' business.
var filterOptions = &openapi3filter.Options{SkipSettingDefaults: true}

// validate holds parameters and a JSON body against the document. The body can
// be read again.
func (d *document) validate(r *http.Request, o operation) error {
	if o.route == nil {
		return nil
	}
	in := &openapi3filter.RequestValidationInput{Request: r, Route: o.route, PathParams: map[string]string{}, Options: filterOptions}
	var wrong []string
	check := func(list openapi3.Parameters) error {
		for _, p := range list {
			if p.Value.In == "path" {
				in.PathParams[p.Value.Name] = r.PathValue(p.Value.Name)
			}
			if err := openapi3filter.ValidateParameter(r.Context(), in, p.Value); err != nil {
				wrong = append(wrong, p.Value.Name+": "+reason(err))
			}
		}
		return nil
	}
	check(o.route.PathItem.Parameters)
	check(o.route.Operation.Parameters)
	if len(wrong) > 0 {
		return wrongRequest(wrong)
	}
	if o.body == nil {
		return nil
	}
	if err := checkMedia(r, o); err != nil {
		return err
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return fmt.Errorf("read request body: %w", err)
	}
	r.Body = io.NopCloser(bytes.NewReader(data))
	r.ContentLength = int64(len(data))
	if len(bytes.TrimSpace(data)) == 0 {
		r.ContentLength = 0
		if o.needed {
			return usage("the request has no body", "it takes JSON; the API is described at /v1/openapi.yaml")
		}
		return nil
	}
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		return jsonError(err)
	}
	if err := o.body.VisitJSON(v, openapi3.MultiErrors()); err != nil {
		return wrongRequest(reasons(err))
	}
	return nil
}

// checkMedia wants JSON to be called so. Clients of Arrakis need not.
func checkMedia(r *http.Request, o operation) error {
	given := r.Header.Get("Content-Type")
	if given == "" || o.lenient {
		return nil
	}
	if media, _, err := mime.ParseMediaType(given); err == nil && media == mediaJSON {
		return nil
	}
	return refusal(errMediaType, fmt.Sprintf("the body is said to be %.80q", given), "send it with Content-Type: application/json")
}

func wrongRequest(wrong []string) error {
	return &runtime.Error{Kind: runtime.ErrUsage, Message: strings.Join(wrong, "; "), Hint: "the API is described at /v1/openapi.yaml"}
}

// reasons says what is wrong with a body, field by field.
func reasons(err error) []string {
	var all openapi3.MultiError
	if errors.As(err, &all) {
		var list []string
		for _, one := range all {
			list = append(list, reasons(one)...)
		}
		return list
	}
	var s *openapi3.SchemaError
	if errors.As(err, &s) {
		if at := strings.Join(s.JSONPointer(), "."); at != "" {
			return []string{at + ": " + reason(err)}
		}
	}
	return []string{reason(err)}
}

// reason is the core of an error of the validator: without the schema and the
// value, which may be long or secret.
func reason(err error) string {
	var s *openapi3.SchemaError
	if errors.As(err, &s) && s.Reason != "" {
		return s.Reason
	}
	var p *openapi3filter.ParseError
	if errors.As(err, &p) {
		return p.Reason
	}
	var q *openapi3filter.RequestError
	if errors.As(err, &q) && q.Err != nil {
		return q.Err.Error()
	}
	return err.Error()
}

// parameterError is what the generated code could not read.
func parameterError(err error) error {
	return wrongRequest([]string{err.Error()})
}
