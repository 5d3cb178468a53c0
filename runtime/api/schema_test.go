package api

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

// TestEngineTypesHaveTheirSchemas holds the engine's types, which the server
// answers with as they are, against what the document says of them.
func TestEngineTypesHaveTheirSchemas(t *testing.T) {
	d, err := theDocument()
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]any{
		"Image": Image{}, "ImageConfig": ImageConfig{}, "Sandbox": Sandbox{}, "Head": Head{}, "Port": Port{}, "Main": Main{}, "BootTiming": BootTiming{},
		"Process": Process{}, "PathStat": PathStat{}, "FileEvent": FileEvent{}, "Commit": Commit{}, "CommitMemory": CommitMemory{}, "CommitDisk": CommitDisk{},
		"CommitTiming": CommitTiming{}, "Fork": Fork{}, "ReflogEntry": ReflogEntry{}, "Ref": Ref{}, "GCReport": GCReport{}, "FsckReport": FsckReport{},
		"FsckProblem": FsckProblem{}, "UsageReport": UsageReport{}, "Event": Event{}, "DoctorReport": DoctorReport{}, "DoctorCheck": DoctorCheck{},
	}
	for name, v := range types {
		schema := d.spec.Components.Schemas[name].Value
		typ := reflect.TypeOf(v)
		if typ.PkgPath() != reflect.TypeFor[Sandbox]().PkgPath() {
			t.Errorf("%s is %s, not the engine's: is it in server.overlay.yaml?", name, typ)
		}
		seen := map[string]bool{}
		for i := range typ.NumField() {
			f := typ.Field(i)
			tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if tag == "-" {
				continue
			}
			seen[tag] = true
			p := schema.Properties[tag]
			if p == nil {
				t.Errorf("%s.%s is not in the document", name, tag)
				continue
			}
			if required := slices.Contains(schema.Required, tag); required == strings.Contains(options, "omitempty") {
				t.Errorf("%s.%s: required is %v in the document", name, tag, required)
			}
			if want, got := kindOf(f.Type), p.Value.Type.Slice()[0]; want != got {
				t.Errorf("%s.%s is %s in the document and %s in Go", name, tag, got, want)
			}
		}
		for tag := range schema.Properties {
			if !seen[tag] {
				t.Errorf("%s has no field %s, which the document promises", name, tag)
			}
		}
	}
}

// kindOf is a Go type as JSON has it.
func kindOf(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t.PkgPath() == "time" && t.Name() == "Time", t.Kind() == reflect.String:
		return openapi3.TypeString
	case t.Kind() == reflect.Bool:
		return openapi3.TypeBoolean
	case t.Kind() == reflect.Float64:
		return openapi3.TypeNumber
	case t.Kind() == reflect.Slice:
		return openapi3.TypeArray
	case t.Kind() == reflect.Struct, t.Kind() == reflect.Map:
		return openapi3.TypeObject
	}
	return openapi3.TypeInteger
}
