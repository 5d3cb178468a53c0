package main

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"
)

func TestParseEndpoint(t *testing.T) {
	tests := []struct {
		in   string
		want endpoint
		err  string
	}{
		{"box:/etc/hosts", endpoint{guest: "box", path: "/etc/hosts"}, ""},
		{"box:etc", endpoint{guest: "box", path: "/etc"}, ""},
		{"box:/a/../../etc", endpoint{guest: "box", path: "/etc"}, ""},
		{"box:/etc/", endpoint{guest: "box", path: "/etc", asDir: true}, ""},
		{"box:/etc/.", endpoint{guest: "box", path: "/etc", asDir: true, contents: true}, ""},
		{"box:/", endpoint{guest: "box", path: "/", asDir: true}, ""},
		{"box:/a:b", endpoint{guest: "box", path: "/a:b"}, ""},
		{"-", endpoint{path: "-", stream: true}, ""},
		{"./-", endpoint{path: "./-"}, ""},
		{"file", endpoint{path: "file"}, ""},
		{"./a:b", endpoint{path: "./a:b"}, ""},
		{"/tmp/a:b", endpoint{path: "/tmp/a:b"}, ""},
		{"dir/a:b", endpoint{path: "dir/a:b"}, ""},
		{".", endpoint{path: ".", asDir: true, contents: true}, ""},
		{"..", endpoint{path: "..", asDir: true}, ""},
		{"dir/", endpoint{path: "dir/", asDir: true}, ""},
		{"", endpoint{}, "is empty"},
		{"box:", endpoint{path: "box:"}, "the path behind : is missing"},
		{":/x", endpoint{path: ":/x"}, "the sandbox before : is missing"},
		{"box:/a\x00b", endpoint{path: "box:/a\x00b"}, "no NUL"},
	}
	for _, tt := range tests {
		got, err := parseEndpoint(tt.in)
		if got != tt.want || !errorHas(err, tt.err) {
			t.Errorf("parseEndpoint(%q) = %+v, %v; want %+v, %q", tt.in, got, err, tt.want, tt.err)
		}
	}
}

func TestEndpointBase(t *testing.T) {
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		"box:/": "", "box:/etc/.": "etc", "/": "", ".": filepath.Base(here), "..": filepath.Base(filepath.Dir(here)), "a/b/": "b", "a/b/.": "b",
	} {
		p, err := parseEndpoint(in)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.base(); got != want {
			t.Errorf("base of %q is %q, want %q", in, got, want)
		}
	}
}

func TestPlace(t *testing.T) {
	file, dir, contents := source{base: "s"}, source{base: "s", isDir: true}, source{base: "s", isDir: true, contents: true}
	nothing, nothingDir := target{path: "/p/d"}, target{path: "/p/d", asDir: true}
	isFile, isFileAsDir, isDir := target{path: "/p/d", exists: true}, target{path: "/p/d", exists: true, asDir: true}, target{path: "/p/d", exists: true, isDir: true}
	tests := []struct {
		name      string
		from      source
		to        target
		dir, base string
		err       string
	}{
		{"file to nothing", file, nothing, "/p", "d", ""},
		{"file to nothing/", file, nothingDir, "", "", "the destination directory"},
		{"file to file", file, isFile, "/p", "d", ""},
		{"file to file/", file, isFileAsDir, "", "", "not a directory"},
		{"file to directory", file, isDir, "/p/d", "s", ""},
		{"directory to nothing", dir, nothing, "/p", "d", ""},
		{"directory to nothing/", dir, nothingDir, "/p", "d", ""},
		{"directory to file", dir, isFile, "", "", "cannot take the place"},
		{"directory to directory", dir, isDir, "/p/d", "s", ""},
		{"content to nothing", contents, nothing, "/p", "d", ""},
		{"content to file", contents, isFile, "", "", "cannot take the place"},
		{"content to directory", contents, isDir, "/p/d", ".", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir, base, err := place(tt.from, tt.to)
			if dir != tt.dir || base != tt.base || !errorHas(err, tt.err) {
				t.Errorf("got %q, %q, %v; want %q, %q, %q", dir, base, err, tt.dir, tt.base, tt.err)
			}
		})
	}
	if _, _, err := place(file, nothingDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not %v", err, fs.ErrNotExist)
	}
}
